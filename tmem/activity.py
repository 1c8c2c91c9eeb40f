"""What a memory does while it runs, in a few numbers: whether it is in use, or has collapsed."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from tmem.cell import Gates, MemoryState, StepInputs, memory_step
from tmem.grid import gaussian_factors
from tmem.typing import Grid
from tmem.window import window_at

SHUT, OPEN = 0.05, 0.95  # gates below and above are saturated
UNREACHED = 0.01  # of its content, what the nearest cell gets of a write that is lost
ALIKE = 0.9  # what the farthest cell gets over the nearest, of a write that has no place


class Activity(NamedTuple):
  """What some steps of a memory did; shares are of the writes that happened.

  Attributes:
    cell_max: [], largest |c| after any step.
    shut: [3], share of the input, forget and output gates below `SHUT`, over steps and the cells
      that they change.
    open: [3], share of them above `OPEN`.
    sigma: [3], smallest, mean and largest spread of a write, in coordinate units.
    spread: [axes], standard deviation of the writes' coordinates, last grid axis first; 0.58 if
      they are uniform.
    lost: [], share of writes that reach no cell: the nearest gets less than `UNREACHED` of them.
    alike: [], share of writes that reach all cells alike: the farthest gets `ALIKE` or more of what
      the nearest gets.
  """

  cell_max: jax.Array
  shut: jax.Array
  open: jax.Array
  sigma: jax.Array
  spread: jax.Array
  lost: jax.Array
  alike: jax.Array


def memory_activity(
  params: Gates, state: MemoryState, inputs: StepInputs, window: Grid | None = None
) -> Activity:
  """Runs the memory, step by step, and looks on.

  Args:
    params: parameters of the gates.
    state: the state before the first chunk.
    inputs: as for `tmem.scan.memory_scan`, with a leading axis of chunks.
    window: likewise.

  Returns:
    What the steps did; NaN shares if nothing was written.
  """
  grid = state.hidden.shape[1:-1]

  def step(carry, now):
    state, largest, shut, opened, seen = carry
    gates = jax.nn.sigmoid(params.preactivations(now, state.hidden)[..., :3, :])  # i, f and o
    changed = _changed(now, grid, window)[..., None, None]
    state, _ = memory_step(params, state, now, window)
    axes = (*range(gates.ndim - 2), gates.ndim - 1)
    shut += jnp.sum((gates < SHUT) & changed, axes)
    opened += jnp.sum((gates > OPEN) & changed, axes)
    seen += jnp.sum(changed) * gates.shape[-1]
    largest = jnp.maximum(largest, jnp.max(jnp.abs(state.cell)))
    return (state, largest, shut, opened, seen), None

  zeros = jnp.zeros(3)
  start = (state, jnp.max(jnp.abs(state.cell)), zeros, zeros, jnp.float32(0))
  (_, largest, shut, opened, seen), _ = jax.lax.scan(step, start, inputs)
  return Activity(largest, shut / seen, opened / seen, *_of_writes(inputs, grid))


def _changed(inputs: StepInputs, grid: Grid, window: Grid | None) -> jax.Array:
  """[batch, *grid] bool: cells that a chunk changes."""
  if window is None:
    changed = jnp.ones((len(inputs.spread), *grid), bool)
  else:
    changed = window_at(inputs.write_at, window, grid).mask()
  if inputs.write is None:
    return changed
  return changed & inputs.write.reshape(-1, *(1,) * len(grid))


def _of_writes(inputs: StepInputs, grid: Grid) -> tuple[jax.Array, ...]:
  """The part of `Activity` that does not depend on the state: sigma, spread, lost and alike."""
  happens = jnp.ones(inputs.spread.shape, bool) if inputs.write is None else inputs.write
  count = jnp.sum(happens)

  def mean(values):
    own = happens.reshape(*happens.shape, *(1,) * (values.ndim - 2))
    return jnp.sum(jnp.where(own, values, 0), (0, 1)) / count

  sigma = jnp.stack(
    [
      jnp.min(jnp.where(happens, inputs.spread, jnp.inf)),
      mean(inputs.spread),
      jnp.max(jnp.where(happens, inputs.spread, -jnp.inf)),
    ]
  )
  spread = jnp.sqrt(mean(jnp.square(inputs.write_at - mean(inputs.write_at))))
  factors = gaussian_factors(inputs.write_at, inputs.spread, grid)
  nearest, farthest = (
    math.prod(end(factor, axis=-1) for factor in factors) for end in (jnp.max, jnp.min)
  )
  reaches = nearest >= UNREACHED
  return sigma, spread, mean(~reaches), mean(reaches & (farthest >= ALIKE * nearest))
