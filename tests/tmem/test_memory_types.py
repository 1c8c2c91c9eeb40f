"""Number types, extreme inputs, and how often the memory is compiled."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tmem import MemoryConfig, TensorMemory
from tmem.config import DYNAMICS

FEATURES, CHUNK = 3, 2
SMALL = MemoryConfig(channels=2, grid=(1, 6), chunk_size=CHUNK)


def make(**changes):
  return TensorMemory(dataclasses.replace(SMALL, **changes), FEATURES, rngs=nnx.Rngs(0))


def tokens(length, dtype=np.float32):
  x = np.random.default_rng(0).normal(size=(2, length, FEATURES))
  return jnp.asarray(x, dtype)


def differentiate(memory):
  graphdef, params = nnx.split(memory)

  def loss(params, x, state, mask=None):
    y, state = nnx.merge(graphdef, params)(x, state, mask)
    return jnp.sum(y.astype(jnp.float32)) + jnp.sum(state.hidden).astype(jnp.float32), (y, state)

  return jax.value_and_grad(loss, argnums=(0, 1), has_aux=True), params


def assert_finite(tree):
  assert all(np.isfinite(np.asarray(a, np.float32)).all() for a in jax.tree.leaves(tree))


def furthest(ours, theirs):
  """The largest difference, relative to the largest number."""
  ours, theirs = (np.asarray(a, np.float32) for a in (ours, theirs))
  return np.abs(ours - theirs).max() / max(np.abs(theirs).max(), 1e-3)


@pytest.fixture(scope="module", params=["fast", "plain"])
def derive(request):
  """Value and gradients at given parameters, compiled once for all extremes."""
  call, params = differentiate(make(implementation=request.param))
  call = jax.jit(call)
  return lambda changed, x: call(changed(nnx.merge(nnx.graphdef(make()), params)), x, START)


START = (
  make()
  .init_state(2)
  ._replace(
    hidden=jnp.tanh(jnp.arange(24.0)).reshape(2, 1, 6, 2),
    cell=jnp.cos(jnp.arange(24.0)).reshape(2, 1, 6, 2),
  )
)


@pytest.mark.parametrize("raw", [-100.0, -20.0, 0.0, 100.0])
def test_any_raw_spread(raw, derive):
  def changed(memory):
    memory.spread.bias[...] = jnp.full(1, raw)
    memory.spread.kernel[...] = 0.1 * memory.spread.kernel[...]
    return nnx.state(memory)

  assert_finite(derive(changed, tokens(5)))


@pytest.mark.parametrize("scale", [1.0, 1e3, 1e8])
def test_coordinates_up_to_the_border(scale, derive):
  def changed(memory):
    memory.coordinate.kernel[...] = scale * memory.coordinate.kernel[...]
    return nnx.state(memory)

  (_, (y, state)), _ = result = derive(changed, tokens(5))
  assert_finite(result)
  assert np.abs(state.hidden).max() < 1.0
  assert np.abs(y).max() < 100.0


def test_huge_tokens_stay_finite(derive):
  assert_finite(derive(nnx.state, 1e6 * tokens(5)))


def test_bfloat16_computes_close_to_float32(randomised):
  whole = randomised(lambda: make(grid=(4,)))
  half = nnx.merge(*nnx.split(whole))
  half.config = dataclasses.replace(whole.config, dtype=jnp.bfloat16)
  for name in ("summary", "content", "output"):
    getattr(half, name).dtype = jnp.bfloat16
  x = tokens(7)
  results = {}
  for name, memory in (("whole", whole), ("half", half)):
    call, params = differentiate(memory)
    (_, (y, state)), grads = jax.jit(call)(params, x, memory.init_state(2))
    assert state.hidden.dtype == state.cell.dtype == jnp.float32
    assert grads[1].dtype == x.dtype
    assert {g.dtype for g in jax.tree.leaves(grads[0])} == {jnp.dtype(jnp.float32)}
    assert_finite((y, state, grads))
    results[name] = (y, state.hidden, grads)
    assert y.dtype == memory.config.dtype
  differences = jax.tree.leaves(jax.tree.map(furthest, results["half"], results["whole"]))
  assert max(differences) < 0.1
  assert min(differences[:2]) > 1e-4  # it did compute in bfloat16


@pytest.mark.parametrize("implementation", ["fast", "plain"])
def test_a_long_bfloat16_stream_does_not_drift(implementation, compiled):
  """500 steps whose rounding errors a bfloat16 state would keep and add up."""
  changes = {"chunk_size": 1, "grid": (4,), "forget_bias": 6.0, "implementation": implementation}
  whole, half = make(**changes), make(dtype=jnp.bfloat16, **changes)
  nnx.update(half, nnx.state(whole))
  x = tokens(500)
  x = x.astype(jnp.bfloat16).astype(jnp.float32)  # the same numbers to both
  _, expected = compiled(whole)(x, whole.init_state(2))
  _, state = compiled(half)(x, half.init_state(2))
  assert state.hidden.dtype == state.cell.dtype == jnp.float32
  for ours, theirs in ((state.hidden, expected.hidden), (state.cell, expected.cell)):
    assert furthest(ours, theirs) < 0.02


@pytest.mark.parametrize("dynamics", DYNAMICS)
def test_a_float32_state_stays_at_a_float64_one(dynamics, compiled):
  """2000 steps that compute in bfloat16; `launch/bench.py drift` does 10,000."""
  changes = {"chunk_size": 1, "grid": (4,), "forget_bias": 3.0, "dynamics": dynamics}
  with jax.enable_x64(True):
    x, cells = tokens(2000, jnp.bfloat16), []
    for state_dtype in (jnp.float32, jnp.float64):
      memory = make(dtype=jnp.bfloat16, param_dtype=jnp.float32, state_dtype=state_dtype, **changes)
      cells.append(compiled(memory)(x, memory.init_state(2))[1].cell)
    assert [cell.dtype for cell in cells] == [jnp.float32, jnp.float64]
    assert 0 < furthest(*cells) < 1e-3 * np.abs(cells[1]).max()


TYPES = {"float32": "float32", "bfloat16": "float32", "float64": "float64"}


CHOICES = [
  {"tail": "hold", "read_query": "token", "remat": 2},
  {"tail": "commit", "read_query": "first", "sigma_min": 0.1},
  {"tail": "commit", "read_query": "first", "implementation": "plain"},
]


@pytest.mark.parametrize("dtype", TYPES)
def test_no_type_is_promoted_silently(dtype):
  other = TYPES[dtype]
  with jax.enable_x64(dtype == "float64"), jax.numpy_dtype_promotion("strict"):
    for choice in CHOICES:
      memory = make(dtype=dtype, param_dtype=other, state_dtype=other, grid=(2,), **choice)
      call, params = differentiate(memory)
      mask = None if memory.config.implementation == "plain" else jnp.ones((2, 5), bool)
      (_, (y, state)), grads = jax.eval_shape(
        call, params, tokens(5, dtype), memory.init_state(2), mask
      )
      assert (y.dtype, state.hidden.dtype, state.cell.dtype) == (dtype, other, other)
      assert grads[1].dtype == dtype
      assert state.fill is None or state.fill.dtype == jnp.int32


def test_compiles_once_for_each_shape():
  memory = make(tail="hold")
  graphdef, params = nnx.split(memory)
  chex.clear_trace_counter()

  @jax.jit
  @chex.assert_max_traces(n=2)
  def call(params, x, state, mask):
    return nnx.merge(graphdef, params)(x, state, mask)[1]

  state, rng = memory.init_state(2), np.random.default_rng(0)
  for length in (3, 3, 5, 3, 5, 5):  # the number of waiting tokens differs every time
    state = call(params, tokens(length) * length, state, rng.uniform(size=(2, length)) < 0.5)
  assert call._cache_size() == 2
  with pytest.raises(AssertionError, match="traced > 2 times"):
    call(params, tokens(4), state, np.ones((2, 4), bool))
