"""The factorised 3-D convolution of the gates: depthwise along each axis, then pointwise."""

import jax
import jax.numpy as jnp
from flax import nnx

from tmem.config import MemoryConfig
from tmem.grid import outer_product
from tmem.placement import placed
from tmem.scopes import WRITE, scoped
from tmem.typing import Volume


def depthwise_conv(volume: Volume, kernel: jax.Array, bias: jax.Array) -> Volume:
  """Three-tap zero-padded depthwise convolutions along each grid axis in turn.

  Args:
    volume: [batch, *grid, *channels].
    kernel: [axes, 3, *channels].
    bias: [axes, *channels], added after each axis.

  Returns:
    [batch, *grid, *channels].
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


@scoped(WRITE)
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
  """Mixes the channels of each cell into gates.

  Args:
    volume: [batch, *grid, parts, C].
    matrix: [parts * C, gates * C].
    bias: [gates * C].
    dtype: compute type of the product.

  Returns:
    [batch, *grid, gates, C] in the type of `volume`.
  """
  matrix = as_parts(matrix.astype(dtype), volume.shape[-1])
  return mixed(volume.astype(dtype), matrix, volume.dtype) + bias.astype(volume.dtype).reshape(
    matrix.shape[2:]
  )


def as_parts(matrix: jax.Array, channels: int) -> jax.Array:
  """[parts * C, gates * C] -> [parts, C, gates, C].

  Channels stay an axis of their own in every product with the matrix, so that devices can share
  them: joined with the parts, a device's share would lie across several of those.
  """
  return matrix.reshape(-1, channels, matrix.shape[1] // channels, channels)


def mixed(volume: Volume, matrix: jax.Array, dtype) -> Volume:
  """[..., parts, C] times [parts, C, gates, C]: [..., gates, C], summed in `dtype`."""
  # Devices that share the channels of a state each sum over their own. What is written, the only
  # part where there is but one, they all know: each makes its own gates, and none sums.
  if matrix.shape[0] > 1:
    matrix = placed(matrix, None, "channels", None, None)
  gates = jnp.einsum("...pc,pcgd->...gd", volume, matrix, preferred_element_type=dtype)
  return placed(gates, "batch", *(None,) * (gates.ndim - 2), "channels")


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
    volume: [batch, *grid, parts, C].
    depthwise: [axes, 3, parts * C].
    depthwise_bias: [axes, parts * C].
    pointwise: [parts * C, gates * C].
    pointwise_bias: [gates * C].
    dtype: compute type of the pointwise product; everything else has the type of `volume`.

  Returns:
    [batch, *grid, gates, C] in the type of `volume`.
  """
  filtered = depthwise_of_parts(volume, depthwise, depthwise_bias)
  return pointwise_mix(filtered, pointwise, pointwise_bias, dtype)


def depthwise_of_parts(volume: Volume, kernel: jax.Array, bias: jax.Array) -> Volume:
  """`depthwise_conv` of [batch, *grid, parts, C] by [axes, 3, parts * C] and [axes, parts * C]."""
  parts, full = volume.shape[-2:], volume.dtype
  kernel = kernel.astype(full).reshape(*kernel.shape[:2], *parts)
  return depthwise_conv(volume, kernel, bias.astype(full).reshape(-1, *parts))


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
