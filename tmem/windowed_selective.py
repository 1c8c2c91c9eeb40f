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
from tmem.rows import add_rows, pick_rows, put_rows
from tmem.scopes import BACKWARD, GATES, READ, RECURRENCE, WRITE, scoped
from tmem.selective import SelectiveParams, VectorGate
from tmem.typing import Grid, Volume
from tmem.window import window_at

UNWRITTEN, EMPTIED = -1, -2  # in place of the number of the chunk that wrote a cell last

Rows = jax.Array  # [batch, cells, C]: c of every cell


class _Steps(NamedTuple):
  """What the chunks do to c; arrays have leading axes [chunks, batch].

  Attributes:
    values: [..., window, 1], the Gaussian in the window.
    vectors: of i, f and g, [..., C] each.
    window: [..., window] int32, cells that are written.
    corners: [..., m] int32, cells that are read before.
    write: [...] bool, or None for all.
    stale: [..., window] bool, cells emptied since they were written, or None for none.
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
    after: [batch, cells], after the last chunk.
    stale: see `_Steps`.
  """

  read: jax.Array
  after: jax.Array
  stale: jax.Array | None


def windowed_selective_scan(
  params: SelectiveParams, state: MemoryState, inputs: StepInputs, window: Grid
) -> tuple[MemoryState, jax.Array]:
  """Same contract as `tmem.windowed.windowed_scan`."""
  shape, dtype = state.hidden.shape, state.hidden.dtype
  grid = shape[1:-1]
  with jax.named_scope(GATES):
    gates, vectors = params.gates(dtype), params.vectors(inputs, dtype)
  with jax.named_scope(READ):
    corners, weights = corner_weights(inputs.read_at, grid)
  corners = corners.reshape(*corners.shape[:2], -1)
  steps, sources = _steps(inputs, without_output(vectors), corners, window, grid)
  rows, picked = _recurrence(without_output(gates), _rows(state.cell), steps)
  rows = _emptied(inputs.clear, sources.after, rows)

  hidden = _rows(state.hidden)
  last = _Last(gates[OUTPUT], vectors[OUTPUT], inputs, grid)
  with jax.named_scope(READ):
    seen = last.hidden(sources.read, corners, hidden, picked).reshape(*weights.shape, -1)
    reads = jnp.sum(seen * weights[..., None].astype(dtype), axis=-2)
  hidden = _hidden_after(last, steps, sources.after, hidden, rows)
  return state._replace(hidden=hidden.reshape(shape), cell=rows.reshape(shape)), reads


def _rows(volume: Volume) -> Rows:
  return jnp.asarray(volume).reshape(len(volume), -1, volume.shape[-1])


@scoped(WRITE)
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

  def around(write_at, spread):
    own = window_at(write_at, window, grid)
    factors = own.gaussian_factors(write_at, spread, vectors[0].dtype)
    value = outer_product(tuple(factor[..., None] for factor in factors))
    return own.cells(), value.reshape(len(value), -1, 1)

  written, values = jax.vmap(around)(inputs.write_at, inputs.spread)
  sources = _sources(written, corners, inputs.write, inputs.clear, math.prod(grid))
  return _Steps(values, vectors, written, corners, inputs.write, sources.stale), sources


@scoped(RECURRENCE)
def _hidden_after(
  last: "_Last", steps: _Steps, source: jax.Array, hidden: jax.Array, rows: Rows
) -> jax.Array:
  """H after the last chunk; `hidden` [batch, cells, C] is h before the first one."""
  batch, cells, _ = hidden.shape
  written = steps.window
  if written[:, 0].size >= cells:  # looking at every cell once is less than at every write
    every = jnp.broadcast_to(jnp.arange(cells, dtype=jnp.int32), (1, batch, cells))
    return last.hidden(source[None], every, hidden, rows[None])[0]
  hidden = _emptied(last.inputs.clear, source, hidden)
  chunk = jnp.repeat(jnp.arange(len(written), dtype=jnp.int32), written.shape[-1])
  places, output = _by_row(written), _by_row(last.gate.apply(steps.values, last.vectors))
  new = jax.nn.sigmoid(output) * jnp.tanh(pick_rows(rows, places))
  newest = pick_rows(source[..., None], places)[..., 0] == chunk
  places = jnp.where(newest, places, cells)  # the others are dropped
  return jax.vmap(lambda hidden, at, new: hidden.at[at].set(new, mode="drop"))(hidden, places, new)


