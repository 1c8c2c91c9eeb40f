"""The factorised 3-D convolution of the gates: depthwise along each axis, then pointwise."""

import jax
import jax.numpy as jnp
from flax import nnx

from tmem.config import MemoryConfig
from tmem.grid import outer_product
from tmem.typing import Volume


def depthwise_conv(volume: Volume, kernel: jax.Array, bias: jax.Array) -> Volume:
  """Three-tap zero-padded depthwise convolutions along each grid axis in turn.

  Args:
    volume: [batch, *grid, channels].
    kernel: [axes, 3, channels].
    bias: [axes, channels], added after each axis.

  Returns:
    [batch, *grid, channels].
  """
  for axis, (taps, shift) in enumerate(zip(kernel, bias, strict=True), start=1):
    size = volume.shape[axis]
    padding = [(1, 1) if a == axis else (0, 0) for a in range(volume.ndim)]
    padded = jnp.pad(volume, padding)
    window = [jax.lax.slice_in_dim(padded, o, o + size, axis=axis) for o in range(3)]
    volume = sum(tap * part for tap, part in zip(taps, window, strict=True)) + shift
  return volume


def depthwise_conv_inside(
  volume: Volume, inside: tuple[jax.Array, ...], kernel: jax.Array, bias: jax.Array
) -> Volume:
  """`depthwise_conv` of a window, from the window and one more cell on each side.

  Args:
    volume: [batch, *(n + 2), channels], zero where a cell is off the grid.
    inside: per axis [batch, n + 2] bool, which of the cells are on the grid.
    kernel: [axes, 3, channels].
    bias: [axes, channels].

  Returns:
    [batch, *n, channels]: what `depthwise_conv` of the whole grid has in the window.
  """
  for axis, (taps, shift) in enumerate(zip(kernel, bias, strict=True), start=1):
    size = volume.shape[axis] - 2
    window = [jax.lax.slice_in_dim(volume, o, o + size, axis=axis) for o in range(3)]
    volume = sum(tap * part for tap, part in zip(taps, window, strict=True)) + shift
    for later in range(axis + 1, volume.ndim - 1):  # off the grid there is no bias either
      shape = [1] * volume.ndim
      shape[0], shape[later] = inside[later - 1].shape
      volume = jnp.where(inside[later - 1].reshape(shape), volume, 0)
  return volume


def write_conv_inside(
  factors: tuple[jax.Array, ...],
  content: jax.Array,
  inside: tuple[jax.Array, ...],
  kernel: jax.Array,
  bias: jax.Array,
) -> Volume:
  """`depthwise_conv_inside` of a soft write, from its factors: a tenth of the arithmetic.

  Without biases it is the product of the convolved factors. A bias is one number per channel,
  which the convolutions along later axes see where there are cells.

  Args:
    factors: per axis [batch, n + 2], the Gaussian, zero where a cell is off the grid.
    content: [batch, channels].
    inside: as for `depthwise_conv_inside`.
    kernel: [axes, 3, channels].
    bias: [axes, channels].

  Returns:
    [batch, *n, channels].
  """
  first, *others = convolved_factors(factors, kernel, padding=0)
  ones = convolved_factors(inside, kernel, padding=0)
  biases = bias[:1, None]  # [batch, *n, channels], with ones for axes that all cells share
  for axis, (one, shift) in enumerate(zip(ones[1:], bias[1:], strict=True), start=1):
    one = one.reshape(len(one), *(1,) * axis, *one.shape[1:])
    biases = biases[..., None, :] * one + shift
  return outer_product((first * content[:, None], *others)) + biases


def pointwise_mix(volume: Volume, matrix: jax.Array, bias: jax.Array, dtype) -> Volume:
  """Mixes the channels of each cell.

  Args:
    volume: [batch, *grid, inputs].
    matrix: [inputs, outputs].
    bias: [outputs].
    dtype: compute type of the product.

  Returns:
    [batch, *grid, outputs] in the type of `volume`.
  """
  full = volume.dtype
  product = jnp.matmul(volume.astype(dtype), matrix.astype(dtype), preferred_element_type=full)
  return product + bias.astype(full)


