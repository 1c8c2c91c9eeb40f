"""Streams of tokens: prompts of any length, then token after token, at a constant cost.

  stream = streaming.init(model, batch_size=1)
  logits, stream = streaming.prefill(model, prompt, stream)
  logits, stream = streaming.step(model, next_tokens, stream)

A stream is a value, `tmem.decoder.Stream`: of the same structure, shapes and types after any call,
with a row for each stream in every array.
"""

import functools

import jax
import jax.numpy as jnp
from flax import nnx

from tmem.decoder import Stream
from tmem.models import LanguageModel, checked_count
from tmem.typing import Logits, TokenIds

BLOCK = 64  # tokens of a prompt worked on at once


def init(model: LanguageModel, batch_size: int) -> Stream:
  """What `batch_size` streams carry before their first token.

  Raises:
    ValueError: if the model is no causal language model, or `batch_size` no integer of at least 1.
  """
  if not isinstance(model, LanguageModel):
    raise ValueError(f"model: got {type(model).__name__}, expected a LanguageModel")
  return model.init_stream(batch_size)


def step(model: LanguageModel, tokens: TokenIds, stream: Stream) -> tuple[Logits, Stream]:
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
  return _onward(*nnx.split(model), tokens, stream, count)


def prefill(
  model: LanguageModel, tokens: TokenIds, stream: Stream, lengths: jax.Array | None = None
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
  graphdef, params = nnx.split(model)
  last = None
  for start in range(0, longest, BLOCK):
    block = jax.lax.slice_in_dim(tokens, start, start + BLOCK, axis=1)
    last, stream = _block_onward(graphdef, params, block, stream, lengths - start, last)
  return last, stream


@functools.partial(jax.jit, static_argnums=0)
def _onward(graphdef, params, tokens, stream, count):
  return nnx.merge(graphdef, params).onward(tokens, stream, count)


@functools.partial(jax.jit, static_argnums=0)
def _block_onward(graphdef, params, tokens, stream, left, last):
  """A block of prompts of which `left` tokens are left; `last` is kept where none is."""
  count = jnp.clip(left, 0, tokens.shape[1])
  logits, stream = nnx.merge(graphdef, params).onward(tokens, stream, count)
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
