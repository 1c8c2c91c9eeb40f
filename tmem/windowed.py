"""The fast scan of writes that update a window of cells and leave all others as they are.

Cost and traffic of a step depend on the window, not on the grid. h and c lie side by side as rows
[batch * cells, 2C]. A step gathers, at once, the rows around its write and those of its reads, and
scatters the window back. That the scatter depends on the one gather of the step is what lets
XLA update the rows in place; a read that merely came first would cost a copy of the state.

The forward pass keeps the rows that a step overwrites. The backward pass puts them back, so the
state is rebuilt step by step, and what is stored does not depend on the grid.
"""

import functools
import math
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp

from tmem.cell import Gates, MemoryState, StepInputs, lstm_update, memory_step, select_rows
from tmem.grid import corner_weights
from tmem.typing import Coords, Features, Grid, Spread, Volume
from tmem.window import Window, window_at

Rows = jax.Array  # [batch * cells, 2C]: h and c of every cell


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
      [batch, *window.core().shape, 4 * channels] in the order i, f, o, g.
    """


class _Plan(NamedTuple):
  batch: int
  grid: Grid
  window: Grid


class _Chunk(NamedTuple):
  write_at: Coords
  content: Features
  spread: Spread
  weights: jax.Array  # [batch, reads, corners]
  write: jax.Array | None
  corners: jax.Array  # [batch, reads * corners] int32


def windowed_scan(
  params: WindowGates, state: MemoryState, inputs: StepInputs, window: Grid
) -> tuple[MemoryState, jax.Array]:
  """Same contract as `tmem.scan.plain_scan`, with an update of `window` cells per axis.

  Where rows may be emptied on the way all cells change: that is the plain scan, which recomputes
  each step backwards, and costs more than updating all cells does.
  """
  if inputs.clear is not None:
    step = jax.checkpoint(functools.partial(memory_step, params, window=window))
    return jax.lax.scan(step, state, inputs)
  shape = state.hidden.shape
  plan = _Plan(shape[0], shape[1:-1], window)
  rows = jnp.concatenate([state.hidden, state.cell], axis=-1).reshape(-1, 2 * shape[-1])
  corners, weights = corner_weights(inputs.read_at, plan.grid)
  corners = corners.reshape(*corners.shape[:2], -1)
  chunks = _Chunk(inputs.write_at, inputs.content, inputs.spread, weights, inputs.write, corners)
  rows, reads = _scan(plan, params, rows, chunks)
  hidden, cell = jnp.split(rows.reshape(*shape[:-1], -1), 2, axis=-1)
  return state._replace(hidden=hidden, cell=cell), reads


def _places(plan: _Plan, halo: int, chunk: _Chunk) -> tuple[jax.Array, jax.Array]:
  """Rows that a step gathers (window with halo, then corners), and rows that it overwrites."""
  window = window_at(chunk.write_at, plan.window, plan.grid, halo)
  cells = math.prod(plan.grid)
  first = jnp.arange(plan.batch, dtype=jnp.int32)[:, None] * cells
  around = window.cells()
  around = jnp.where(around < 0, plan.batch * cells, around + first)
  return jnp.concatenate([around, chunk.corners + first], axis=1), window.core().cells() + first


def _gather(rows: Rows, places: jax.Array) -> jax.Array:
  """[batch, n, 2C]; zeros off the grid."""
  return rows.at[places].get(mode="fill", fill_value=0)


def _local(plan: _Plan, params: WindowGates, chunk: _Chunk, gathered: jax.Array):
  """What a step makes of the rows that it gathered: new rows [batch, cells, 2C], and the read."""
  inputs = StepInputs(None, chunk.write_at, chunk.content, chunk.spread)
  window = window_at(chunk.write_at, plan.window, plan.grid, params.halo)
  cells, channels = math.prod(window.shape), gathered.shape[-1] // 2
  around = gathered[:, :cells].reshape(plan.batch, *window.shape, 2 * channels)
  corners = gathered[:, cells:, :channels].reshape(*chunk.weights.shape, channels)
  read = jnp.sum(corners * chunk.weights[..., None].astype(corners.dtype), axis=2)

  old = window.cut(around)
  gates = params.window_preactivations(inputs, around[..., :channels], window)
  new = jnp.concatenate(lstm_update(gates, old[..., channels:]), axis=-1)
  return select_rows(chunk.write, new, old).reshape(plan.batch, -1, 2 * channels), read


def _step(plan: _Plan, params: WindowGates, rows: Rows, chunk: _Chunk):
  """One chunk: `(rows, (read, rows that were overwritten))`."""
  places, own = _places(plan, params.halo, chunk)
  gathered = _gather(rows, places)
  new, read = _local(plan, params, chunk, gathered)
  return _put(rows, own, new), (read, gathered)


def _put(rows: Rows, places: jax.Array, new: jax.Array) -> Rows:
  return rows.at[places].set(new, unique_indices=True, mode="promise_in_bounds")


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _scan(plan: _Plan, params: WindowGates, rows: Rows, chunks: _Chunk):
  def step(rows, chunk):
    rows, (read, _) = _step(plan, params, rows, chunk)
    return rows, read

  return jax.lax.scan(step, rows, chunks)


def _scan_forward(plan, params, rows, chunks):
  def step(rows, chunk):
    rows, (read, gathered) = _step(plan, params, rows, chunk)
    return rows, (read, _overwritten(plan, params.halo, gathered))

  rows, (reads, old) = jax.lax.scan(step, rows, chunks)
  return (rows, reads), (params, rows, old, chunks)


def _overwritten(plan: _Plan, halo: int, gathered: jax.Array) -> jax.Array:
  """The rows of the window among those gathered: [batch, cells, 2C]."""
  shape = [min(w, n) + 2 * halo for w, n in zip(plan.window, plan.grid, strict=True)]
  around = gathered[:, : math.prod(shape)].reshape(len(gathered), *shape, -1)
  for axis, size in enumerate(shape, start=1):
    around = jax.lax.slice_in_dim(around, halo, size - halo, axis=axis)
  return around.reshape(len(gathered), -1, gathered.shape[-1])


def _scan_backward(plan, residuals, grads):
  params, rows, old, chunks = residuals
  rows_grad, read_grads = grads
  zeros = jax.tree.map(lambda a: jnp.zeros(a.shape, rows.dtype), params)
  (_, rows_grad, sums), chunk_grads = jax.lax.scan(
    functools.partial(_step_backward, plan, params),
    (rows, rows_grad, zeros),
    (old, chunks, read_grads),
    reverse=True,
  )
  return jax.tree.map(lambda g, p: g.astype(p.dtype), sums, params), rows_grad, chunk_grads


def _step_backward(plan: _Plan, params: WindowGates, carry, now):
  rows, rows_grad, sums = carry
  old, chunk, read_grad = now
  places, own = _places(plan, params.halo, chunk)
  rows = _put(rows, own, old)
  new_grad = _gather(rows_grad, own)

  def local(params, floats, gathered):
    return _local(plan, params, _Chunk(*floats, *chunk[4:]), gathered)

  _, backward = jax.vjp(local, params, tuple(chunk[:4]), _gather(rows, places))
  params_grad, floats_grad, gathered_grad = backward((new_grad, read_grad))
  rows_grad = _put(rows_grad, own, 0 * new_grad)
  rows_grad = rows_grad.at[places].add(gathered_grad, mode="drop")
  sums = jax.tree.map(lambda a, b: a + b.astype(a.dtype), sums, params_grad)
  return (rows, rows_grad, sums), _Chunk(*floats_grad, None, None)


_scan.defvjp(_scan_forward, _scan_backward)
