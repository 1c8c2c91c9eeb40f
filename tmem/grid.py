"""The voxel grid: where cells lie, the Gaussian soft write and the multilinear read."""

import functools
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from tmem.rows import pick_rows
from tmem.typing import Coords, Features, Grid, Spread, Volume

WIDEST = 1e9  # spread that is told apart from wider ones


def cell_positions(size: int, dtype=jnp.float32) -> jax.Array:
  """Positions of the `size` cell centres of one axis in [-1, 1]; a single cell sits at -1."""
  return jnp.linspace(-1.0, 1.0, size, dtype=dtype)


def nearest_cell(coords: Coords, grid: Grid) -> Coords:
  """The centre of the cell nearest to each position; no gradient passes.

  Args:
    coords: [..., axes] in [-1, 1], last grid axis first; values outside are clamped.
    grid: cells per axis.

  Returns:
    [..., axes], like `coords`.

  Raises:
    ValueError: if `coords` has another number of axes than the grid.
  """
  _check_axes(coords, grid)
  last = jnp.asarray(grid[::-1], coords.dtype) - 1
  index = jnp.round((jnp.clip(coords, -1.0, 1.0) + 1.0) * (0.5 * last))
  return jax.lax.stop_gradient(index * (2.0 / jnp.maximum(last, 1.0)) - 1.0)


def gaussian_factors(coords: Coords, spread: Spread, grid: Grid) -> tuple[jax.Array, ...]:
  """The soft write's Gaussian as one factor per grid axis.

  Args:
    coords: [..., axes], centre of the write, last grid axis first.
    spread: [...], standard deviation in coordinate units.
    grid: cells per axis.

  Returns:
    One array [..., n] for each grid axis, in grid order; the Gaussian at a cell is the
    product of its factors.

  Raises:
    ValueError: if `coords` has another number of axes than the grid.

  Reference: arXiv 2605.27686, Gaussian soft write (it is separable over the axes).
  """
  _check_axes(coords, grid)
  return gaussian_factors_at([cell_positions(size, coords.dtype) for size in grid], coords, spread)


def gaussian_factors_at(
  positions: Sequence[jax.Array], coords: Coords, spread: Spread
) -> tuple[jax.Array, ...]:
  """`gaussian_factors` at given positions, [..., n] for each axis, in place of a grid's cells."""
  # So wide, a Gaussian is 1 everywhere; wider still, its square would overflow.
  precision = 1.0 / (2.0 * jnp.square(jnp.minimum(spread, WIDEST)) + 1e-6)
  return tuple(
    jnp.exp(-jnp.square(own - coords[..., -1 - axis, None]) * precision[..., None])
    for axis, own in enumerate(positions)
  )


def outer_product(factors: tuple[jax.Array, ...]) -> Volume:
  """Multiplies per-axis factors [..., n, channels] into a volume [..., *grid, channels]."""
  volume = factors[0]
  for axes, factor in enumerate(factors[1:], start=1):
    *lead, size, channels = factor.shape
    volume = volume[..., None, :] * factor.reshape(*lead, *(1,) * axes, size, channels)
  return volume


def outer_product_at(factors: tuple[jax.Array, ...], cells: jax.Array) -> jax.Array:
  """`outer_product` at some cells only.

  Args:
    factors: one array [..., n, channels] per axis.
    cells: [..., m] int32, indices into the flattened grid.

  Returns:
    [..., m, channels].
  """
  index = jnp.unravel_index(cells, tuple(factor.shape[-2] for factor in factors))
  picked = [
    jnp.take_along_axis(factor, i[..., None], axis=-2, mode="clip")
    for factor, i in zip(factors, index, strict=True)
  ]
  return functools.reduce(jnp.multiply, picked)


def gaussian_volume(content: Features, coords: Coords, spread: Spread, grid: Grid) -> Volume:
  """The write volume: `content` spread as a Gaussian around `coords`.

  Args:
    content: [batch, channels].
    coords: [batch, axes] in [-1, 1], last grid axis first.
    spread: [batch], standard deviation in coordinate units.
    grid: cells per axis.

  Returns:
    [batch, *grid, channels]: `content * exp(-|position - coords|² / (2 spread² + 1e-6))`.

  Raises:
    ValueError: if `coords` has another number of axes than the grid, or the arguments have
      different numbers of rows.

  Reference: arXiv 2605.27686, Gaussian soft write.
  """
  if content.ndim != 2 or coords.shape[:-1] != content.shape[:1]:
    raise ValueError(
      f"content, coords: got shapes {content.shape} and {coords.shape}, expected"
      " [batch, channels] and [batch, axes]"
    )
  if spread.shape != content.shape[:1]:
    raise ValueError(f"spread: got shape {spread.shape}, expected {content.shape[:1]}")
  mask = outer_product(tuple(f[..., None] for f in gaussian_factors(coords, spread, grid)))
  return mask.astype(content.dtype) * content.reshape(
    content.shape[0], *(1,) * len(grid), content.shape[1]
  )


