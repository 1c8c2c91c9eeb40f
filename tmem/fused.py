"""The fast scan of the published dynamics, with a hand-written backward pass.

What makes it fast: the Gaussian is separable and the depthwise convolution linear, so the
write half of the gate convolution is one small factor per axis, computed for all chunks
before the scan; all biases fold into one volume that no step changes; each step is one
[cells, 2C] x [2C, 4C] product. The backward pass keeps h and c of every step and nothing
else, recomputes the gates, and sums parameter gradients in its carry.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from tmem.cell import MemoryState, StepInputs, cleared, lstm_update, select_rows
from tmem.convlstm import GateParams
from tmem.convolution import as_parts, convolved_factors, factorised_conv, mixed
from tmem.grid import corner_weights, gaussian_factors, outer_product, read_corners
from tmem.placement import placed
from tmem.rows import add_rows, pick_rows
from tmem.scopes import BACKWARD, GATES, READ, RECURRENCE, WRITE, scoped
from tmem.typing import Grid, Volume


class _Weights(NamedTuple):
  taps: jax.Array  # [axes, 3, C] depthwise kernel of the hidden half, without bias
  pointwise: jax.Array  # [2, C, 4, C] in the compute type
  bias: jax.Array  # [*grid, 4, C] every bias of the gate convolution


class _Chunk(NamedTuple):
  factors: tuple[jax.Array, ...]  # per axis [batch, n, C]: the convolved write volume
  cells: jax.Array  # [batch, reads, corners] int32
  weights: jax.Array  # [batch, reads, corners]
  write: jax.Array | None  # [batch] bool
  clear: jax.Array | None  # [batch] bool


def fused_scan(
  params: GateParams, state: MemoryState, inputs: StepInputs
) -> tuple[MemoryState, jax.Array]:
  """Same contract as `plain_scan`."""
  dtype, grid = state.hidden.dtype, state.hidden.shape[1:-1]
  channels = inputs.content.shape[-1]
  taps = params.depthwise.astype(dtype)
  weights = _Weights(
    taps=taps[..., channels:],
    pointwise=as_parts(params.pointwise.astype(inputs.content.dtype), channels),
    bias=_bias_volume(params, grid, dtype),
  )
  factors = _write_factors(taps[..., :channels], inputs, grid)
  with jax.named_scope(READ):
    corners = corner_weights(inputs.read_at, grid)
  chunks = _Chunk(factors, *corners, inputs.write, inputs.clear)
  hidden, cell, reads = _scan(weights, state.hidden, state.cell, chunks)
  return state._replace(hidden=hidden, cell=cell), reads


def _bias_volume(params: GateParams, grid: Grid, dtype) -> jax.Array:
  """What the gate convolution makes of an empty input: [*grid, 4, C]."""
  empty = jnp.zeros((1, *grid, 2, params.pointwise.shape[0] // 2), dtype)
  return factorised_conv(empty, *params, dtype=dtype)[0]


@scoped(WRITE)
def _write_factors(taps: jax.Array, inputs: StepInputs, grid: Grid) -> tuple[jax.Array, ...]:
  """The convolved write volumes of all chunks as per-axis factors [chunks, batch, n, C]."""
  factors = gaussian_factors(inputs.write_at, inputs.spread, grid)
  first, *others = convolved_factors(factors, taps)
  return first * inputs.content.astype(taps.dtype)[..., None, :], *others


def _shifted(volume: jax.Array, axis: int) -> list[jax.Array]:
  """The three views of a volume padded by one along `axis` that its taps multiply."""
  size = volume.shape[axis] - 2
  return [jax.lax.slice_in_dim(volume, o, o + size, axis=axis) for o in range(3)]


def _conv_stages(volume: Volume, taps: jax.Array) -> list[jax.Array]:
  """The input, padded once, and the result of each further axis; the last one is the output."""
  stages = [jnp.pad(volume, [(0, 0), *[(1, 1)] * len(taps), (0, 0)])]
  for axis, kernel in enumerate(taps, start=1):
    parts = _shifted(stages[-1], axis)
    stages.append(sum(k * part for k, part in zip(kernel, parts, strict=True)))
  return stages


@scoped(GATES)
def _conv_backward(
  stages: list[jax.Array], taps: jax.Array, grad: Volume
) -> tuple[Volume, jax.Array]:
  """Gradients of `_conv_stages` towards its volume and its taps."""
  axes = len(taps)
  tap_grads = []
  for axis in range(axes, 0, -1):
    stage = stages[axis - 1]
    for later in range(axis + 1, axes + 1):
      stage = jax.lax.slice_in_dim(stage, 1, stage.shape[later] - 1, axis=later)
    sum_over = tuple(range(axes + 1))
    tap_grads.append(jnp.stack([jnp.sum(p * grad, sum_over) for p in _shifted(stage, axis)]))
    padded = jnp.pad(grad, [(1, 1) if a == axis else (0, 0) for a in range(axes + 2)])
    parts = _shifted(padded, axis)
    grad = sum(k * part for k, part in zip(taps[axis - 1, ::-1], parts, strict=True))
  return grad, jnp.stack(tap_grads[::-1])


@scoped(GATES)
def _gate_inputs(weights: _Weights, hidden: Volume, factors) -> tuple[list[jax.Array], jax.Array]:
  """The convolution stages of `hidden`, and the product's input [batch, *grid, 2, C]."""
  stages = _conv_stages(hidden, weights.taps)
  both = jnp.stack([outer_product(factors), stages[-1]], axis=-2)
  return stages, both.astype(weights.pointwise.dtype)