def _by_row(array: jax.Array) -> jax.Array:
  """From [chunks, batch, m, ...] to [batch, chunks * m, ...]."""
  batch_first = jnp.swapaxes(array, 0, 1)
  return batch_first.reshape(len(batch_first), -1, *array.shape[3:])


def _emptied(clear: jax.Array | None, after: jax.Array, rows: Rows) -> Rows:
  """Zeros for the rows that were emptied and not written since."""
  return rows if clear is None else jnp.where((after == EMPTIED)[..., None], 0, rows)


def _sources(
  written: jax.Array,
  read: jax.Array,
  write: jax.Array | None,
  clear: jax.Array | None,
  cells: int,
) -> _Sources:
  """Finds the chunks that wrote last.

  Args:
    written: [chunks, batch, window] int32, cells in the window of each chunk.
    read: [chunks, batch, m] int32, cells that each chunk reads.
    write: [chunks, batch] bool, or None for all.
    clear: [chunks, batch] bool, or None for none.
    cells: of the grid.
  """
  chunks, batch, size = written.shape

  def step(carry, now):
    last, emptied = carry  # of each cell [batch, cells, 1], of each row [batch, 1]
    chunk, written, read, write, clear = now
    found = pick_rows(last, jnp.concatenate([written, read], axis=1))[..., 0]
    own, corners = found[:, :size], found[:, size:]
    corners = jnp.where(corners < emptied, EMPTIED, corners)
    if clear is not None:
      emptied = jnp.where(clear[:, None], chunk, emptied)
    # The chunk itself; as a function of what was gathered, so that the update is in place.
    new = select_rows(write, jnp.maximum(own, chunk), own)
    last = put_rows(last, written, new[..., None])
    return (last, emptied), (corners, None if clear is None else own < emptied)

  start = tuple(jnp.full((batch, *n), UNWRITTEN, jnp.int32) for n in ((cells, 1), (1,)))
  moves = jnp.arange(chunks, dtype=jnp.int32), written, read, write, clear
  (last, emptied), (corners, stale) = jax.lax.scan(step, start, moves)
  last = last[..., 0]
  return _Sources(corners, jnp.where(last < emptied, EMPTIED, last), stale)


def _step(gates: tuple[VectorGate, ...], rows: Rows, step: _Steps):
  """One chunk: `(rows, (c at the corners, c in the window))`, the latter two before the write."""
  gathered = pick_rows(rows, jnp.concatenate([step.window, step.corners], axis=1))
  held, picked = jnp.split(gathered, [step.window.shape[1]], axis=1)
  before = _fresh(step, held)
  i, f, g = blocks.activate(gates, step.values, step.vectors)
  new = select_rows(step.write, f * before + i * g, held)
  return put_rows(rows, step.window, new), (picked, before)


def _fresh(step: _Steps, rows: jax.Array) -> jax.Array:
  """Zeros for rows of the window that are stale."""
  return rows if step.stale is None else jnp.where(step.stale[..., None], 0, rows)


@jax.custom_vjp
@scoped(RECURRENCE)
def _recurrence(gates: tuple[VectorGate, ...], rows: Rows, steps: _Steps):
  """C after the chunks, and at the corners before each: [chunks, batch, m, C]."""

  def step(rows, now):
    rows, (picked, _) = _step(gates, rows, now)
    return rows, picked

  return jax.lax.scan(step, rows, steps)


@scoped(RECURRENCE)
def _recurrence_forward(gates, rows, steps):
  rows, (picked, before) = jax.lax.scan(lambda rows, now: _step(gates, rows, now), rows, steps)
  return (rows, picked), (gates, steps, before)


@scoped(BACKWARD)
def _recurrence_backward(residuals, grads):
  gates, steps, before = residuals
  rows_grad, picked_grad = grads

  def back(carry, now):
    grad, sums = carry
    step, before, picked_grad = now
    own = pick_rows(grad, step.window)
    activations = blocks.activate(gates, step.values, step.vectors)
    gate_grads = blocks.activate_backward(activations, before, own, step.write)
    found = blocks.drive_backward(gates, step.values, step.vectors, gate_grads)
    held_grad = select_rows(step.write, _fresh(step, own * activations[1]), own)
    grad = add_rows(put_rows(grad, step.window, held_grad), step.corners, picked_grad)
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
  of_row = jax.vmap(lambda array, source: array[jnp.maximum(source, 0)], in_axes=1, out_axes=1)
  return of_row(array, source)
