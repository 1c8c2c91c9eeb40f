"""The cells around the place of a write."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from tmem.grid import cell_positions, gaussian_factors_at
from tmem.typing import Coords, Grid, Spread, Volume


class Window(NamedTuple):
  """The cells of a window and `halo` more on each side, of which some may lie off the grid.

  Attributes:
    index: per axis [batch, n + 2 halo] int32, places of the cells on the grid's axis.
    halo: cells on each side.
    grid: cells per axis of the grid.
  """

  index: tuple[jax.Array, ...]
  halo: int
  grid: Grid

  @property
  def shape(self) -> tuple[int, ...]:
    """Cells per axis, halo included."""
    return tuple(index.shape[-1] for index in self.index)

  @property
  def inside(self) -> tuple[jax.Array, ...]:
    """Per axis [batch, n + 2 halo] bool, which of the cells are on the grid."""
    return tuple((i >= 0) & (i < n) for i, n in zip(self.index, self.grid, strict=True))

  def core(self) -> "Window":
    """The window without its halo."""
    halo = self.halo
    return Window(tuple(i[:, halo : i.shape[1] - halo] for i in self.index), 0, self.grid)

  def cut(self, volume: Volume) -> Volume:
    """The core of a volume [batch, *shape, channels]."""
    for axis, size in enumerate(self.shape, start=1):
      volume = jax.lax.slice_in_dim(volume, self.halo, size - self.halo, axis=axis)
    return volume

  def cells(self) -> jax.Array:
    """Indices into the flattened grid, [batch, cells]; -1 for a cell off the grid."""
    batch = len(self.index[0])
    cells, on_grid = jnp.zeros((batch, 1), jnp.int32), jnp.ones((batch, 1), bool)
    for index, inside, size in zip(self.index, self.inside, self.grid, strict=True):
      cells = (cells[:, :, None] * size + index[:, None]).reshape(batch, -1)
      on_grid = (on_grid[:, :, None] & inside[:, None]).reshape(batch, -1)
    return jnp.where(on_grid, cells, -1)

  def mask(self) -> jax.Array:
    """[batch, *grid] bool, True on the cells of the core."""
    within = jnp.ones((len(self.index[0]),), bool)
    for index, size in zip(self.core().index, self.grid, strict=True):
      cells = jnp.arange(size)
      own = (cells >= index[:, :1]) & (cells <= index[:, -1:])
      within = within[..., None] & own.reshape(len(own), *(1,) * (within.ndim - 1), size)
    return within

  def gaussian_factors(self, write_at: Coords, spread: Spread, dtype) -> tuple[jax.Array, ...]:
    """The soft write's Gaussian as a factor [batch, cells] per axis, zero off the grid."""
    positions = [
      cell_positions(size, write_at.dtype)[jnp.clip(index, 0, size - 1)]
      for index, size in zip(self.index, self.grid, strict=True)
    ]
    factors = gaussian_factors_at(positions, write_at, spread)
    return tuple(
      jnp.where(inside, factor, 0).astype(dtype)
      for factor, inside in zip(factors, self.inside, strict=True)
    )


def window_at(write_at: Coords, sizes: Grid, grid: Grid, halo: int = 0) -> Window:
  """The window around each place, moved by as much as the border of the grid demands.

  Args:
    write_at: [batch, axes] in [-1, 1], last grid axis first. No gradient passes: what the jump of
      a window leaves out is the tail of the write's Gaussian beyond half a window.
    sizes: cells per axis of the window; an axis with fewer cells is taken whole.
    grid: cells per axis of the grid.
    halo: cells more on each side.

  Returns:
    The window.
  """
  index = []
  for axis, (size, cells) in enumerate(zip(sizes, grid, strict=True)):
    size = min(size, cells)
    place = jax.lax.stop_gradient(write_at[:, -1 - axis] + 1.0) * (0.5 * (cells - 1))
    start = jnp.clip(jnp.round(place - 0.5 * (size - 1)), 0, cells - size).astype(jnp.int32)
    index.append(start[:, None] + jnp.arange(-halo, size + halo, dtype=jnp.int32))
  return Window(tuple(index), halo, tuple(grid))
