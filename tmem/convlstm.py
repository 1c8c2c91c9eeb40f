"""The published gates: a convolution over what is written and what is held."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from tmem.cell import StepInputs, lstm_update, write_volume
from tmem.config import MemoryConfig
from tmem.convolution import (
  FactorisedConv,
  conv_shapes,
  depthwise_conv_inside,
  factorised_conv,
  pointwise_mix,
  write_conv_inside,
)
from tmem.typing import Volume
from tmem.window import Window


class GateParams(NamedTuple):
  """Parameters of the gate convolution over [write volume; hidden] (2C channels).

  Attributes:
    depthwise: [axes, 3, 2C], one 3-tap kernel per grid axis and channel.
    depthwise_bias: [axes, 2C].
    pointwise: [2C, 4C], columns in the order i, f, o, g.
    pointwise_bias: [4C].
  """

  depthwise: jax.Array
  depthwise_bias: jax.Array
  pointwise: jax.Array
  pointwise_bias: jax.Array

  halo = 1  # cells around a window that its gates see

  def shapes(self, axes: int, channels: int) -> dict[str, tuple[int, ...]]:
    """See `tmem.cell.Gates`."""
    return conv_shapes(axes, 2 * channels, 4 * channels)

  def update(self, inputs: StepInputs, hidden: Volume, cell: Volume) -> tuple[Volume, Volume]:
    """See `tmem.cell.Gates`."""
    return lstm_update(self.preactivations(inputs, hidden), cell)

  def preactivations(self, inputs: StepInputs, hidden: Volume) -> Volume:
    """See `tmem.cell.Gates`."""
    both = jnp.stack([write_volume(inputs, hidden), hidden], axis=-2)
    return factorised_conv(both, *self, dtype=inputs.content.dtype)

  def window_preactivations(self, inputs: StepInputs, hidden: Volume, window: Window) -> Volume:
    """See `tmem.windowed.WindowGates`."""
    channels = hidden.shape[-1]
    kernel, bias = self.depthwise.astype(hidden.dtype), self.depthwise_bias.astype(hidden.dtype)
    written = write_conv_inside(
      window.gaussian_factors(inputs.write_at, inputs.spread, hidden.dtype),
      inputs.content.astype(hidden.dtype),
      window.inside,
      kernel[..., :channels],
      bias[..., :channels],
    )
    held = depthwise_conv_inside(
      hidden, window.inside, kernel[..., channels:], bias[..., channels:]
    )
    both = jnp.stack([written, held], axis=-2)
    return pointwise_mix(both, self.pointwise, self.pointwise_bias, inputs.content.dtype)


class GateConv(FactorisedConv):
  """The module that owns `GateParams`."""

  def __init__(self, config: MemoryConfig, *, rngs: nnx.Rngs):
    super().__init__(config, 2 * config.channels, rngs=rngs)

  def params(self) -> GateParams:
    """The arrays, as the functional core takes them."""
    return GateParams(*self.arrays())
