"""What a memory does, in numbers, against a loop over its steps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tmem import MemoryConfig, TensorMemory, memory_step
from tmem.activity import memory_activity
from tmem.cell import StepInputs

GRID = (3, 2)


def inputs(spread, write_at=None, write=None):
  """Steps [6, 2, ...] of a memory with 2 channels."""
  rng = np.random.default_rng(0)
  at = rng.uniform(-1, 1, size=(6, 2, 2)) if write_at is None else write_at
  return StepInputs(
    read_at=jnp.zeros((6, 2, 1, 2)),
    write_at=jnp.asarray(np.broadcast_to(at, (6, 2, 2)), jnp.float32),
    content=jnp.asarray(4 * rng.normal(size=(6, 2, 2)), jnp.float32),
    spread=jnp.broadcast_to(jnp.float32(spread), (6, 2)),
    write=write,
  )


@pytest.mark.parametrize("dynamics", ["convlstm", "parallel", "selective", "flow"])
def test_numbers_are_those_of_the_steps(dynamics, randomised):
  config = MemoryConfig(channels=2, grid=GRID, chunk_size=1, dynamics=dynamics, forget_bias=2.0)
  memory = randomised(lambda: TensorMemory(config, 4, rngs=nnx.Rngs(0)))
  params, state = memory.gates.params(), memory.init_state(2)
  write = jnp.asarray(np.random.default_rng(1).uniform(size=(6, 2)) < 0.7)
  steps = inputs(0.8, write=write)
  found = jax.jit(memory_activity)(params, state, steps)
  gates, largest = [], 0.0
  one = jax.jit(lambda state, now: (memory_step(params, state, now)[0], _gates(params, state, now)))
  for index in range(6):
    state, own = one(state, jax.tree.map(lambda a, i=index: a[i], steps))
    gates.append(np.asarray(own)[np.asarray(write[index])])
    largest = max(largest, float(jnp.abs(state.cell).max()))
  gates = np.concatenate(gates).reshape(-1, 4, 2)
  np.testing.assert_allclose(found.cell_max, largest, rtol=1e-5)
  np.testing.assert_allclose(found.shut, (gates < 0.05).mean(axis=(0, 2))[:3], atol=1e-6)
  np.testing.assert_allclose(found.open, (gates > 0.95).mean(axis=(0, 2))[:3], atol=1e-6)
  at = np.asarray(steps.write_at)[np.asarray(write)]
  np.testing.assert_allclose(found.spread, at.std(axis=0), rtol=1e-5)
  np.testing.assert_allclose(found.sigma, 0.8, rtol=1e-6)


def _gates(params, state, now):
  gates = jax.nn.sigmoid(params.preactivations(now, state.hidden))
  return gates.reshape(2, -1, 4, 2)


def test_writes_that_miss_all_cells_and_writes_that_tell_none_apart(randomised):
  config = MemoryConfig(channels=2, grid=GRID, chunk_size=1, update="window", window=(2, 2))
  memory = randomised(lambda: TensorMemory(config, 4, rngs=nnx.Rngs(0)))
  look = jax.jit(
    lambda steps: memory_activity(memory.gates.params(), memory.init_state(2), steps, (2, 2))
  )
  between = np.array([0.0, 0.5])  # of the two cells along one axis, three along the other
  narrow, fitting, wide = (look(inputs(s, between)) for s in (0.05, 0.7, 40.0))
  assert (narrow.lost, fitting.lost, wide.lost) == (1, 0, 0)
  assert (narrow.alike, fitting.alike, wide.alike) == (0, 0, 1)
  np.testing.assert_allclose(narrow.spread, 0, atol=1e-6)
  assert np.isnan(look(inputs(0.7, write=jnp.zeros((6, 2), bool))).lost)
