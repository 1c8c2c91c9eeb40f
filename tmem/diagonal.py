"""The fast scan of dynamics whose gates do not see the state: parallel in time, block by block.

Without h in the gates, `c_s = f_s * c_{s-1} + i_s * g_s` is a linear recurrence, diagonal in cells
and channels. Of h only the corners of the reads are needed, so the output gate is evaluated there
and nowhere else, unless the grid is hardly larger than that. The backward pass keeps the cell at
the start of each block of chunks and, per chunk, the few numbers that make its gates; it recomputes
a block from those. `tmem.blocks` works on a block; a fused kernel belongs behind `_recurrence`.
"""

import functools
import math
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from tmem import blocks
from tmem.blocks import Cells, Chunks, Drive, LinearGate
from tmem.cell import Gates, MemoryState, StepInputs, cleared
from tmem.grid import cell_weights, corner_weights, outer_product_at
from tmem.scopes import BACKWARD, GATES, READ, RECURRENCE, scoped
from tmem.typing import Grid

OUTPUT = 2  # place of o in the order i, f, o, g
FEW_CELLS = 2  # per corner that a chunk reads: so few are all read, without gathering
BLOCK_STATES = 4  # volumes that the backward pass holds for each chunk of a block


class DiagonalGates(Gates, Protocol):
  """Gates that see what is written, and nothing of the state."""

  def linear(
    self, inputs: StepInputs, grid: Grid, dtype: Any
  ) -> tuple[tuple[LinearGate, ...], Drive]:
    """The gates as functions that are linear in few numbers per chunk.

    Args:
      inputs: chunks, with leading axes [chunks, batch].
      grid: cells per axis.
      dtype: type of the state.

    Returns:
      `(gates, drive)`: the gates i, f, o, g, and what the chunks tell them.
    """


def diagonal_scan(
  params: DiagonalGates, state: MemoryState, inputs: StepInputs
) -> tuple[MemoryState, jax.Array]:
  """Same contract as `tmem.scan.plain_scan`."""
  shape, grid = state.hidden.shape, state.hidden.shape[1:-1]
  linear = jax.checkpoint(lambda params, inputs: params.linear(inputs, grid, state.hidden.dtype))
  with jax.named_scope(GATES):
    gates, drive = linear(params, inputs)
  with jax.named_scope(READ):
    corners, weights = corner_weights(inputs.read_at, grid)
  if math.prod(grid) <= FEW_CELLS * math.prod(corners.shape[2:]):
    weights, cells = cell_weights(corners, weights, math.prod(grid)), None
  else:
    cells = corners.reshape(*corners.shape[:2], -1)
  hidden, cell = (a.reshape(shape[0], -1, shape[-1]) for a in (state.hidden, state.cell))

  others = Drive(drive.factors, without_output(drive.vectors))
  chunks = Chunks(others, inputs.write, inputs.clear, cells)
  cell, picked = _over_blocks(without_output(gates), cell, chunks)
  source = _last_write(inputs.write, len(picked))
  emptied = None if inputs.clear is None else jnp.cumsum(inputs.clear, axis=0) > 0
  gate, output = gates[OUTPUT], Drive(drive.factors, (drive.vectors[OUTPUT],))
  values = _hidden_before(gate, output, source, emptied, hidden, picked, cells)
  with jax.named_scope(READ):
    if cells is None:
      reads = jnp.matmul(weights, values, precision=jax.lax.Precision.HIGHEST)
    else:
      reads = jnp.sum(values.reshape(*corners.shape, -1) * weights[..., None], axis=-2)
  hidden = _hidden_after(gate, output, source, emptied, hidden, cell)
  return state._replace(hidden=hidden.reshape(shape), cell=cell.reshape(shape)), reads


