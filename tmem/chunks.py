"""Tokens into chunks and back: ragged ends, token masks, and tokens that wait for their chunk."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from tmem.cell import MemoryState
from tmem.typing import Mask, Tokens


class Chunks(NamedTuple):
  """Consecutive tokens, `chunk_size` at a time.

  Attributes:
    tokens: [batch, chunks, chunk_size, features], zeros where no token is.
    real: [batch, chunks, chunk_size] bool, or None if every chunk holds a token and masks
      make no difference.
    complete: [batch, chunks] bool, chunks of which every position has been seen, or None.
  """

  tokens: jax.Array
  real: jax.Array | None
  complete: jax.Array | None


def split(x: Tokens, mask: Mask | None, chunk_size: int) -> Chunks:
  """Chunks counted from the first token of `x`; the last one is zero-padded."""
  if mask is None:
    return Chunks(_fold(x, chunk_size), None, None)
  return Chunks(_fold(jnp.where(mask[..., None], x, 0), chunk_size), _fold(mask, chunk_size), None)


def join(tokens: jax.Array, length: int) -> Tokens:
  """[batch, chunks, chunk_size, features] back to [batch, length, features]."""
  batch, count, size, features = tokens.shape
  return tokens.reshape(batch, count * size, features)[:, :length]


def empty_pending(state: MemoryState, chunk_size: int, features: int, dtype) -> MemoryState:
  """`state` with room for the tokens of an unfinished chunk, none of which waits yet."""
  batch = state.hidden.shape[0]
  return state._replace(
    pending=jnp.zeros((batch, chunk_size - 1, features), dtype),
    pending_mask=jnp.zeros((batch, chunk_size - 1), bool),
    fill=jnp.zeros((batch,), jnp.int32),
  )


def split_after_pending(
  x: Tokens, mask: Mask | None, state: MemoryState, chunk_size: int
) -> tuple[Chunks, MemoryState]:
  """Chunks that begin with the tokens waiting in `state`, and the state's waiting tokens after `x`.

  Every row has its own number of waiting tokens; the shapes depend on none of them.
  """
  length, batch = x.shape[1], x.shape[0]
  if mask is None:
    mask = jnp.ones((batch, length), bool)
  tokens = jnp.concatenate([state.pending, jnp.where(mask[..., None], x, 0)], axis=1)
  real = jnp.concatenate([state.pending_mask, mask], axis=1)

  count = (length + 2 * chunk_size - 2) // chunk_size
  room = count * chunk_size
  start = chunk_size - 1 - state.fill
  chunks = Chunks(
    _fold(take_rows(_pad_right(tokens, room), start, room), chunk_size),
    _fold(take_rows(_pad_right(real, room), start, room), chunk_size),
    _range(count, 1) * chunk_size <= (state.fill + length)[:, None],
  )

  fill = (state.fill + length) % chunk_size
  waits = _range(chunk_size - 1) >= (chunk_size - 1 - fill)[:, None]
  newest = tokens.shape[1] - (chunk_size - 1)
  state = state._replace(
    pending=jnp.where(waits[..., None], tokens[:, newest:], 0),
    pending_mask=waits & real[:, newest:],
    fill=fill,
  )
  return chunks, state


def take_rows(a: jax.Array, start: jax.Array, length: int) -> jax.Array:
  """From each row of [batch, positions, ...] `length` positions, beginning at `start[row]`."""
  return jax.vmap(lambda row, s: jax.lax.dynamic_slice_in_dim(row, s, length))(a, start)


def _range(count: int, start: int = 0) -> jax.Array:
  return jnp.arange(start, start + count, dtype=jnp.int32)  # the type of `fill`, in 64 bits too


def _fold(a: jax.Array, chunk_size: int) -> jax.Array:
  padded = _pad_right(a, -a.shape[1] % chunk_size)
  count = padded.shape[1] // chunk_size
  return padded.reshape(a.shape[0], count, chunk_size, *a.shape[2:])


def _pad_right(a: jax.Array, count: int) -> jax.Array:
  return jnp.pad(a, [(0, 0), (0, count), *[(0, 0)] * (a.ndim - 2)])
