"""One memory step as a pure state transition: read, write, gates, update."""

from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp

from tmem.config import MemoryConfig, check_int
from tmem.grid import corner_weights, gaussian_volume, read_corners
from tmem.scopes import GATES, READ, RECURRENCE, WRITE, scoped
from tmem.typing import Coords, Features, Grid, Spread, Tokens, Volume
from tmem.window import window_at


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


class StepInputs(NamedTuple):
  """What one chunk brings to the memory; `memory_scan` takes it with a leading chunk axis.

  Attributes:
    read_at: [batch, reads, axes], coordinates of the reads.
    write_at: [batch, axes], coordinates of the write.
    content: [batch, channels]; its dtype is the compute type of the gate product.
    spread: [batch], standard deviation of the write.
    write: [batch] bool, rows that are updated, or None for all.
    clear: [batch] bool, rows that are emptied between read and write, or None for none.
  """

  read_at: Coords
  write_at: Coords
  content: Features
  spread: Spread
  write: jax.Array | None = None
  clear: jax.Array | None = None


class Gates(Protocol):
  """Parameters of the gates: the part of a memory step in which the dynamics differ."""

  def shapes(self, axes: int, channels: int) -> dict[str, tuple[int, ...]]:
    """The shape that each array must have, by its name."""

  def preactivations(self, inputs: StepInputs, hidden: Volume) -> Volume:
    """The gates of one chunk before their nonlinearities.

    Args:
      inputs: the chunk, as for `update`.
      hidden: [batch, *grid, channels], before the write.

    Returns:
      [batch, *grid, 4, channels] in the order i, f, o, g.
    """

  def update(self, inputs: StepInputs, hidden: Volume, cell: Volume) -> tuple[Volume, Volume]:
    """What one chunk makes of the state.

    Args:
      inputs: the chunk; the dtype of its content is the compute type of products with
        parameters, everything else has the type of `hidden`.
      hidden: [batch, *grid, channels], before the write.
      cell: like `hidden`.

    Returns:
      `(hidden, cell)` after the write.
    """


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


def check_inputs(params: Gates, state: MemoryState, inputs: StepInputs, *lead: int) -> None:
  """Raises ValueError unless the shapes agree, naming the first array that does not.

  Args:
    params: parameters of the gates.
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
    **{
      f"params.{name}": (getattr(params, name), shape)
      for name, shape in params.shapes(axes, channels).items()
    },
    "inputs.content": (inputs.content, (*lead, batch, channels)),
    "inputs.write_at": (inputs.write_at, (*lead, batch, axes)),
    "inputs.read_at": (inputs.read_at, (*lead, batch, reads, axes)),
    "inputs.spread": (inputs.spread, (*lead, batch)),
  }
  for name in ("write", "clear"):
    rows = getattr(inputs, name)
    if rows is not None:
      expected[f"inputs.{name}"] = (rows, (*lead, batch))
      if rows.dtype != jnp.bool_:
        raise ValueError(f"inputs.{name}: got dtype {rows.dtype}, expected bool")
  for name, (array, shape) in expected.items():
    if array.shape != shape:
      raise ValueError(f"{name}: got shape {array.shape}, expected {shape}")


@scoped(WRITE)
def write_volume(inputs: StepInputs, hidden: Volume) -> Volume:
  """The content of a chunk spread around its place, in the shape and type of `hidden`."""
  content = inputs.content.astype(hidden.dtype)
  return gaussian_volume(content, inputs.write_at, inputs.spread, hidden.shape[1:-1])


@scoped(RECURRENCE)
def lstm_update(gates: jax.Array, cell: jax.Array) -> tuple[jax.Array, jax.Array]:
  """ConvLSTM update from pre-activations [..., 4, C] in the order i, f, o, g: (hidden, cell)."""
  i, f, o, g = (gates[..., gate, :] for gate in range(4))
  cell = jax.nn.sigmoid(f) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
  return jax.nn.sigmoid(o) * jnp.tanh(cell), cell


def select_rows(rows: jax.Array | None, new: Volume, old: Volume) -> Volume:
  """`new` in the rows that are True, `old` in the others; `new` everywhere if `rows` is None."""
  if rows is None:
    return new
  return jnp.where(rows.reshape(-1, *(1,) * (new.ndim - 1)), new, old)


def cleared(rows: jax.Array | None, volume: Volume) -> Volume:
  """Zeros in the rows that are True, `volume` in the others; None: `volume`."""
  return volume if rows is None else select_rows(rows, jnp.zeros_like(volume), volume)


def memory_step(
  params: Gates, state: MemoryState, inputs: StepInputs, window: Grid | None = None
) -> tuple[MemoryState, jax.Array]:
  """Reads the state, then writes one chunk into it.

  Args:
    params: parameters of the gates; their type says which dynamics.
    state: the state before the chunk.
    inputs: reads and write of the chunk.
    window: cells per axis around the write that are updated; None: all.

  Returns:
    `(state, read)`: the state after the chunk and what was read before it,
    [batch, reads, channels] in the dtype of the state.

  Raises:
    ValueError: if shapes disagree, naming the array.

  Reference: arXiv 2605.27686, memory interface (read, Gaussian write, ConvLSTM update).
  """
  check_inputs(params, state, inputs)
  hidden, cell = state.hidden, state.cell
  with jax.named_scope(READ):
    read = read_corners(hidden, *corner_weights(inputs.read_at, hidden.shape[1:-1]))
  hidden, cell = cleared(inputs.clear, hidden), cleared(inputs.clear, cell)
  with jax.named_scope(GATES):  # and, within, what is written and the recurrence
    new_hidden, new_cell = params.update(inputs, hidden, cell)
  if window is not None:
    own = window_at(inputs.write_at, window, hidden.shape[1:-1]).mask()[..., None]
    new_hidden, new_cell = (
      jnp.where(own, new, old) for new, old in ((new_hidden, hidden), (new_cell, cell))
    )
  state = state._replace(
    hidden=select_rows(inputs.write, new_hidden, hidden),
    cell=select_rows(inputs.write, new_cell, cell),
  )
  return state, read
