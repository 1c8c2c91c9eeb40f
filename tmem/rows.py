"""Rows of a state by their places: [batch, cells, ...] at [batch, m].

The batch is a batch to XLA, too, and not one more index to look up: so a state that is spread over
devices by its batch is read and written where it lies.
"""

import jax
import jax.numpy as jnp


def take_rows(rows: jax.Array, places: jax.Array) -> jax.Array:
  """[batch, m, ...] at `places` [batch, m]; zeros where a place is beyond the last."""
  return jax.vmap(lambda rows, at: rows.at[at].get(mode="fill", fill_value=0))(rows, places)


def pick_rows(rows: jax.Array, places: jax.Array) -> jax.Array:
  """[batch, m, C] at `places` [batch, m], all of them within the rows."""
  return jnp.take_along_axis(rows, places[..., None], axis=1, mode="promise_in_bounds")


def put_rows(
  rows: jax.Array, places: jax.Array, new: jax.Array, part: int | None = None
) -> jax.Array:
  """`rows` with `new` [batch, m, ...] at `places` [batch, m], within the rows and all different.

  `part` says which index of the axis behind the cells `new` is for; None: for all.
  """

  def put(rows, at, new):
    own = rows.at[at] if part is None else rows.at[at, part]
    return own.set(new, unique_indices=True, mode="promise_in_bounds")

  return jax.vmap(put)(rows, places, new)


def add_rows(rows: jax.Array, places: jax.Array, added: jax.Array) -> jax.Array:
  """`rows` plus `added` [batch, m, ...] at `places` [batch, m]; what is beyond them is dropped."""
  return jax.vmap(lambda rows, at, new: rows.at[at].add(new, mode="drop"))(rows, places, added)
