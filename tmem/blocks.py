"""Some chunks of a diagonal recurrence: one after another, or all at once.

A CPU goes through the chunks of a block in turn, which does the least work and stays in its
caches; an accelerator does all chunks at once with an associative scan. Both come with a
hand-written backward pass, which needs the state before the block and what drives its gates.
"""

from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp

from tmem.cell import cleared, select_rows
from tmem.grid import outer_product
from tmem.rows import add_rows, pick_rows
from tmem.scopes import GATES, READ, WRITE, scoped

Cells = jax.Array  # [batch, cells, C], the cell state with its grid flattened


class LinearGate(Protocol):
  """One gate before its nonlinearity, linear in what drives it: C numbers per cell."""

  def apply(self, values: jax.Array, vector: jax.Array | None) -> jax.Array:
    """The gate at some cells.

    Args:
      values: [..., batch, cells, k], the drive's volume there.
      vector: [..., batch, C], the drive's vector, or None.

    Returns:
      [..., batch, cells, C].
    """

  def at(self, cells: jax.Array) -> "LinearGate":
    """The gate for `values` at these cells [..., batch, m] of the flattened grid only."""

  def backward(
    self, values: jax.Array, vector: jax.Array | None, grad: jax.Array
  ) -> tuple["LinearGate", jax.Array, jax.Array | None]:
    """Gradients of `apply` towards the gate (summed over rows), `values` and `vector`."""


class Drive(NamedTuple):
  """What chunks tell their gates, in few numbers; arrays have leading axes [..., batch].

  Attributes:
    factors: one array [..., batch, n, k] per grid axis; their outer product is a volume of k
      numbers per cell.
    vectors: one array [..., batch, C] per gate, or None.
  """

  factors: tuple[jax.Array, ...]
  vectors: tuple[jax.Array | None, ...]

  def values(self) -> jax.Array:
    """The volume, with its grid flattened: [..., batch, cells, k]."""
    return _volume(self.factors)


class Chunks(NamedTuple):
  """Chunks of a recurrence; every array has leading axes [..., batch].

  Attributes:
    drive: of the gates i, f and g.
    write: [..., batch] bool, rows that are updated, or None for all.
    clear: [..., batch] bool, rows that are emptied before their write, or None for none.
    cells: [..., batch, m] int32, cells that are read before the write, or None for all.
  """

  drive: Drive
  write: jax.Array | None
  clear: jax.Array | None
  cells: jax.Array | None


class Gradients(NamedTuple):
  """Gradients of a block: towards its gates, the cell state before it, and its drive."""

  gates: tuple[LinearGate, ...]
  cell: Cells
  drive: Drive


def block_forward(
  gates: tuple[LinearGate, ...], cell: Cells, chunks: Chunks
) -> tuple[Cells, jax.Array]:
  """Runs the chunks of a block.

  Args:
    gates: i, f and g.
    cell: before the block.
    chunks: with a leading axis of chunks.

  Returns:
    `(cell, picked)`: after the block, and what each chunk's `cells` held before its write,
    [chunks, batch, m, C].
  """
  return jax.lax.platform_dependent(
    gates, cell, chunks, cpu=sequential_forward, default=associative_forward
  )


def block_backward(
  gates: tuple[LinearGate, ...],
  cell: Cells,
  chunks: Chunks,
  cell_grad: Cells,
  picked_grad: jax.Array,
) -> Gradients:
  """Gradients of `block_forward` from those of its two results."""
  return jax.lax.platform_dependent(
    gates,
    cell,
    chunks,
    cell_grad,
    picked_grad,
    cpu=sequential_backward,
    default=associative_backward,
  )


@scoped(READ)
def pick(state: Cells, cells: jax.Array | None) -> jax.Array:
  """[batch, m, C]: what the state holds at `cells` [batch, m], None for all."""
  if cells is None:
    return state
  return pick_rows(state, cells)


def sequential_forward(gates, cell, chunks):
  """`block_forward`, one chunk after another."""

  def step(cell, now):
    values, vectors, write, clear, cells = now
    picked, cell = pick(cell, cells), cleared(clear, cell)
    i, f, g = activate(gates, values, vectors)
    return select_rows(write, f * cell + i * g, cell), picked

  drive, *others = chunks
  return jax.lax.scan(step, cell, (drive.values(), drive.vectors, *others))


def sequential_backward(gates, cell, chunks, cell_grad, picked_grad):
  """`block_backward`, one chunk after another: forwards for the states, then back."""
  values, volume_backward = jax.vjp(_volume, chunks.drive.factors)
  drives = values, chunks.drive.vectors, chunks.write, chunks.clear

  def forward(cell, now):
    values, vectors, write, clear = now
    cell = cleared(clear, cell)
    activations = activate(gates, values, vectors)
    i, f, g = activations
    return select_rows(write, f * cell + i * g, cell), (cell, activations)

  def backward(carry, now):
    grad, sums = carry
    (cell, activations), (values, vectors, write, clear), cells, picked_grad = now
    gate_grads = activate_backward(activations, cell, grad, write)
    gates_grad, values_grad, vectors_grad = drive_backward(gates, values, vectors, gate_grads)
    grad = cleared(clear, select_rows(write, grad * activations[1], grad))
    sums = jax.tree.map(jnp.add, sums, gates_grad)
    return (_add_at(grad, cells, picked_grad), sums), (values_grad, vectors_grad)

  _, kept = jax.lax.scan(forward, cell, drives)
  zeros = jax.tree.map(lambda a: jnp.zeros(a.shape, cell.dtype), gates)
  (cell_grad, sums), (values_grad, vectors_grad) = jax.lax.scan(
    backward, (cell_grad, zeros), (kept, drives, chunks.cells, picked_grad), reverse=True
  )
  return Gradients(sums, cell_grad, Drive(*volume_backward(values_grad), vectors_grad))