@scoped(GATES)
def _gates(weights: _Weights, both: jax.Array) -> jax.Array:
  return mixed(both, weights.pointwise, weights.bias.dtype) + weights.bias


def _step(weights: _Weights, carry, chunk: _Chunk):
  hidden, cell = carry
  with jax.named_scope(READ):
    read = read_corners(hidden, chunk.cells, chunk.weights)
  hidden, cell = cleared(chunk.clear, hidden), cleared(chunk.clear, cell)
  _, both = _gate_inputs(weights, hidden, chunk.factors)
  new_hidden, new_cell = lstm_update(_gates(weights, both), cell)
  carry = select_rows(chunk.write, new_hidden, hidden), select_rows(chunk.write, new_cell, cell)
  return carry, read


@jax.custom_vjp
@scoped(RECURRENCE)
def _scan(weights: _Weights, hidden: Volume, cell: Volume, chunks: _Chunk):
  (hidden, cell), reads = jax.lax.scan(functools.partial(_step, weights), (hidden, cell), chunks)
  return hidden, cell, reads


@scoped(RECURRENCE)
def _scan_forward(weights, hidden, cell, chunks):
  def step(carry, chunk):
    after, read = _step(weights, carry, chunk)
    return after, (read, carry)

  (hidden, cell), (reads, states) = jax.lax.scan(step, (hidden, cell), chunks)
  return (hidden, cell, reads), (weights, states, chunks)


@scoped(BACKWARD)
def _scan_backward(residuals, grads):
  weights, states, chunks = residuals
  hidden_grad, cell_grad, read_grads = grads
  weight_grads = jax.tree.map(lambda w: jnp.zeros(w.shape, weights.bias.dtype), weights)
  (hidden_grad, cell_grad, weight_grads), chunk_grads = jax.lax.scan(
    functools.partial(_step_backward, weights),
    (hidden_grad, cell_grad, weight_grads),
    (states, chunks, read_grads),
    reverse=True,
  )
  weight_grads = jax.tree.map(lambda g, w: g.astype(w.dtype), weight_grads, weights)
  return weight_grads, hidden_grad, cell_grad, chunk_grads


_scan.defvjp(_scan_forward, _scan_backward)


