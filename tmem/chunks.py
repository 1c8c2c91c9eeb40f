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
  """

  tokens: jax.Array
  real: jax.Array | None
  complete: jax.Array | None
  offset: jax.Array | None

  def written(self) -> jax.Array | None:
    """[batch, chunks] bool, chunks that change the memory; None if all do."""
    if self.real is None:
      return self.complete
    any_real = jnp.any(self.real, axis=-1)
    return any_real if self.complete is None else self.complete & any_real


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

  Returns:
    `(chunks, state)`: the state with the tokens that wait after `x`.
  """
  batch, length, features = x.shape
  if count is not None:
    there = _range(length) < count[:, None]
    mask = there if mask is None else mask & there
  if mask is not None:
    x = jnp.where(mask[..., None], x, 0)
  if state.pending is None:
    real = None if mask is None else in_blocks(mask, chunk_size)
    return Chunks(in_blocks(x, chunk_size), real, None, None), state

  count = jnp.full((batch,), length, jnp.int32) if count is None else count
  mask = jnp.ones((batch, length), bool) if mask is None else mask
  tokens = jnp.concatenate([state.pending, x], axis=1)
  real = jnp.concatenate([state.pending_mask, mask], axis=1)
  blocks = (length + 2 * chunk_size - 2) // chunk_size
  room = blocks * chunk_size
  start = chunk_size - 1 - state.fill
  complete = _range(blocks, 1) * chunk_size <= (state.fill + count)[:, None]
  chunks = Chunks(
    in_blocks(take_rows(_pad_right(tokens, room), start, room), chunk_size),
    in_blocks(take_rows(_pad_right(real, room), start, room), chunk_size),
    complete if tail == "hold" else None,
    state.fill,
  )
  if tail == "commit":
    return chunks, empty_pending(state, batch, chunk_size, features, x.dtype)

  fill = (state.fill + count) % chunk_size
  waits = _range(chunk_size - 1) >= (chunk_size - 1 - fill)[:, None]
  state = state._replace(
    pending=jnp.where(waits[..., None], take_rows(tokens, count, chunk_size - 1), 0),
    pending_mask=waits & take_rows(real, count, chunk_size - 1),
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
