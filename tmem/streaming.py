"""Streams of tokens: prompts of any length, then token after token, at a constant cost.

  stream = streaming.init(model, batch_size=1)
  logits, stream = streaming.prefill(model, prompt, stream)
  logits, stream = streaming.step(model, next_tokens, stream)

With `model = streaming.frozen(model)` in front, a step of a small model takes a third of the time.
A stream is a value, `tmem.decoder.Stream`: of the same structure, shapes and types after any call,
with a row for each stream in every array.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from tmem.decoder import Stream
from tmem.models import LanguageModel, checked_count
from tmem.typing import Logits, TokenIds

BLOCK = 64  # tokens of a prompt worked on at once


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Frozen:
  """A model as a value, from `frozen`: nothing of it has to be looked up at every step.

  Attributes:
    graphdef: its structure.
    params: its parameters, a nested dict of arrays.
  """

  graphdef: nnx.GraphDef = dataclasses.field(metadata={"static": True})
  params: dict[str, Any]

  def model(self) -> LanguageModel:
    """The model."""
    return nnx.merge(self.graphdef, self.params)


Model = LanguageModel | Frozen


def frozen(model: Model) -> Frozen:
  """The model as it is now; what changes in it later is not seen.

  Raises:
    ValueError: if it is no language model.
  """
  if isinstance(model, Frozen):
    return model
  if not isinstance(model, LanguageModel):
    raise ValueError(f"model: got {type(model).__name__}, expected a LanguageModel")
  graphdef, state = nnx.split(model)
  return Frozen(graphdef, nnx.to_pure_dict(state))


def thawed(model: Model) -> LanguageModel:
  """The model that `frozen` was given, or one like it."""
  return model.model() if isinstance(model, Frozen) else model


def init(model: Model, batch_size: int) -> Stream:
  """What `batch_size` streams carry before their first token.

  Raises:
    ValueError: if the model is no causal language model, or `batch_size` no integer of at least 1.
  """
  return frozen(model).model().init_stream(batch_size)


def step(model: Model, tokens: TokenIds, stream: Stream) -> tuple[Logits, Stream]:
  """The next tokens of every stream; compiled once for each number of tokens.

  Args:
    model: a causal model.
    tokens: [batch, tokens] integers in [0, vocab_size), at least one for each stream.
    stream: what the streams carry.

  Returns:
    `(logits, stream)`: [batch, tokens, vocab_size], those of the next token after each, and what
    the streams carry then.

  Raises:
    ValueError: if there is no token, there are tokens for another number of streams, or the stream
      is of another model.
  """
  tokens = _checked(tokens, stream)
  count = jnp.full((len(tokens),), tokens.shape[1], jnp.int32)
  return _onward(frozen(model), tokens, stream, count)


def prefill(
  model: Model, tokens: TokenIds, stream: Stream, lengths: jax.Array | None = None
) -> tuple[Logits, Stream]:
  """Prompts of any lengths, in blocks: compiled once for all of them.

  Args:
    model: a causal model.
    tokens: [batch, tokens] integers in [0, vocab_size).
    stream: what the streams carry.
    lengths: [batch] integers from 1 to tokens, how many of a row's tokens are its prompt; None:
      all. What stands behind does not matter.

  Returns:
    `(logits, stream)`: [batch, vocab_size], those of the token after each prompt, and what the
    streams carry then.

  Raises:
    ValueError: if there is no token, there are tokens for another number of streams, the stream is
      of another model, or `lengths` are wrong (under `jax.jit` their values cannot be checked).
  """
  tokens = _checked(tokens, stream)
  batch, longest = tokens.shape
  lengths = checked_count("lengths", lengths, batch, longest)
  if not isinstance(lengths, jax.core.Tracer) and not (
    1 <= min(lengths) <= max(lengths) <= longest
  ):
    raise ValueError(f"lengths: got {lengths.tolist()}, expected 1 to {longest} tokens")
  tokens = jnp.pad(tokens, [(0, 0), (0, -longest % BLOCK)])
  model, last = frozen(model), None
  for start in range(0, longest, BLOCK):
    block = jax.lax.slice_in_dim(tokens, start, start + BLOCK, axis=1)
    last, stream = _block_onward(model, block, stream, lengths - start, last)
  return last, stream


@jax.jit
def _onward(model: Frozen, tokens, stream, count):
  return model.model().onward(tokens, stream, count)


@jax.jit
def _block_onward(model: Frozen, tokens, stream, left, last):
  """A block of prompts of which `left` tokens are left; `last` is kept where none is."""
  count = jnp.clip(left, 0, tokens.shape[1])
  logits, stream = model.model().onward(tokens, stream, count)
  newest = jnp.take_along_axis(logits, jnp.maximum(count - 1, 0)[:, None, None], axis=1)[:, 0]
  return newest if last is None else jnp.where(count[:, None] > 0, newest, last), stream


def _checked(tokens: TokenIds, stream: Stream) -> jax.Array:
  if not isinstance(stream, Stream):
    raise ValueError(f"stream: got {type(stream).__name__}, expected what init returned")
  tokens, batch = jnp.asarray(tokens), len(stream.seen)
  if tokens.ndim != 2 or tokens.shape[0] != batch or not tokens.shape[1]:
    raise ValueError(
      f"tokens: got shape {tokens.shape}, expected [{batch}, tokens] with at least one token"
    )
  return tokens