def factorised_conv(
  volume: Volume,
  depthwise: jax.Array,
  depthwise_bias: jax.Array,
  pointwise: jax.Array,
  pointwise_bias: jax.Array,
  dtype,
) -> Volume:
  """Depthwise convolutions, then a pointwise mix.

  Args:
    volume: [batch, *grid, inputs].
    depthwise: [axes, 3, inputs].
    depthwise_bias: [axes, inputs].
    pointwise: [inputs, outputs].
    pointwise_bias: [outputs].
    dtype: compute type of the pointwise product; everything else has the type of `volume`.

  Returns:
    [batch, *grid, outputs] in the type of `volume`.
  """
  full = volume.dtype
  mixed = depthwise_conv(volume, depthwise.astype(full), depthwise_bias.astype(full))
  return pointwise_mix(mixed, pointwise, pointwise_bias, dtype)


def convolved_factors(
  factors: tuple[jax.Array, ...], kernel: jax.Array, padding: int = 1
) -> tuple[jax.Array, ...]:
  """`depthwise_conv` without biases of an outer product, as the factors of its result.

  Args:
    factors: one array [..., n] per axis, the same for all channels.
    kernel: [axes, 3, channels].
    padding: zeros around each factor; 0: they are there already.

  Returns:
    One array [..., n + 2 padding - 2, channels] per axis.
  """
  convolved = []
  for factor, taps in zip(factors, kernel, strict=True):
    size = factor.shape[-1] + 2 * padding - 2
    widths = [(0, 0)] * (factor.ndim - 1) + [(padding, padding)]
    padded = jnp.pad(factor.astype(taps.dtype), widths)
    convolved.append(sum(padded[..., o : o + size, None] * taps[o] for o in range(3)))
  return tuple(convolved)


def conv_shapes(axes: int, inputs: int, outputs: int) -> dict[str, tuple[int, ...]]:
  """Shapes of the arrays that `factorised_conv` takes, by name."""
  return {
    "depthwise": (axes, 3, inputs),
    "depthwise_bias": (axes, inputs),
    "pointwise": (inputs, outputs),
    "pointwise_bias": (outputs,),
  }


class FactorisedConv(nnx.Module):
  """Owner of a factorised convolution with the gates as outputs.

  Depthwise starts as identity (or is one for good: `config.depthwise`), pointwise Xavier-uniform,
  biases zero but for the forget gate's.

  Args:
    config: sizes.
    inputs: input channels.
    rngs: source of the initial parameters.
  """

  def __init__(self, config: MemoryConfig, inputs: int, *, rngs: nnx.Rngs):
    self.axes, self.inputs = len(config.grid), inputs
    dtype = config.param_dtype
    if config.depthwise:
      self.depthwise = nnx.Param(self._identity(dtype))
      self.depthwise_bias = nnx.Param(jnp.zeros((self.axes, inputs), dtype))
    self.pointwise = nnx.Param(initial_mix(config, inputs, rngs))
    self.pointwise_bias = nnx.Param(initial_bias(config))

  def arrays(self) -> tuple[jax.Array, ...]:
    """What `factorised_conv` takes after the volume."""
    pointwise, bias = self.pointwise[...], self.pointwise_bias[...]
    if hasattr(self, "depthwise"):
      return self.depthwise[...], self.depthwise_bias[...], pointwise, bias
    no_bias = jnp.zeros((self.axes, self.inputs), pointwise.dtype)
    return self._identity(pointwise.dtype), no_bias, pointwise, bias

  def _identity(self, dtype) -> jax.Array:
    return jnp.zeros((self.axes, 3, self.inputs), dtype).at[:, 1].set(1.0)


def initial_mix(config: MemoryConfig, inputs: int, rngs: nnx.Rngs) -> jax.Array:
  """Start value of the matrix [inputs, 4C] that mixes gates."""
  xavier = nnx.initializers.xavier_uniform()
  return xavier(rngs.params(), (inputs, 4 * config.channels), config.param_dtype)


def initial_bias(config: MemoryConfig) -> jax.Array:
  """Start value of the gates' bias [4C]: zeros, and `forget_bias` for the forget gate."""
  channels = config.channels
  bias = jnp.zeros(4 * channels, config.param_dtype)
  return bias.at[channels : 2 * channels].set(config.forget_bias)