def _step_backward(weights: _Weights, carry, step):
  after_hidden_grad, after_cell_grad, sums = carry
  (before, cell), chunk, read_grad = step
  hidden, cell = cleared(chunk.clear, before), cleared(chunk.clear, cell)
  stages, both = _gate_inputs(weights, hidden, chunk.factors)
  gate_grad, cell_grad = _update_backward(
    _gates(weights, both), cell, after_hidden_grad, after_cell_grad
  )
  if chunk.write is not None:
    gate_grad = select_rows(chunk.write, gate_grad, jnp.zeros_like(gate_grad))
  cell_grad = select_rows(chunk.write, cell_grad, after_cell_grad)

  cells = tuple(range(both.ndim - 2))
  factor = placed(gate_grad.astype(both.dtype), "batch", *(None,) * (gate_grad.ndim - 1))
  both_grad = jnp.einsum(
    "...gd,pcgd->...pc", factor, weights.pointwise, preferred_element_type=hidden.dtype
  )
  hidden_grad, taps_grad = _conv_backward(stages, weights.taps, both_grad[..., 1, :])
  if chunk.write is not None:
    kept = select_rows(chunk.write, jnp.zeros_like(after_hidden_grad), after_hidden_grad)
    hidden_grad = hidden_grad + kept

  hidden_grad, cell_grad = cleared(chunk.clear, hidden_grad), cleared(chunk.clear, cell_grad)
  hidden_grad, corner_grad = _read_backward(before, chunk, read_grad, hidden_grad)
  sums = _Weights(
    taps=sums.taps + taps_grad,
    pointwise=sums.pointwise
    + jnp.tensordot(both, factor, (cells, cells), preferred_element_type=hidden.dtype),
    bias=sums.bias + jnp.sum(gate_grad, axis=0),
  )
  factor_grads = _outer_product_backward(chunk.factors, both_grad[..., 0, :])
  chunk_grad = _Chunk(factor_grads, None, corner_grad, None, None)
  return (hidden_grad, cell_grad, sums), chunk_grad


@scoped(RECURRENCE)
def _update_backward(gates, cell, after_hidden_grad, after_cell_grad):
  """Gradients of `lstm_update` towards the pre-activations and the cell before it."""
  i, f, o = (jax.nn.sigmoid(gates[..., gate, :]) for gate in range(3))
  g = jnp.tanh(gates[..., 3, :])
  squashed = jnp.tanh(f * cell + i * g)
  grad = after_cell_grad + after_hidden_grad * o * (1.0 - squashed * squashed)
  gate_grad = jnp.stack(
    [
      grad * g * (i * (1.0 - i)),
      grad * cell * (f * (1.0 - f)),
      after_hidden_grad * squashed * (o * (1.0 - o)),
      grad * i * (1.0 - g * g),
    ],
    axis=-2,
  )
  return gate_grad, grad * f


@scoped(READ)
def _read_backward(hidden, chunk: _Chunk, read_grad, hidden_grad):
  """Adds the read's gradient to `hidden_grad`, and returns that of the corner weights."""
  batch, *_, channels = hidden.shape
  cells = chunk.cells.reshape(batch, -1)
  corners = pick_rows(hidden.reshape(batch, -1, channels), cells)
  corners = corners.reshape(*chunk.cells.shape, channels)
  corner_grad = jnp.sum(corners * read_grad[:, :, None], axis=-1)
  spread_out = read_grad[:, :, None] * chunk.weights[..., None]
  flat = hidden_grad.reshape(batch, -1, channels)
  flat = add_rows(flat, cells, spread_out.reshape(batch, -1, channels))
  return flat.reshape(hidden.shape), corner_grad


@scoped(WRITE)
def _outer_product_backward(factors: tuple[jax.Array, ...], grad: Volume) -> tuple[jax.Array, ...]:
  """Gradients of `outer_product` towards each factor, by contracting one axis after another."""
  grads = []
  for axis in range(len(factors) - 1, 0, -1):
    before = outer_product(factors[:axis])
    sum_over = tuple(range(1, before.ndim - 1))
    grads.append(jnp.sum(before[..., None, :] * grad, axis=sum_over))
    last = factors[axis].reshape(len(grad), *(1,) * axis, *factors[axis].shape[1:])
    grad = jnp.sum(grad * last, axis=-2)
  return (grad, *grads[::-1])