def sequential_depth(chunks: int) -> int:
  """Steps that follow one another where a block is worked on all at once: blocks + log(block)."""
  size = block_size(chunks)
  return -(-chunks // size) + math.ceil(math.log2(size))


def block_size(chunks: int) -> int:
  """Chunks in a block: what makes boundary states and a block's own states fewest together."""
  return max(1, min(chunks, round(math.sqrt(chunks / BLOCK_STATES))))


def without_output(gates: tuple) -> tuple:
  """What makes c: i, f and g of the four."""
  return gates[:OUTPUT] + gates[OUTPUT + 1 :]


def _over_blocks(
  gates: tuple[LinearGate, ...], cell: Cells, chunks: Chunks
) -> tuple[Cells, jax.Array]:
  """`_recurrence` over blocks of one size and a shorter last one."""
  count = len(chunks.drive.factors[0])
  size = block_size(count)
  whole = count - count % size
  parts = []
  for part, length in ((slice(0, whole), size), (slice(whole, count), count - whole)):
    if length:
      split = jax.tree.map(lambda a: a[part].reshape(-1, length, *a.shape[1:]), chunks)  # noqa: B023
      cell, picked = _recurrence(gates, cell, split)
      parts.append(picked.reshape(-1, *picked.shape[2:]))
  return cell, jnp.concatenate(parts)


@jax.custom_vjp
@scoped(RECURRENCE)
def _recurrence(
  gates: tuple[LinearGate, ...], cell: Cells, chunks: Chunks
) -> tuple[Cells, jax.Array]:
  """The cell state after chunks [blocks, size, ...], and what was picked before each."""
  return jax.lax.scan(functools.partial(blocks.block_forward, gates), cell, chunks)


@scoped(RECURRENCE)
def _recurrence_forward(gates, cell, chunks):
  def block(cell, chunks):
    after, picked = blocks.block_forward(gates, cell, chunks)
    return after, (picked, cell)

  after, (picked, starts) = jax.lax.scan(block, cell, chunks)
  return (after, picked), (gates, starts, chunks)


@scoped(BACKWARD)
def _recurrence_backward(residuals, grads):
  gates, starts, chunks = residuals
  cell_grad, picked_grad = grads

  def block(carry, now):
    cell_grad, sums = carry
    start, chunks, picked_grad = now
    found = blocks.block_backward(gates, start, chunks, cell_grad, picked_grad)
    return (found.cell, jax.tree.map(jnp.add, sums, found.gates)), found.drive

  zeros = jax.tree.map(lambda a: jnp.zeros(a.shape, cell_grad.dtype), gates)
  (cell_grad, sums), drive_grad = jax.lax.scan(
    block, (cell_grad, zeros), (starts, chunks, picked_grad), reverse=True
  )
  gates_grad = jax.tree.map(lambda grad, own: grad.astype(own.dtype), sums, gates)
  return gates_grad, cell_grad, Chunks(drive_grad, None, None, None)


_recurrence.defvjp(_recurrence_forward, _recurrence_backward)


def _last_write(write: jax.Array | None, chunks: int) -> jax.Array | None:
  """Index of the last chunk up to each that wrote, -1 if none: [chunks, batch]; None: itself."""
  if write is None:
    return None
  return jax.lax.cummax(jnp.where(write, jnp.arange(chunks)[:, None], -1), axis=0)


@jax.checkpoint
@scoped(READ)
def _hidden_before(
  gate: LinearGate,
  drive: Drive,
  source: jax.Array | None,
  emptied: jax.Array | None,
  hidden: Cells,
  picked: jax.Array,
  cells: jax.Array | None,
) -> jax.Array:
  """H before each chunk at the cells it reads: [chunks, batch, m, C].

  Args:
    gate: the output gate.
    drive: what the chunks tell it.
    source: see `_last_write`.
    emptied: [chunks, batch] bool, whether a chunk up to each has emptied the state; None: none.
    hidden: h before the first chunk.
    picked: c before each chunk at the cells.
    cells: [chunks, batch, m], or None for all.
  """
  if source is None:
    drive = jax.tree.map(lambda a: jnp.concatenate([a[:1], a[:-1]]), drive)
  else:
    source = jnp.concatenate([jnp.full_like(source[:1], -1), source[:-1]])
    drive = jax.tree.map(lambda a: _at_source(a, source), drive)
  if cells is not None:
    values, gate = outer_product_at(drive.factors, cells), gate.at(cells)
  else:
    values = drive.values()
  found = jax.nn.sigmoid(gate.apply(values, drive.vectors[0])) * jnp.tanh(picked)
  if source is None:
    return found.at[0].set(blocks.pick(hidden, None if cells is None else cells[0]))
  if cells is not None:
    unwritten = jax.vmap(blocks.pick, in_axes=(None, 0))(hidden, cells)
  else:
    unwritten = jnp.broadcast_to(hidden, picked.shape)
  if emptied is not None:
    emptied = jnp.concatenate([jnp.zeros_like(emptied[:1]), emptied[:-1]])
    unwritten = jnp.where(emptied[..., None, None], 0, unwritten)
  return jnp.where((source < 0)[..., None, None], unwritten, found)


@scoped(RECURRENCE)
def _hidden_after(
  gate: LinearGate,
  drive: Drive,
  source: jax.Array | None,
  emptied: jax.Array | None,
  hidden: Cells,
  cell: Cells,
) -> Cells:
  """H after the last chunk; arguments as in `_hidden_before`."""
  if source is None:
    last = jax.tree.map(lambda a: a[-1], drive)
  else:
    last = jax.tree.map(lambda a: _at_source(a, source[-1:])[0], drive)
  after = jax.nn.sigmoid(gate.apply(last.values(), last.vectors[0])) * jnp.tanh(cell)
  if source is None:
    return after
  unwritten = hidden if emptied is None else cleared(emptied[-1], hidden)
  return jnp.where((source[-1] < 0)[:, None, None], unwritten, after)


def _at_source(array: jax.Array, source: jax.Array) -> jax.Array:
  """Rows of `array` [chunks, batch, ...] from the chunks in `source` [n, batch], or the first."""
  index = jnp.maximum(source, 0).reshape(*source.shape, *(1,) * (array.ndim - 2))
  return jnp.take_along_axis(array, index, axis=0, mode="clip")