def corner_weights(coords: Coords, grid: Grid) -> tuple[jax.Array, jax.Array]:
  """The cells around each position and their multilinear weights.

  Args:
    coords: [..., axes] in [-1, 1], last grid axis first; values outside are clamped.
    grid: cells per axis.

  Returns:
    `(cells, weights)`, both [..., corners]: int32 indices into the flattened grid, and weights
    that sum to one. An axis of several cells doubles the corners. If none has more than two, the
    corners are all cells in their order.

  Raises:
    ValueError: if `coords` has another number of axes than the grid.
  """
  _check_axes(coords, grid)
  cells = jnp.zeros((*coords.shape[:-1], 1), jnp.int32)
  weights = jnp.ones((*coords.shape[:-1], 1), coords.dtype)
  for axis, size in enumerate(grid):
    if size == 1:
      continue
    position = jnp.clip((coords[..., -1 - axis] + 1.0) * (0.5 * (size - 1)), 0.0, size - 1.0)
    low = jax.lax.stop_gradient(jnp.clip(jnp.floor(position), 0.0, size - 2.0))
    upper = position - low
    index = low.astype(jnp.int32)
    pair = jnp.stack([index, index + 1], axis=-1)
    cells = _all_pairs(jnp.add, cells, pair * math.prod(grid[axis + 1 :]))
    weights = _all_pairs(jnp.multiply, weights, jnp.stack([1.0 - upper, upper], axis=-1))
  return cells, weights


def _all_pairs(combine, left: jax.Array, right: jax.Array) -> jax.Array:
  """Combines every entry of the last axis of `left` with every one of `right`."""
  pairs = combine(left[..., :, None], right[..., None, :])
  return pairs.reshape(*left.shape[:-1], left.shape[-1] * right.shape[-1])


def cell_weights(corners: jax.Array, weights: jax.Array, cells: int) -> jax.Array:
  """The weights of `corner_weights` at every one of `cells` cells: [..., cells], most of them 0."""
  own = corners[..., None] == jnp.arange(cells, dtype=corners.dtype)
  return jnp.sum(jnp.where(own, weights[..., None], 0), axis=-2)


def read_corners(volume: Volume, cells: jax.Array, weights: jax.Array) -> jax.Array:
  """Reads `volume` at the corners that `corner_weights` found.

  Args:
    volume: [batch, *grid, channels].
    cells: [batch, reads, corners] int32, indices into the flattened grid.
    weights: [batch, reads, corners].

  Returns:
    [batch, reads, channels] in the dtype of `volume`.
  """
  batch, *_, channels = volume.shape
  flat = volume.reshape(batch, -1, channels)
  values = pick_rows(flat, cells.reshape(batch, -1))
  weighted = values.reshape(*cells.shape, channels) * weights[..., None].astype(volume.dtype)
  return jnp.sum(weighted, axis=2)


def linear_sample(volume: Volume, coords: Coords) -> Features:
  """Reads `volume` at continuous positions by multilinear interpolation.

  Args:
    volume: [batch, *grid, channels].
    coords: [batch, axes] in [-1, 1], last grid axis first (x, y, z); ±1 are the centres of
      the outermost cells. Values outside are clamped to the border.

  Returns:
    [batch, channels] in the dtype of `volume`.

  Raises:
    ValueError: if `coords` has another number of axes than the grid or of rows than `volume`,
      or if `volume` is not floating.

  Reference: arXiv 2605.27686, continuous read.
  """
  if not jnp.issubdtype(volume.dtype, jnp.floating):
    raise ValueError(f"volume: got dtype {volume.dtype}, expected a floating type")
  if coords.ndim != 2 or coords.shape[0] != volume.shape[0]:
    raise ValueError(f"coords: got shape {coords.shape}, expected [{volume.shape[0]}, axes]")
  cells, weights = corner_weights(coords[:, None], volume.shape[1:-1])
  return read_corners(volume, cells, weights)[:, 0]


def _check_axes(coords: Coords, grid: Grid) -> None:
  if coords.shape[-1] != len(grid):
    raise ValueError(
      f"coords: the last axis has {coords.shape[-1]} entries (shape {coords.shape}), but the"
      f" grid {tuple(grid)} has {len(grid)} axes"
    )