def associative_forward(gates, cell, chunks):
  """`block_forward`, all chunks at once."""
  activations = activate(gates, chunks.drive.values(), chunks.drive.vectors)
  before, after = _states(activations, cell, chunks)
  return after, jax.vmap(pick)(before, chunks.cells)


def associative_backward(gates, cell, chunks, cell_grad, picked_grad):
  """`block_backward`, all chunks at once."""
  values, volume_backward = jax.vjp(_volume, chunks.drive.factors)
  vectors = chunks.drive.vectors
  activations = activate(gates, values, vectors)
  before, _ = _states(activations, cell, chunks)
  keep = _keep(activations[1], chunks)
  read = jax.vmap(_add_at)(jnp.zeros_like(before), chunks.cells, picked_grad)

  # The gradient of a state is the same recurrence, reversed, of the gradients of its reads.
  def shifted(volumes, end):
    return jnp.concatenate([volumes[1:], jnp.full_like(volumes[:1], end)])

  decay, added = jax.lax.associative_scan(
    _compose, (shifted(keep, 1.0), shifted(read, 0.0)), reverse=True
  )
  grads = decay * cell_grad + added
  gate_grads = activate_backward(activations, _cleared(before, chunks), grads, chunks.write)
  sums, values_grad, vectors_grad = drive_backward(gates, values, vectors, gate_grads)
  drive_grad = Drive(*volume_backward(values_grad), vectors_grad)
  return Gradients(sums, keep[0] * grads[0] + read[0], drive_grad)


@scoped(WRITE)
def _volume(factors: tuple[jax.Array, ...]) -> jax.Array:
  volume = outer_product(factors)
  lead = factors[0].ndim - 2
  return volume.reshape(*volume.shape[:lead], -1, volume.shape[-1])


@scoped(GATES)
def activate(gates, values, vectors) -> tuple[jax.Array, ...]:
  """The gates i, f and g: [..., batch, cells, C] each."""
  i, f, g = (gate.apply(values, vector) for gate, vector in zip(gates, vectors, strict=True))
  return jax.nn.sigmoid(i), jax.nn.sigmoid(f), jnp.tanh(g)


def _states(activations, cell: Cells, chunks: Chunks) -> tuple[jax.Array, Cells]:
  """The states before each chunk, [chunks, batch, cells, C], and the one after the last."""
  i, f, g = activations
  decay, added = jax.lax.associative_scan(
    _compose, (_keep(f, chunks), _select(chunks.write, i * g, 0.0))
  )
  after = decay * cell + added
  return jnp.concatenate([cell[None], after[:-1]]), after[-1]


def _keep(f: jax.Array, chunks: Chunks) -> jax.Array:
  """How much each chunk keeps of the state before it: [chunks, batch, cells, C]."""
  return _cleared(_select(chunks.write, f, 1.0), chunks)


def _cleared(volumes: jax.Array, chunks: Chunks) -> jax.Array:
  """Zeros for the chunks and rows that are emptied: [chunks, batch, cells, C]."""
  return volumes if chunks.clear is None else _select(~chunks.clear, volumes, 0.0)


def _compose(first, second):
  """The affine map `second` after the affine map `first`, as (factor, summand)."""
  return first[0] * second[0], first[1] * second[0] + second[1]


def _select(write: jax.Array | None, volume: jax.Array, otherwise: float) -> jax.Array:
  """`volume` [..., batch, cells, C] in the rows that write, a constant in the others."""
  return volume if write is None else jnp.where(write[..., None, None], volume, otherwise)


@scoped(GATES)
def activate_backward(activations, cell, grad, write) -> tuple[jax.Array, ...]:
  """Gradients towards i, f and g before their nonlinearities, from that of the cell after."""
  i, f, g = activations
  grad = _select(write, grad, 0.0)
  return grad * g * (i * (1.0 - i)), grad * cell * (f * (1.0 - f)), grad * i * (1.0 - g * g)


@scoped(GATES)
def drive_backward(gates, values, vectors, gate_grads):
  """Gradients towards the gates' parameters, `values` and `vectors`."""
  parts = [
    gate.backward(values, vector, grad)
    for gate, vector, grad in zip(gates, vectors, gate_grads, strict=True)
  ]
  parameters, of_values, of_vectors = zip(*parts, strict=True)
  return parameters, sum(of_values), of_vectors


@scoped(READ)
def _add_at(state: Cells, cells: jax.Array | None, added: jax.Array) -> Cells:
  if cells is None:
    return state + added
  return add_rows(state, cells, added)
