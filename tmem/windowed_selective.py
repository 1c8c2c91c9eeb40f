"""The fast scan of windowed writes under selective gates: c alone goes from step to step.

Selective gates do not see the state. So a step gathers and scatters c in its window and nothing
else, and the backward pass keeps c there, as it was, and needs no state. What reads see of h comes
afterwards, for all chunks at once: the output gate of the chunk that wrote a cell last, under the
Gaussian of that write. Which chunk that is, a scan of integers finds.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from tmem import blocks
from tmem.cell import MemoryState, StepInputs, select_rows
from tmem.diagonal import OUTPUT, without_output
from tmem.grid import cell_positions, corner_weights, gaussian_factors_at, outer_product
from tmem.selective import SelectiveParams, VectorGate
from tmem.typing import Grid
from tmem.window import put_rows, window_at

UNWRITTEN, EMPTIED = -1, -2  # in place of the number of the chunk that wrote a cell last

Rows = jax.Array  # [batch * cells, C]: c of every cell


class _Steps(NamedTuple):
  """What the chunks do to c; arrays have leading axes [chunks, batch].

  Attributes:
    values: [..., window, 1], the Gaussian in the window.
    vectors: of i, f and g, [..., C] each.
    window: [..., window] int32, rows that are written.
    corners: [..., m] int32, rows that are read before.
    write: [...] bool, or None for all.
    stale: [..., window] bool, rows emptied since they were written, or None for none.
  """

  values: jax.Array
  vectors: tuple[jax.Array, ...]
  window: jax.Array
  corners: jax.Array
  write: jax.Array | None
  stale: jax.Array | None


class _Sources(NamedTuple):
  """Chunks that wrote cells last, or `UNWRITTEN`, or `EMPTIED`; and cells to be emptied.

  Attributes:
    read: [chunks, batch, m], of the corners before each chunk.
    after: [batch * cells], after the last chunk.
    stale: see `_Steps`.
  """

  read: jax.Array
  after: jax.Array
  stale: jax.Array | None


def windowed_selective_scan(
  params: SelectiveParams, state: MemoryState, inputs: StepInputs, window: Grid
) -> tuple[MemoryState, jax.Array]:
  """Same contract as `tmem.windowed.windowed_scan`."""
  batch, *grid, channels = shape = state.hidden.shape
  grid, dtype = tuple(grid), state.hidden.dtype
  gates, vectors = params.gates(dtype), params.vectors(inputs, dtype)
  corners, weights = corner_weights(inputs.read_at, grid)
  corners = corners.reshape(*corners.shape[:2], -1)
  steps, sources = _steps(inputs, without_output(vectors), corners, window, grid)
  rows, picked = _recurrence(without_output(gates), state.cell.reshape(-1, channels), steps)
  rows = _emptied(inputs.clear, sources.after, rows)

  hidden = jnp.asarray(state.hidden).reshape(batch, -1, channels)
  last = _Last(gates[OUTPUT], vectors[OUTPUT], inputs, grid)
  seen = last.hidden(sources.read, corners, hidden, picked).reshape(*weights.shape, channels)
  reads = jnp.sum(seen * weights[..., None].astype(dtype), axis=-2)
  hidden = _hidden_after(last, steps, sources.after, hidden, rows)
  return state._replace(hidden=hidden.reshape(shape), cell=rows.reshape(shape)), reads


def _steps(
  inputs: StepInputs,
  vectors: tuple[jax.Array, ...],
  corners: jax.Array,
  window: Grid,
  grid: Grid,
) -> tuple[_Steps, _Sources]:
  """What the chunks do to c, and who wrote a cell last.

  Args:
    inputs: the chunks.
    vectors: of i, f and g, [chunks, batch, C] each.
    corners: [chunks, batch, m] int32, cells that are read.
    window: cells per axis of the window.
    grid: cells per axis of the grid.
  """
  chunks, batch, axes = inputs.write_at.shape
  write_at, spread = inputs.write_at.reshape(-1, axes), inputs.spread.reshape(-1)
  own = window_at(write_at, window, grid)
  factors = own.gaussian_factors(write_at, spread, vectors[0].dtype)
  values = outer_product(tuple(factor[..., None] for factor in factors))
  cells = math.prod(grid)
  first = cells * jnp.arange(batch, dtype=jnp.int32)[:, None]
  written, read = own.cells().reshape(chunks, batch, -1) + first, corners + first
  sources = _sources(written, read, inputs.write, inputs.clear, batch * cells)
  values = values.reshape(*written.shape, 1)
  return _Steps(values, vectors, written, read, inputs.write, sources.stale), sources


def _hidden_after(
  last: "_Last", steps: _Steps, source: jax.Array, hidden: jax.Array, rows: Rows
) -> jax.Array:
  """H after the last chunk; `hidden` [batch, cells, C] is h before the first one."""
  cells, written = hidden.shape[1], steps.window
  if written[:, 0].size >= cells:  # looking at every cell once is less than at every write
    shape = (1, *hidden.shape)
    every = jnp.broadcast_to(jnp.arange(cells, dtype=jnp.int32), shape[:-1])
    return last.hidden(source.reshape(every.shape), every, hidden, rows.reshape(shape))
  chunk = jnp.arange(len(written), dtype=jnp.int32)[:, None, None]
  places = jnp.where(source[written] == chunk, written, len(rows))  # the last write of each cell
  new = jax.nn.sigmoid(last.gate.apply(steps.values, last.vectors)) * jnp.tanh(rows[written])
  hidden = _emptied(last.inputs.clear, source, hidden.reshape(rows.shape))
  return hidden.at[places].set(new, mode="drop")


def _emptied(clear: jax.Array | None, after: jax.Array, rows: Rows) -> Rows:
  """Zeros for the rows that were emptied and not written since."""
  return rows if clear is None else jnp.where((after == EMPTIED)[:, None], 0, rows)


def _sources(
  written: jax.Array,
  read: jax.Array,
  write: jax.Array | None,
  clear: jax.Array | None,
  rows: int,
) -> _Sources:
  """Finds the chunks that wrote last.

  Args:
    written: [chunks, batch, window] int32, rows in the window of each chunk.
    read: [chunks, batch, m] int32, rows that each chunk reads.
    write: [chunks, batch] bool, or None for all.
    clear: [chunks, batch] bool, or None for none.
    rows: how many there are.
  """
  chunks, batch, size = written.shape

  def step(carry, now):
    last, emptied = carry  # [rows] and [batch, 1], when a row of the batch was emptied last
    chunk, written, read, write, clear = now
    found = last[jnp.concatenate([written, read], axis=1)]
    own, corners = found[:, :size], found[:, size:]
    corners = jnp.where(corners < emptied, EMPTIED, corners)
    if clear is not None:
      emptied = jnp.where(clear[:, None], chunk, emptied)
    # The chunk itself; as a function of what was gathered, so that the update is in place.
    new = select_rows(write, jnp.maximum(own, chunk), own)
    last = last.at[written].set(new, unique_indices=True, mode="promise_in_bounds")
    return (last, emptied), (corners, None if clear is None else own < emptied)

  start = jnp.full(rows, UNWRITTEN, jnp.int32), jnp.full((batch, 1), UNWRITTEN, jnp.int32)
  moves = jnp.arange(chunks, dtype=jnp.int32), written, read, write, clear
  (last, emptied), (corners, stale) = jax.lax.scan(step, start, moves)
  emptied = last.reshape(batch, -1) < emptied
  return _Sources(corners, jnp.where(emptied.reshape(-1), EMPTIED, last), stale)


def _step(gates: tuple[VectorGate, ...], rows: Rows, step: _Steps):
  """One chunk: `(rows, (c at the corners, c in the window))`, the latter two before the write."""
  gathered = rows[jnp.concatenate([step.window, step.corners], axis=1)]
  held, picked = jnp.split(gathered, [step.window.shape[1]], axis=1)
  before = _fresh(step, held)
  i, f, g = blocks.activate(gates, step.values, step.vectors)
  new = select_rows(step.write, f * before + i * g, held)
  return put_rows(rows, step.window, new), (picked, before)


def _fresh(step: _Steps, rows: jax.Array) -> jax.Array:
  """Zeros for rows of the window that are stale."""
  return rows if step.stale is None else jnp.where(step.stale[..., None], 0, rows)


@jax.custom_vjp
def _recurrence(gates: tuple[VectorGate, ...], rows: Rows, steps: _Steps):
  """C after the chunks, and at the corners before each: [chunks, batch, m, C]."""

  def step(rows, now):
    rows, (picked, _) = _step(gates, rows, now)
    return rows, picked

  return jax.lax.scan(step, rows, steps)


def _recurrence_forward(gates, rows, steps):
  rows, (picked, before) = jax.lax.scan(lambda rows, now: _step(gates, rows, now), rows, steps)
  return (rows, picked), (gates, steps, before)


def _recurrence_backward(residuals, grads):
  gates, steps, before = residuals
  rows_grad, picked_grad = grads

  def back(carry, now):
    grad, sums = carry
    step, before, picked_grad = now
    own = grad[step.window]
    activations = blocks.activate(gates, step.values, step.vectors)
    gate_grads = blocks.activate_backward(activations, before, own, step.write)
    found = blocks.drive_backward(gates, step.values, step.vectors, gate_grads)
    held_grad = select_rows(step.write, _fresh(step, own * activations[1]), own)
    grad = put_rows(grad, step.window, held_grad).at[step.corners].add(picked_grad)
    return (grad, jax.tree.map(jnp.add, sums, found[0])), found[1:]

  zeros = jax.tree.map(jnp.zeros_like, gates)
  (rows_grad, sums), (values_grad, vectors_grad) = jax.lax.scan(
    back, (rows_grad, zeros), (steps, before, picked_grad), reverse=True
  )
  return sums, rows_grad, _Steps(values_grad, vectors_grad, None, None, None, None)


_recurrence.defvjp(_recurrence_forward, _recurrence_backward)


class _Last(NamedTuple):
  """What it takes to say of the chunk that wrote a cell last what its output gate shows.

  Attributes:
    gate: the output gate.
    vectors: what each chunk tells it, [chunks, batch, C].
    inputs: the chunks.
    grid: cells per axis.
  """

  gate: VectorGate
  vectors: jax.Array
  inputs: StepInputs
  grid: Grid

  def hidden(
    self, source: jax.Array, cells: jax.Array, hidden: jax.Array, cell: jax.Array
  ) -> jax.Array:
    """H at some cells: [n, batch, m, C].

    Args:
      source: who wrote them last, see `_Sources`: [n, batch, m].
      cells: which cells, [n, batch, m].
      hidden: h before all chunks, [batch, cells of the grid, C].
      cell: c there, [n, batch, m, C].
    """
    write_at, spread = (_take(a, source) for a in (self.inputs.write_at, self.inputs.spread))
    positions = [
      cell_positions(size, write_at.dtype)[index][..., None]
      for size, index in zip(self.grid, jnp.unravel_index(cells, self.grid), strict=True)
    ]
    value = math.prod(gaussian_factors_at(positions, write_at, spread)).astype(cell.dtype)
    output = self.gate.apply(value[..., None], _take(self.vectors, source))[..., 0, :]
    written = jax.nn.sigmoid(output) * jnp.tanh(jnp.where((source >= 0)[..., None], cell, 0))
    unwritten = jax.vmap(blocks.pick, in_axes=(None, 0))(hidden, cells)
    unwritten = jnp.where((source == UNWRITTEN)[..., None], unwritten, 0)
    return jnp.where((source >= 0)[..., None], written, unwritten)


def _take(array: jax.Array, source: jax.Array) -> jax.Array:
  """Of `array` [chunks, batch, ...] the chunks in `source` [n, batch, m]: [n, batch, m, ...]."""
  rows = jnp.arange(source.shape[1], dtype=source.dtype)[:, None]
  return array[jnp.maximum(source, 0), rows]
