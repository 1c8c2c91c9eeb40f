"""What every memory of a stream does alike: checks, chunks, masks, and tokens that wait."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from tmem import chunks
from tmem.config import TAILS, check_choice, check_int
from tmem.layout import checked_reset
from tmem.scopes import MEMORY, scoped
from tmem.typing import Mask, Tokens

_KERNEL = nnx.initializers.lecun_normal()


class RecurrentMemory(nnx.Module):
  """A memory that a stream of tokens writes to and reads from, chunk by chunk.

  The module holds parameters only; the state is a value that goes in and comes out. A memory of
  its own kind gives the class of its state, the empty one, and what chunks do to it.

  Attributes:
    config: with `chunk_size`, `tail` and `dtype`.
    features: size of a token.
    State: class of the state, a NamedTuple that ends with the fields `pending`, `pending_mask`
      and `fill` of `tmem.chunks`.
  """

  State: type

  def __init__(self, config: Any, features: int):
    check_int("features", features)
    self.config = config
    self.features = features

  def _linear(
    self,
    inputs: int,
    outputs: int,
    rngs: nnx.Rngs,
    dtype: Any = None,
    bias: float = 0.0,
    kernel: Callable = _KERNEL,
  ) -> nnx.Linear:
    """A projection in the memory's types; `bias` and `kernel` say how it starts."""
    return nnx.Linear(
      inputs,
      outputs,
      dtype=self.config.dtype if dtype is None else dtype,
      param_dtype=self.config.param_dtype,
      kernel_init=kernel,
      bias_init=nnx.initializers.constant(bias),
      rngs=rngs,
    )

  @abstractmethod
  def empty(self, batch_size: int) -> NamedTuple:
    """The state of `batch_size` streams that have seen nothing and hold no tokens back."""

  @abstractmethod
  def run(self, parts: chunks.Chunks, state: NamedTuple) -> tuple[jax.Array, NamedTuple]:
    """Reads for and writes every chunk in turn.

    Args:
      parts: the chunks.
      state: the state before them.

    Returns:
      `(y, state)`: y broadcastable to [batch, chunks, chunk_size, features] in `config.dtype`.
    """

  def init_state(self, batch_size: int, tail: str | None = None) -> NamedTuple:
    """The empty memory of `batch_size` streams.

    Args:
      batch_size: rows, >= 1.
      tail: "hold" adds room for the tokens of an unfinished chunk; None means `config.tail`.

    Returns:
      A state whose arrays have `batch_size` rows.

    Raises:
      ValueError: on a batch size below 1 or an unknown tail.
    """
    check_int("batch_size", batch_size)
    state = self.empty(batch_size)
    return self._with_room(state, batch_size) if self._tail(tail) == "hold" else state

  @scoped(MEMORY)
  def __call__(
    self,
    x: Tokens,
    state: NamedTuple,
    mask: Mask | None = None,
    *,
    tail: str | None = None,
    count: jax.Array | None = None,
    reset: jax.Array | None = None,
  ) -> tuple[Tokens, NamedTuple]:
    """Reads the memory for every token and writes the tokens into it, chunk by chunk.

    A token reads what chunks before its own have written, so no token influences an earlier
    one.

    Args:
      x: [batch, tokens, features], floating.
      state: the state before `x`. Tokens that wait in it come first.
      mask: [batch, tokens] bool, False on tokens that do not exist: they change nothing,
        whatever they contain, and their `y` is zero. None: all are real.
      tail: "commit" writes the unfinished last chunk, "hold" keeps its tokens in the state;
        None means `config.tail`.
      count: [batch] int32, how many of a row's tokens there are, for `tail="hold"`; None: all.
        Those behind are not even positions, as masked tokens are: the stream goes on in front.
      reset: [batch, tokens] bool, True on the first token of a document; None: none begins. From
        there on the memory is empty until the document itself has written; in front of it nothing
        changes.

    Returns:
      `(y, state)`: y [batch, tokens, features] in `config.dtype`, and the state after `x`.

    Raises:
      ValueError: naming the argument, what came and what is right.
    """
    tail = self._tail(tail)
    x = jnp.asarray(x)
    mask = None if mask is None else jnp.asarray(mask)
    self._check(x, state, mask)
    if tail == "hold" and state.pending is None:
      state = self._with_room(state, x.shape[0])
    x = x.astype(self.config.dtype)
    if count is not None and tail != "hold":
      raise ValueError("count: given, but only with tail='hold' does a stream go on")
    reset = checked_reset(reset, x.shape[:2])
    parts, state = chunks.split(x, mask, state, self.config.chunk_size, tail, count, reset)
    y, state = self.run(parts, state)
    if parts.real is not None:
      y = jnp.where(jnp.any(parts.real, -1)[..., None, None], y, 0)
    y = chunks.join(jnp.broadcast_to(y, parts.tokens.shape), parts.offset, x.shape[1])
    return (y if mask is None else jnp.where(mask[..., None], y, 0)), state

  def _with_room(self, state: NamedTuple, batch_size: int) -> NamedTuple:
    config = self.config
    return chunks.empty_pending(state, batch_size, config.chunk_size, self.features, config.dtype)

  def _tail(self, tail: str | None) -> str:
    tail = self.config.tail if tail is None else tail
    check_choice("tail", tail, TAILS)
    return tail

  def _check(self, x: Tokens, state: NamedTuple, mask: Mask | None) -> None:
    if x.ndim != 3 or x.shape[-1] != self.features:
      raise ValueError(f"x: got shape {x.shape}, expected [batch, tokens, {self.features}]")
    if not jnp.issubdtype(x.dtype, jnp.floating):
      raise ValueError(f"x: got dtype {x.dtype}, expected a floating type")
    self._check_state(state, x.shape[0])
    check_mask(mask, x.shape[:2])

  def _check_state(self, state: NamedTuple, batch_size: int) -> None:
    """Raises ValueError unless `state` is one of this memory's, naming the field."""
    kind = self.State
    if not isinstance(state, kind):
      raise ValueError(
        f"state: got {type(state).__name__}, expected a {kind.__name__} (init_state)"
      )
    holds = any(getattr(state, name) is not None for name in chunks.PENDING)
    right = jax.eval_shape(lambda: self.init_state(batch_size, tail="hold" if holds else "commit"))
    for name, expected in right._asdict().items():
      value = getattr(state, name)
      if _type_of(value) != _type_of(expected):
        raise ValueError(
          f"state.{name}: got {_type_of(value)}, expected {_type_of(expected)} for a batch of"
          f" {batch_size} and {self.config}"
        )


def check_mask(mask: Mask | None, shape: tuple[int, ...]) -> None:
  """Raises ValueError unless `mask` is None or bool of `shape`."""
  if mask is not None and (mask.shape != shape or mask.dtype != jnp.bool_):
    raise ValueError(f"mask: got {mask.dtype}{list(mask.shape)}, expected bool{list(shape)}")


def _type_of(array: jax.Array | None) -> str | None:
  return None if array is None else f"{array.dtype}{list(array.shape)}"
