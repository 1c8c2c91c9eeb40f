"""The published gates on a state that moves: for scenes that move, such as video."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from tmem.cell import MemoryState, StepInputs, lstm_update, memory_step, write_volume
from tmem.config import MemoryConfig
from tmem.convolution import FactorisedConv, conv_shapes, depthwise_of_parts, factorised_conv
from tmem.grid import cell_positions, corner_weights, read_corners
from tmem.scopes import RECURRENCE
from tmem.typing import Coords, Grid, Volume

REACH = 1.0  # cells per axis that contents move at most in a step


class FlowParams(NamedTuple):
  """Parameters of `GateParams`, and of the displacement of every cell.

  Attributes:
    depthwise: [axes, 3, 2C], one 3-tap kernel per grid axis and channel.
    depthwise_bias: [axes, 2C].
    pointwise: [2C, 4C], columns in the order i, f, o, g.
    pointwise_bias: [4C].
    flow: [2C, axes], from the depthwise convolutions of [write volume; hidden] to a displacement.
    flow_bias: [axes].
  """

  depthwise: jax.Array
  depthwise_bias: jax.Array
  pointwise: jax.Array
  pointwise_bias: jax.Array
  flow: jax.Array
  flow_bias: jax.Array

  def shapes(self, axes: int, channels: int) -> dict[str, tuple[int, ...]]:
    """See `tmem.cell.Gates`."""
    own = {"flow": (2 * channels, axes), "flow_bias": (axes,)}
    return conv_shapes(axes, 2 * channels, 4 * channels) | own

  def update(self, inputs: StepInputs, hidden: Volume, cell: Volume) -> tuple[Volume, Volume]:
    """See `tmem.cell.Gates`: hidden and cell are warped first, then written as published."""
    gates, moves = self._moved(inputs, hidden)
    return lstm_update(gates, warp(cell, moves))

  def preactivations(self, inputs: StepInputs, hidden: Volume) -> Volume:
    """See `tmem.cell.Gates`; in the cells that contents have moved to."""
    return self._moved(inputs, hidden)[0]

  def _moved(self, inputs: StepInputs, hidden: Volume) -> tuple[Volume, Coords]:
    """The gates on the state that has moved, and where each cell's contents come from."""
    volume = write_volume(inputs, hidden)
    moves = self._displacement(jnp.stack([volume, hidden], axis=-2))
    both = jnp.stack([volume, warp(hidden, moves)], axis=-2)
    return factorised_conv(both, *self[:4], dtype=inputs.content.dtype), moves

  def _displacement(self, both: Volume) -> Coords:
    """Where each cell's contents come from: [batch, *grid, axes], in cells, last axis first."""
    filtered = depthwise_of_parts(both, self.depthwise, self.depthwise_bias)
    flow = self.flow.astype(both.dtype).reshape(*both.shape[-2:], -1)
    moves = jnp.tensordot(filtered, flow, axes=2)
    return REACH * jnp.tanh(moves + self.flow_bias.astype(both.dtype))


class FlowConv(FactorisedConv):
  """The module that owns `FlowParams`; nothing moves at first."""

  def __init__(self, config: MemoryConfig, *, rngs: nnx.Rngs):
    super().__init__(config, 2 * config.channels, rngs=rngs)
    axes, dtype = len(config.grid), config.param_dtype
    self.flow = nnx.Param(jnp.zeros((2 * config.channels, axes), dtype))
    self.flow_bias = nnx.Param(jnp.zeros(axes, dtype))

  def params(self) -> FlowParams:
    """The arrays, as the functional core takes them."""
    return FlowParams(*self.arrays(), self.flow[...], self.flow_bias[...])


def warp(volume: Volume, moves: Coords) -> Volume:
  """Backward warp: each cell takes what lies where its displacement points.

  Args:
    volume: [batch, *grid, channels].
    moves: [batch, *grid, axes] in cells, last grid axis first; beyond the border is the border.

  Returns:
    Like `volume`, read by multilinear interpolation.
  """
  grid = volume.shape[1:-1]
  cell = jnp.asarray([2.0 / max(size - 1, 1) for size in grid[::-1]], moves.dtype)
  coords = _positions(grid, moves.dtype) + moves * cell
  at = corner_weights(coords.reshape(len(volume), -1, len(grid)), grid)
  return read_corners(volume, *at).reshape(volume.shape)


def flow_scan(
  params: FlowParams, state: MemoryState, inputs: StepInputs
) -> tuple[MemoryState, jax.Array]:
  """Same contract as `tmem.scan.plain_scan`; the backward pass keeps the states alone."""

  def step(state, chunk):
    return memory_step(params, state, chunk)

  with jax.named_scope(RECURRENCE):
    return jax.lax.scan(jax.checkpoint(step), state, inputs)


def _positions(grid: Grid, dtype) -> Coords:
  """Centres of all cells: [*grid, axes], last axis first."""
  axes = jnp.meshgrid(*(cell_positions(size, dtype) for size in grid), indexing="ij")
  return jnp.stack(axes[::-1], axis=-1)
