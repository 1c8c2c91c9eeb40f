"""Gates from a convolution over what is written alone: a recurrence that is linear in the cell."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from tmem.blocks import Drive
from tmem.cell import StepInputs, lstm_update, write_volume
from tmem.config import MemoryConfig
from tmem.convolution import (
  FactorisedConv,
  as_parts,
  conv_shapes,
  convolved_factors,
  factorised_conv,
  pointwise_mix,
  write_conv_inside,
)
from tmem.grid import gaussian_factors
from tmem.typing import Grid, Volume
from tmem.window import Window


class ParallelParams(NamedTuple):
  """Parameters of a gate convolution over the write volume (C channels).

  Attributes:
    depthwise: [axes, 3, C], one 3-tap kernel per grid axis and channel.
    depthwise_bias: [axes, C].
    pointwise: [C, 4C], columns in the order i, f, o, g.
    pointwise_bias: [4C].
  """

  depthwise: jax.Array
  depthwise_bias: jax.Array
  pointwise: jax.Array
  pointwise_bias: jax.Array

  halo = 1  # cells around a window that its gates see

  def shapes(self, axes: int, channels: int) -> dict[str, tuple[int, ...]]:
    """See `tmem.cell.Gates`."""
    return conv_shapes(axes, channels, 4 * channels)

  def update(self, inputs: StepInputs, hidden: Volume, cell: Volume) -> tuple[Volume, Volume]:
    """See `tmem.cell.Gates`."""
    return lstm_update(self.preactivations(inputs, hidden), cell)

  def preactivations(self, inputs: StepInputs, hidden: Volume) -> Volume:
    """See `tmem.cell.Gates`; of `hidden` the shape alone matters."""
    written = write_volume(inputs, hidden)[..., None, :]
    return factorised_conv(written, *self, dtype=inputs.content.dtype)

  def window_preactivations(self, inputs: StepInputs, hidden: Volume, window: Window) -> Volume:
    """See `tmem.windowed.WindowGates`."""
    written = write_conv_inside(
      window.gaussian_factors(inputs.write_at, inputs.spread, hidden.dtype),
      inputs.content.astype(hidden.dtype),
      window.inside,
      self.depthwise.astype(hidden.dtype),
      self.depthwise_bias.astype(hidden.dtype),
    )
    dtype = inputs.content.dtype
    return pointwise_mix(written[..., None, :], self.pointwise, self.pointwise_bias, dtype)

  def linear(self, inputs: StepInputs, grid: Grid, dtype) -> tuple[tuple["MatrixGate", ...], Drive]:
    """See `tmem.diagonal.DiagonalGates`."""
    channels = self.pointwise.shape[0]
    empty = jnp.zeros((1, *grid, 1, channels), dtype)
    bias = factorised_conv(empty, *self, dtype=dtype).reshape(-1, 4, channels)
    matrix = as_parts(self.pointwise.astype(inputs.content.dtype), channels)[0]
    factors = gaussian_factors(inputs.write_at, inputs.spread, grid)
    first, *others = convolved_factors(factors, self.depthwise.astype(dtype))
    first = first * inputs.content.astype(dtype)[..., None, :]
    gates = tuple(MatrixGate(matrix[:, gate], bias[:, gate]) for gate in range(4))
    return gates, Drive((first, *others), (None,) * 4)


class MatrixGate(NamedTuple):
  """A gate that mixes the channels of each cell. See `tmem.blocks.LinearGate`.

  Attributes:
    matrix: [C, C] in the compute type.
    bias: [cells, C].
  """

  matrix: jax.Array
  bias: jax.Array

  def at(self, cells: jax.Array) -> "MatrixGate":
    """See `tmem.blocks.LinearGate`."""
    return self._replace(bias=self.bias[cells])

  def apply(self, values: jax.Array, vector: None) -> jax.Array:
    """See `tmem.blocks.LinearGate`."""
    del vector
    return self._product(values, self.matrix) + self.bias

  def backward(
    self, values: jax.Array, vector: None, grad: jax.Array
  ) -> tuple["MatrixGate", jax.Array, None]:
    """See `tmem.blocks.LinearGate`."""
    del vector
    flat = grad.reshape(-1, grad.shape[-1])
    matrix = self._product(values.reshape(-1, values.shape[-1]).T, flat.astype(self.matrix.dtype))
    bias = jnp.sum(grad, axis=tuple(range(grad.ndim - 2)))
    return MatrixGate(matrix, bias), self._product(grad, self.matrix.T), None

  def _product(self, left: jax.Array, right: jax.Array) -> jax.Array:
    return jnp.matmul(left.astype(self.matrix.dtype), right, preferred_element_type=self.bias.dtype)


class ParallelConv(FactorisedConv):
  """The module that owns `ParallelParams`."""

  def __init__(self, config: MemoryConfig, *, rngs: nnx.Rngs):
    super().__init__(config, config.channels, rngs=rngs)

  def params(self) -> ParallelParams:
    """The arrays, as the functional core takes them."""
    return ParallelParams(*self.arrays())
