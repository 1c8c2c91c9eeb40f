"""The fast scan of writes that update a window of cells and leave all others as they are.

Cost and traffic of a step depend on the window, not on the grid. h and c lie side by side as rows
[batch, cells, 2, C]. A step gathers, at once, the rows around its write and those of its reads, and
scatters the window back. That the scatter depends on the one gather of the step is what lets
XLA update the rows in place; a read that merely came first would cost a copy of the state.

The forward pass keeps the rows that a step overwrites. The backward pass puts them back, so the
state is rebuilt step by step, and what is stored does not depend on the grid.

Nor does the cost of emptying a row of the batch: it begins an epoch of the row. A cell bears the
epoch in which a window held it last, and counts as zeros in a later one; at the end such cells
become zeros. The backward pass needs no epochs, only which of the gathered rows counted: to it the
others are off the grid, where it finds zeros and drops gradients.
"""

import functools
import math
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp

from tmem.cell import Gates, MemoryState, StepInputs, lstm_update, select_rows
from tmem.grid import corner_weights
from tmem.rows import add_rows, put_rows, take_rows
from tmem.scopes import BACKWARD, GATES, READ, RECURRENCE, scoped
from tmem.typing import Coords, Features, Grid, Spread, Volume
from tmem.window import Window, window_at

Rows = jax.Array  # [batch, cells, 2, C]: h and c of every cell


class WindowGates(Gates, Protocol):
  """Gates that can be had for a window.

  Attributes:
    halo: how many cells around the window they see.
  """

  halo: int

  def window_preactivations(self, inputs: StepInputs, hidden: Volume, window: Window) -> Volume:
    """The gates before their nonlinearities in the cells of a window.

    Args:
      inputs: the chunk.
      hidden: [batch, *window.shape, channels], zero off the grid.
      window: with a halo of `halo` cells.

    Returns:
      [batch, *window.core().shape, 4, channels] in the order i, f, o, g.
    """


class _Plan(NamedTuple):
  grid: Grid
  window: Grid


class _Epochs(NamedTuple):
  cells: jax.Array  # [batch, cells, 1] int32
  rows: jax.Array  # [batch, 1, 1] int32


class _Chunk(NamedTuple):
  write_at: Coords
  content: Features
  spread: Spread
  weights: jax.Array  # [batch, reads, corners]
  write: jax.Array | None
  corners: jax.Array  # [batch, reads * corners] int32
  clear: jax.Array | None


_Carry = tuple[Rows, _Epochs | None]  # no epochs where no row is ever emptied
_Alive = tuple[jax.Array, jax.Array] | None  # [batch, n] bool: which places count; None: all


def windowed_scan(
  params: WindowGates, state: MemoryState, inputs: StepInputs, window: Grid
) -> tuple[MemoryState, jax.Array]:
  """Same contract as `tmem.scan.plain_scan`, with an update of `window` cells per axis."""
  shape = state.hidden.shape
  plan = _Plan(shape[1:-1], window)
  rows = jnp.stack([state.hidden, state.cell], axis=-2)
  rows = rows.reshape(shape[0], -1, 2, shape[-1])
  with jax.named_scope(READ):
    corners, weights = corner_weights(inputs.read_at, plan.grid)
  corners = corners.reshape(*corners.shape[:2], -1)
  write_at, content, spread, write, clear = inputs[1:]
  chunks = _Chunk(write_at, content, spread, weights, write, corners, clear)
  carry, reads = _scan(plan, params, (rows, _first_epochs(rows, clear)), chunks)
  rows = _alive_at_last(carry)
  hidden, cell = (rows[:, :, half].reshape(shape) for half in range(2))
  return state._replace(hidden=hidden, cell=cell), reads


def _first_epochs(rows: Rows, clear: jax.Array | None) -> _Epochs | None:
  if clear is None:
    return None
  batch, cells = rows.shape[:2]
  return _Epochs(jnp.zeros((batch, cells, 1), jnp.int32), jnp.zeros((batch, 1, 1), jnp.int32))


def _alive_at_last(carry: _Carry) -> Rows:
  """The rows; zeros if no window held them since they were emptied."""
  rows, epochs = carry
  if epochs is None:
    return rows
  return jnp.where((epochs.cells >= epochs.rows)[..., None], rows, 0)


def _places(plan: _Plan, halo: int, chunk: _Chunk, alive: _Alive = None):
  """Rows that a step gathers (window with halo, then corners), and rows that it overwrites."""
  window = window_at(chunk.write_at, plan.window, plan.grid, halo)
  around, off_grid = window.cells(), math.prod(plan.grid)
  parts = [jnp.where(around < 0, off_grid, around), chunk.corners]
  if alive is not None:  # before they are joined: later XLA would do it anew for every use
    parts = [jnp.where(a, part, off_grid) for a, part in zip(alive, parts, strict=True)]
  return jnp.concatenate(parts, axis=1), window.core().cells()


