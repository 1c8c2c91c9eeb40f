"""Tokens into chunks and back: ragged ends, token masks, and tokens that wait for their chunk."""

from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from tmem.typing import Mask, Tokens


class Chunks(NamedTuple):
  """Consecutive tokens, `chunk_size` at a time.

  Attributes:
    tokens: [batch, chunks, chunk_size, features], zeros where no token is.
    real: [batch, chunks, chunk_size] bool, which positions hold a real token; None if every
      chunk has one.
    complete: [batch, chunks] bool, chunks to be written because every position has been seen;
      None if all are written.
    offset: [batch] int32, positions in front that belong to earlier calls; None for none.
    reset: [batch, chunks, chunk_size] bool, True on the first token of a document; None if none
      begins.
  """

  tokens: jax.Array
  real: jax.Array | None
  complete: jax.Array | None
  offset: jax.Array | None
  reset: jax.Array | None

  def fresh(self) -> jax.Array | None:
    """[batch, chunks, chunk_size] bool, tokens of documents that begin in their chunk.

    Their documents have not written yet, so that for them the memory is empty.
    """
    return None if self.reset is None else jnp.cumsum(self.reset, axis=-1) > 0

  def cleared(self) -> jax.Array | None:
    """[batch, chunks] bool, chunks before whose write the memory is emptied; None: none is."""
    return None if self.reset is None else jnp.any(self.reset, axis=-1)

  def contents(self) -> tuple[jax.Array, jax.Array | None]:
    """What is written: the real tokens of the document that goes on behind the chunk.

    Returns:
      `(tokens, which)`: [batch, chunks, chunk_size, features], zeros where none is; and
      [batch, chunks, chunk_size] bool, where one is; None if every chunk has one everywhere that
      `tokens` has.
    """
    if self.reset is None:
      return self.tokens, self.real
    begun = jnp.cumsum(self.reset, axis=-1)
    own = begun == begun[..., -1:]
    own = own if self.real is None else own & self.real
    return jnp.where(own[..., None], self.tokens, 0), own

  def written(self) -> jax.Array | None:
    """[batch, chunks] bool, chunks that change the memory; None if all do."""
    _, own = self.contents()
    if own is None:
      return self.complete
    any_own = jnp.any(own, axis=-1)
    return any_own if self.complete is None else self.complete & any_own


# Fields at the end of every memory's state, for the tokens of an unfinished chunk.
PENDING = ("pending", "pending_mask", "fill")
State = TypeVar("State", bound=NamedTuple)


def empty_pending(state: State, batch_size: int, chunk_size: int, features: int, dtype) -> State:
  """`state` with room for the tokens of an unfinished chunk, none of which waits yet."""
  return state._replace(
    pending=jnp.zeros((batch_size, chunk_size - 1, features), dtype),
    pending_mask=jnp.zeros((batch_size, chunk_size - 1), bool),
    fill=jnp.zeros((batch_size,), jnp.int32),
  )


def split(
  x: Tokens,
  mask: Mask | None,
  state: State,
  chunk_size: int,
  tail: str,
  count: jax.Array | None = None,
  reset: jax.Array | None = None,
) -> tuple[Chunks, State]:
  """Cuts tokens into chunks, behind those that wait in the state.

  Every row has its own number of waiting tokens; the shapes depend on none of them.

  Args:
    x: [batch, tokens, features].
    mask: [batch, tokens] bool, or None.
    state: the state before `x`, with the fields `PENDING`; while `pending` is None nothing
      waits, and nothing can be held.
    chunk_size: tokens per chunk.
    tail: "commit" or "hold", as in `MemoryConfig`.
    count: [batch] int32, how many of a row's tokens there are; None: all. For "hold" alone.
    reset: [batch, tokens] bool, True on the first token of a document, or None.

  Returns:
    `(chunks, state)`: the state with the tokens that wait after `x`.
  """
  batch, length, features = x.shape
  if count is not None:
    there = _range(length) < count[:, None]
    mask = there if mask is None else mask & there
    reset = None if reset is None else reset & there
  if mask is not None:
    x = jnp.where(mask[..., None], x, 0)
  if state.pending is None:
    real, reset = (None if a is None else in_blocks(a, chunk_size) for a in (mask, reset))
    return Chunks(in_blocks(x, chunk_size), real, None, None, reset), state

  count = jnp.full((batch,), length, jnp.int32) if count is None else count
  mask = jnp.ones((batch, length), bool) if mask is None else mask
  tokens = jnp.concatenate([state.pending, x], axis=1)
  real = jnp.concatenate([state.pending_mask, mask], axis=1)
  blocks = (length + 2 * chunk_size - 2) // chunk_size
  room = blocks * chunk_size
  start = chunk_size - 1 - state.fill

  def cut(a):
    return in_blocks(take_rows(_pad_right(a, room), start, room), chunk_size)

  if reset is not None:
    reset = jnp.pad(reset, [(0, 0), (chunk_size - 1, 0)])
  complete = _range(blocks, 1) * chunk_size <= (state.fill + count)[:, None]
  chunks = Chunks(
    cut(tokens),
    cut(real),
    complete if tail == "hold" else None,
    state.fill,
    None if reset is None else cut(reset),
  )
  if tail == "commit":
    return chunks, empty_pending(state, batch, chunk_size, features, x.dtype)

  if reset is not None:  # of an ended document nothing will be written
    begun = jnp.cumsum(reset, axis=1)
    real &= begun == begun[:, -1:]
  fill = (state.fill + count) % chunk_size
  waits = _range(chunk_size - 1) >= (chunk_size - 1 - fill)[:, None]
  waits &= take_rows(real, count, chunk_size - 1)
  state = state._replace(
    pending=jnp.where(waits[..., None], take_rows(tokens, count, chunk_size - 1), 0),
    pending_mask=waits,
    fill=fill,
  )
  return chunks, state


def join(tokens: jax.Array, offset: jax.Array | None, length: int) -> Tokens:
  """The inverse of `split` for one call's own tokens.

  Args:
    tokens: [batch, chunks, chunk_size, features].
    offset: as in `Chunks`.
    length: number of tokens of the call.

  Returns:
    [batch, length, features].
  """
  batch, count, size, features = tokens.shape
  flat = tokens.reshape(batch, count * size, features)
  return flat[:, :length] if offset is None else take_rows(flat, offset, length)


def take_rows(a: jax.Array, start: jax.Array, length: int) -> jax.Array:
  """From each row of [batch, positions, ...] `length` positions, beginning at `start[row]`."""
  return jax.vmap(lambda row, s: jax.lax.dynamic_slice_in_dim(row, s, length))(a, start)


def _range(count: int, start: int = 0) -> jax.Array:
  return jnp.arange(start, start + count, dtype=jnp.int32)  # the type of `fill`, in 64 bits too


def in_blocks(a: jax.Array, size: int) -> jax.Array:
  """[batch, tokens, ...] -> [batch, blocks, size, ...], the last block padded with zeros."""
  padded = _pad_right(a, -a.shape[1] % size)
  count = padded.shape[1] // size
  return padded.reshape(a.shape[0], count, size, *a.shape[2:])


def _pad_right(a: jax.Array, count: int) -> jax.Array:
  return jnp.pad(a, [(0, 0), (0, count), *[(0, 0)] * (a.ndim - 2)])
