"""One memory step as a pure state transition: read, write, gates, update."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from tmem.config import MemoryConfig, check_int
from tmem.grid import corner_weights, gaussian_volume, read_corners
from tmem.typing import Coords, Features, Spread, Tokens, Volume


class MemoryState(NamedTuple):
  """Everything a stream carries from one call to the next.

  The last three fields belong to `tail="hold"`; they are None in a state that never holds
  tokens back.

  Attributes:
    hidden: h, [batch, *grid, channels], what is read.
    cell: c, like `hidden`.
    pending: [batch, chunk_size - 1, features], the newest tokens, right aligned; zeros where
      nothing waits.
    pending_mask: [batch, chunk_size - 1] bool, which of them are real.
    fill: [batch] int32, how many positions of the unfinished chunk have been seen.
  """

  hidden: Volume
  cell: Volume
  pending: Tokens | None = None
  pending_mask: jax.Array | None = None
  fill: jax.Array | None = None


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


class StepInputs(NamedTuple):
  """What one chunk brings to the memory; `memory_scan` takes it with a leading chunk axis.

  Attributes:
    read_at: [batch, reads, axes], coordinates of the reads.
    write_at: [batch, axes], coordinates of the write.
    content: [batch, channels]; its dtype is the compute type of the gate product.
    spread: [batch], standard deviation of the write.
    write: [batch] bool, rows that are updated, or None for all.
  """

  read_at: Coords
  write_at: Coords
  content: Features
  spread: Spread
  write: jax.Array | None = None


def init_state(config: MemoryConfig, batch_size: int) -> MemoryState:
  """The empty memory: hidden and cell [batch_size, *grid, channels] of zeros.

  Raises:
    ValueError: if `batch_size` is not a positive integer.
  """
  check_int("batch_size", batch_size)
  shape = (batch_size, *config.grid, config.channels)
  # Two buffers, not one twice: a state must be donatable.
  return MemoryState(
    hidden=jnp.zeros(shape, config.state_dtype), cell=jnp.zeros(shape, config.state_dtype)
  )


def check_inputs(params: GateParams, state: MemoryState, inputs: StepInputs, *lead: int) -> None:
  """Raises ValueError unless the shapes agree, naming the first array that does not.

  Args:
    params: the gate convolution.
    state: its `hidden` sets batch, grid and channels.
    inputs: one chunk, or several with the leading axes `lead`.
    *lead: sizes of the axes in front of the batch.
  """
  if state.hidden.ndim < 3:
    raise ValueError(
      f"state.hidden: got shape {state.hidden.shape}, expected [batch, *grid, channels]"
    )
  batch, *grid, channels = state.hidden.shape
  axes, reads = len(grid), inputs.read_at.shape[-2] if inputs.read_at.ndim > 1 else 1
  expected = {
    "state.cell": (state.cell, (batch, *grid, channels)),
    "params.depthwise": (params.depthwise, (axes, 3, 2 * channels)),
    "params.depthwise_bias": (params.depthwise_bias, (axes, 2 * channels)),
    "params.pointwise": (params.pointwise, (2 * channels, 4 * channels)),
    "params.pointwise_bias": (params.pointwise_bias, (4 * channels,)),
    "inputs.content": (inputs.content, (*lead, batch, channels)),
    "inputs.write_at": (inputs.write_at, (*lead, batch, axes)),
    "inputs.read_at": (inputs.read_at, (*lead, batch, reads, axes)),
    "inputs.spread": (inputs.spread, (*lead, batch)),
  }
  if inputs.write is not None:
    expected["inputs.write"] = (inputs.write, (*lead, batch))
    if inputs.write.dtype != jnp.bool_:
      raise ValueError(f"inputs.write: got dtype {inputs.write.dtype}, expected bool")
  for name, (array, shape) in expected.items():
    if array.shape != shape:
      raise ValueError(f"{name}: got shape {array.shape}, expected {shape}")


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


def gate_preactivations(params: GateParams, volume: Volume, hidden: Volume, dtype) -> jax.Array:
  """The gate convolution over [write volume; hidden].

  Args:
    params: the gate convolution.
    volume: [batch, *grid, channels], the write volume.
    hidden: like `volume`.
    dtype: compute type of the pointwise product; everything else has the type of `hidden`.

  Returns:
    [batch, *grid, 4 * channels] in the order i, f, o, g.
  """
  mixed = depthwise_conv(
    jnp.concatenate([volume, hidden], axis=-1),
    params.depthwise.astype(hidden.dtype),
    params.depthwise_bias.astype(hidden.dtype),
  )
  product = jnp.matmul(
    mixed.astype(dtype), params.pointwise.astype(dtype), preferred_element_type=hidden.dtype
  )
  return product + params.pointwise_bias.astype(hidden.dtype)


def lstm_update(gates: jax.Array, cell: jax.Array) -> tuple[jax.Array, jax.Array]:
  """ConvLSTM update from pre-activations [..., 4C] in the order i, f, o, g: (hidden, cell)."""
  i, f, o, g = jnp.split(gates, 4, axis=-1)
  cell = jax.nn.sigmoid(f) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
  return jax.nn.sigmoid(o) * jnp.tanh(cell), cell


def select_rows(rows: jax.Array | None, new: Volume, old: Volume) -> Volume:
  """`new` in the rows that are True, `old` in the others; `new` everywhere if `rows` is None."""
  if rows is None:
    return new
  return jnp.where(rows.reshape(-1, *(1,) * (new.ndim - 1)), new, old)


def memory_step(
  params: GateParams, state: MemoryState, inputs: StepInputs
) -> tuple[MemoryState, jax.Array]:
  """Reads the state, then writes one chunk into it.

  Args:
    params: the gate convolution.
    state: the state before the chunk.
    inputs: reads and write of the chunk.

  Returns:
    `(state, read)`: the state after the chunk and what was read before it,
    [batch, reads, channels] in the dtype of the state.

  Raises:
    ValueError: if shapes disagree, naming the array.

  Reference: arXiv 2605.27686, memory interface (read, Gaussian write, ConvLSTM update).
  """
  check_inputs(params, state, inputs)
  hidden, cell = state.hidden, state.cell
  grid = hidden.shape[1:-1]
  read = read_corners(hidden, *corner_weights(inputs.read_at, grid))
  content = inputs.content.astype(hidden.dtype)
  volume = gaussian_volume(content, inputs.write_at, inputs.spread, grid)
  gates = gate_preactivations(params, volume, hidden, inputs.content.dtype)
  new_hidden, new_cell = lstm_update(gates, cell)
  state = state._replace(
    hidden=select_rows(inputs.write, new_hidden, hidden),
    cell=select_rows(inputs.write, new_cell, cell),
  )
  return state, read
