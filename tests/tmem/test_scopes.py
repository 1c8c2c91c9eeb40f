"""Names of the parts of a memory in compiled programs."""

import re

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from tmem import MemoryConfig, TensorMemory
from tmem.scopes import BACKWARD, GATES, MEMORY, READ, RECURRENCE, WRITE

MEMORIES = {
  "fused": {"dynamics": "convlstm"},
  "diagonal": {"dynamics": "selective"},
  "windowed": {"dynamics": "convlstm", "update": "window", "window": (2, 2)},
  "windowed_selective": {"dynamics": "selective", "update": "window", "window": (2, 2)},
}


@pytest.mark.parametrize("memory", MEMORIES)
def test_parts_of_a_memory_bear_their_names_forward_and_backward(memory):
  config = MemoryConfig(channels=2, grid=(3, 4), chunk_size=2, **MEMORIES[memory])
  graphdef, params = nnx.split(TensorMemory(config, 4, rngs=nnx.Rngs(0)))

  def loss(params, x):
    memory = nnx.merge(graphdef, params)
    return jnp.sum(jnp.square(memory(x, memory.init_state(1))[0]))

  text = jax.jit(jax.grad(loss)).lower(params, jnp.ones((1, 6, 4))).compile().as_text()
  found = {False: set(), True: set()}
  for name in re.findall(r'op_name="([^"]*)"', text):
    found["transpose(" in name].update(re.findall(r"\bmemory\w*", name))
  assert found[False] >= {MEMORY, READ, WRITE, GATES, RECURRENCE}
  assert found[True] >= {MEMORY, READ, WRITE, GATES, BACKWARD}
