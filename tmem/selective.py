"""Gates that are one vector per chunk under the Gaussian of its write: no mixing of cells."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from tmem.blocks import Drive
from tmem.cell import StepInputs, lstm_update
from tmem.config import MemoryConfig
from tmem.convolution import initial_bias, initial_mix
from tmem.grid import gaussian_factors, outer_product
from tmem.typing import Grid, Volume
from tmem.window import Window


class SelectiveParams(NamedTuple):
  """Parameters of `[i f o g](cell) = gaussian(cell) * (content @ mix) + bias`.

  Attributes:
    mix: [C, 4C], columns in the order i, f, o, g.
    bias: [4C].
  """

  mix: jax.Array
  bias: jax.Array

  halo = 0  # cells around a window that its gates see

  def shapes(self, axes: int, channels: int) -> dict[str, tuple[int, ...]]:
    """See `tmem.cell.Gates`."""
    del axes
    return {"mix": (channels, 4 * channels), "bias": (4 * channels,)}

  def update(self, inputs: StepInputs, hidden: Volume, cell: Volume) -> tuple[Volume, Volume]:
    """See `tmem.cell.Gates`."""
    return lstm_update(self.preactivations(inputs, hidden), cell)

  def preactivations(self, inputs: StepInputs, hidden: Volume) -> Volume:
    """See `tmem.cell.Gates`; of `hidden` the shape alone matters."""
    factors = gaussian_factors(inputs.write_at, inputs.spread, hidden.shape[1:-1])
    return self._under(factors, inputs, hidden.dtype)

  def window_preactivations(self, inputs: StepInputs, hidden: Volume, window: Window) -> Volume:
    """See `tmem.windowed.WindowGates`."""
    factors = window.gaussian_factors(inputs.write_at, inputs.spread, hidden.dtype)
    return self._under(factors, inputs, hidden.dtype)

  def _under(self, factors: tuple[jax.Array, ...], inputs: StepInputs, dtype) -> Volume:
    """The gates of one chunk under its Gaussian, of which there is a factor per axis."""
    gaussian = outer_product(tuple(f[..., None] for f in factors)).astype(dtype)
    ones = (1,) * (gaussian.ndim - 2)
    biases = jnp.split(self.bias.astype(gaussian.dtype), 4)
    vectors = (v.reshape(len(v), *ones, -1) for v in self.vectors(inputs, gaussian.dtype))
    gates = (gaussian * vector + bias for vector, bias in zip(vectors, biases, strict=True))
    return jnp.stack(tuple(gates), axis=-2)

  def linear(self, inputs: StepInputs, grid: Grid, dtype) -> tuple[tuple["VectorGate", ...], Drive]:
    """See `tmem.diagonal.DiagonalGates`."""
    factors = gaussian_factors(inputs.write_at, inputs.spread, grid)
    drive = Drive(tuple(f.astype(dtype)[..., None] for f in factors), self.vectors(inputs, dtype))
    return self.gates(dtype), drive

  def gates(self, dtype) -> tuple["VectorGate", ...]:
    """The gates i, f, o and g."""
    return tuple(VectorGate(bias) for bias in jnp.split(self.bias.astype(dtype)[None], 4, axis=1))

  def vectors(self, inputs: StepInputs, dtype) -> tuple[jax.Array, ...]:
    """What a chunk tells the gates i, f, o, g: [..., batch, C] each.

    Four products, not slices of one: a slice would end up in the loop over cells, which XLA then
    does not vectorise on a CPU.
    """
    content = inputs.content
    return tuple(
      jnp.matmul(content, mix.astype(content.dtype), preferred_element_type=dtype)
      for mix in jnp.split(self.mix, 4, axis=-1)
    )


class VectorGate(NamedTuple):
  """A gate that is one vector per chunk under its mask. See `tmem.blocks.LinearGate`.

  Attributes:
    bias: [1, C].
  """

  bias: jax.Array

  def at(self, cells: jax.Array) -> "VectorGate":
    """See `tmem.blocks.LinearGate`; the same at all cells."""
    del cells
    return self

  def apply(self, values: jax.Array, vector: jax.Array) -> jax.Array:
    """See `tmem.blocks.LinearGate`."""
    return values * vector[..., None, :] + self.bias

  def backward(
    self, values: jax.Array, vector: jax.Array, grad: jax.Array
  ) -> tuple["VectorGate", jax.Array, jax.Array]:
    """See `tmem.blocks.LinearGate`."""
    # Products, not sums of products: XLA vectorises a dot on a CPU, but not a fused reduction.
    rows = jnp.stack([values[..., 0], jnp.ones_like(values[..., 0])], axis=-2)
    sums = jnp.matmul(rows, grad)
    bias = jnp.sum(sums[..., 1, :].reshape(-1, grad.shape[-1]), axis=0, keepdims=True)
    return VectorGate(bias), jnp.matmul(grad, vector[..., None]), sums[..., 0, :]


class SelectiveGates(nnx.Module):
  """The module that owns `SelectiveParams`; the mix starts Xavier-uniform.

  There is a bias for i, f and o only. One for g would add to every cell at every chunk, wherever
  the write is, and over thousands of chunks bury what the cells hold.
  """

  def __init__(self, config: MemoryConfig, *, rngs: nnx.Rngs):
    self.mix = nnx.Param(initial_mix(config, config.channels, rngs))
    self.bias = nnx.Param(initial_bias(config)[: 3 * config.channels])

  def params(self) -> SelectiveParams:
    """The arrays, as the functional core takes them."""
    bias = self.bias[...]
    return SelectiveParams(self.mix[...], jnp.pad(bias, (0, len(bias) // 3)))