def _local(plan: _Plan, params: WindowGates, chunk: _Chunk, gathered: jax.Array):
  """What a step makes of the rows that it gathered: new (h, c) [batch, cells, C], and the read."""
  inputs = StepInputs(None, chunk.write_at, chunk.content, chunk.spread)
  window = window_at(chunk.write_at, plan.window, plan.grid, params.halo)
  cells, channels = math.prod(window.shape), gathered.shape[-1]
  around = gathered[:, :cells].reshape(len(gathered), *window.shape, 2, channels)
  with jax.named_scope(READ):
    corners = gathered[:, cells:, 0].reshape(*chunk.weights.shape, channels)
    read = jnp.sum(corners * chunk.weights[..., None].astype(corners.dtype), axis=2)

  old = window.cut(around)
  with jax.named_scope(GATES):
    gates = params.window_preactivations(inputs, around[..., 0, :], window)
  hidden, cell = old[..., 0, :], old[..., 1, :]
  new_hidden, new_cell = lstm_update(gates, cell)
  new = select_rows(chunk.write, new_hidden, hidden), select_rows(chunk.write, new_cell, cell)
  return tuple(a.reshape(len(gathered), -1, channels) for a in new), read


def _step(plan: _Plan, params: WindowGates, carry: _Carry, chunk: _Chunk):
  """One chunk: `(carry, (read, rows that were overwritten, which of the places count))`."""
  rows, epochs = carry
  places, own = _places(plan, params.halo, chunk)
  gathered = take_rows(rows, places)
  epochs, alive = _next_epochs(plan, params.halo, epochs, chunk, places, own)
  old = _core(plan, params.halo, gathered)
  if alive is not None:
    gathered = jnp.where(jnp.concatenate(alive, axis=1)[..., None, None], gathered, 0)
  new, read = _local(plan, params, chunk, gathered)
  # One after the other: XLA does not vectorise on a CPU what it computes into a joined array.
  for half, own_new in enumerate(new):
    rows = put_rows(rows, own, own_new, half)
  return (rows, epochs), (read, old, alive)


def _next_epochs(plan: _Plan, halo: int, epochs: _Epochs | None, chunk: _Chunk, places, own):
  """The epochs after a chunk, and which of the places count in it."""
  if epochs is None:
    return None, None
  found, now = take_rows(epochs.cells, places), epochs.rows + chunk.clear[:, None, None]
  around, corners = jnp.split(found, [places.shape[1] - chunk.corners.shape[1]], axis=1)
  alive = (around >= now)[..., 0], (corners >= epochs.rows)[..., 0]
  # No cell is ahead of its row: the maximum is there to make the scatter depend on the gather.
  own_epoch = jnp.maximum(_core(plan, halo, found), now)
  return _Epochs(put_rows(epochs.cells, own, own_epoch), now), alive


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
@scoped(RECURRENCE)
def _scan(plan: _Plan, params: WindowGates, carry: _Carry, chunks: _Chunk):
  def step(carry, chunk):
    carry, (read, *_) = _step(plan, params, carry, chunk)
    return carry, read

  return jax.lax.scan(step, carry, chunks)


@scoped(RECURRENCE)
def _scan_forward(plan, params, carry, chunks):
  step = functools.partial(_step, plan, params)
  carry, (reads, *kept) = jax.lax.scan(step, carry, chunks)
  return (carry, reads), (params, carry[0], kept, chunks)


def _core(plan: _Plan, halo: int, gathered: jax.Array) -> jax.Array:
  """The window without its halo among what was gathered: [batch, cells, channels]."""
  shape = [min(w, n) + 2 * halo for w, n in zip(plan.window, plan.grid, strict=True)]
  around = gathered[:, : math.prod(shape)].reshape(len(gathered), *shape, *gathered.shape[2:])
  for axis, size in enumerate(shape, start=1):
    around = jax.lax.slice_in_dim(around, halo, size - halo, axis=axis)
  return around.reshape(len(gathered), -1, *gathered.shape[2:])


@scoped(BACKWARD)
def _scan_backward(plan, residuals, grads):
  params, rows, kept, chunks = residuals
  (rows_grad, _), read_grads = grads
  zeros = jax.tree.map(lambda a: jnp.zeros(a.shape, rows.dtype), params)
  (_, rows_grad, sums), chunk_grads = jax.lax.scan(
    functools.partial(_step_backward, plan, params),
    (rows, rows_grad, zeros),
    (kept, chunks, read_grads),
    reverse=True,
  )
  return jax.tree.map(lambda g, p: g.astype(p.dtype), sums, params), (rows_grad, None), chunk_grads


def _step_backward(plan: _Plan, params: WindowGates, carry, now):
  rows, rows_grad, sums = carry
  (old, alive), chunk, read_grad = now
  places, own = _places(plan, params.halo, chunk, alive)
  rows = put_rows(rows, own, old)
  new_grad = take_rows(rows_grad, own)

  def local(params, floats, gathered):
    new, read = _local(plan, params, _Chunk(*floats, *chunk[4:]), gathered)
    return jnp.stack(new, axis=-2), read

  _, backward = jax.vjp(local, params, tuple(chunk[:4]), take_rows(rows, places))
  params_grad, floats_grad, gathered_grad = backward((new_grad, read_grad))
  rows_grad = put_rows(rows_grad, own, 0 * new_grad)
  rows_grad = add_rows(rows_grad, places, gathered_grad)
  sums = jax.tree.map(lambda a, b: a + b.astype(a.dtype), sums, params_grad)
  return (rows, rows_grad, sums), _Chunk(*floats_grad, None, None, None)


_scan.defvjp(_scan_forward, _scan_backward)
