"""The memory module against the numpy memory, and what it refuses."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tmem import MemoryConfig, TensorMemory

FEATURES = 3
SMALL = MemoryConfig(channels=2, grid=(3, 2), chunk_size=4, forget_bias=1.0)


def make(**changes):
  return TensorMemory(dataclasses.replace(SMALL, **changes), FEATURES, rngs=nnx.Rngs(0))


def random_tokens(length, batch=2, seed=0):
  return np.random.default_rng(seed).normal(size=(batch, length, FEATURES)).astype(np.float32)


def assert_matches(reference, memory, y, state, x, mask=None, before=None):
  """Every row of `y` and of `state` against the numpy memory."""
  oracle = reference["Oracle"](memory)
  for row in range(len(x)):
    started = (None, None) if before is None else (before.hidden[row], before.cell[row])
    expected = oracle.run(x[row], None if mask is None else mask[row], *started)
    for ours, theirs in zip((y, state.hidden, state.cell), expected, strict=True):
      np.testing.assert_allclose(ours[row], theirs, atol=2e-5)


@pytest.fixture(scope="module", params=["first", "token"])
def memory(request, randomised):
  return randomised(lambda: make(read_query=request.param))


@pytest.fixture(scope="module")
def call(memory, compiled):
  return compiled(memory)


@pytest.mark.parametrize(
  "choice",
  [{"write": "nearest"}, {"coordinate_heads": "separate"}, {"depthwise": False}],
  ids=lambda choice: next(iter(choice)),
)
def test_each_part_that_can_be_exchanged_matches_the_numpy_memory(
  choice, randomised, compiled, reference
):
  memory = randomised(lambda: make(**choice))
  x = random_tokens(11)
  y, state = compiled(memory)(x, memory.init_state(2))
  assert_matches(reference, memory, y, state, x)


def test_a_write_into_the_nearest_cell_leaves_all_others(randomised):
  """With gates that keep a cell unless something is written there."""
  memory = make(write="nearest", grid=(4, 4), chunk_size=1, read_heads=1)
  x = random_tokens(1, batch=1)
  _, state = memory(x, memory.init_state(1))
  at = np.tanh(memory.coordinate(x[0, 0]))[::-1]
  nearest = tuple(np.rint((at + 1) / 2 * 3).astype(int))
  changed = np.argwhere(np.abs(state.cell[0]).max(axis=-1) > 0)
  assert [tuple(cell) for cell in changed] == [nearest]


@pytest.mark.parametrize("length", [1, 3, 4, 5, 31])
def test_any_length_matches_the_numpy_memory(length, memory, call, reference):
  x = random_tokens(length)
  start = memory.init_state(2)
  start = start._replace(hidden=start.hidden + 0.4, cell=start.cell - 0.7)
  y, state = call(x, start)
  assert y.shape == x.shape
  assert_matches(reference, memory, y, state, x, before=start)


def test_masks_match_the_numpy_memory(memory, call, reference):
  x, rng = random_tokens(10, batch=6), np.random.default_rng(3)
  mask = rng.uniform(size=(6, 10)) < 0.5
  mask[0] = True
  mask[1, :4] = False  # a whole chunk
  mask[2, 8:] = False  # the ragged end
  mask[3] = False
  y, state = call(x, memory.init_state(6), mask)
  assert_matches(reference, memory, y, state, x, mask)
  assert not np.asarray(y)[~mask].any()


@pytest.mark.parametrize(
  "changes",
  [
    {"grid": (2, 3, 4), "chunk_size": 2, "sigma_scale": 0.3},
    {"grid": (1, 2, 1), "chunk_size": 1, "sigma_min": 0.3, "sigma_max": 0.5},
    {"grid": (2, 1, 2, 2), "chunk_size": 3, "sigma_max": 0.8, "read_query": "token"},
    {"chunk_size": 2, "read_heads": 2, "write_heads": 3, "read_query": "token"},
    {"dynamics": "convlstm", "read_heads": 1},
    {"dynamics": "parallel", "read_heads": 3, "coordinate_heads": "separate"},
    {"dynamics": "selective", "update": "window", "window": (2, 2), "write_heads": 2},
  ],
)
def test_other_configurations_match_the_numpy_memory(changes, randomised, compiled, reference):
  memory = randomised(lambda: make(**changes))
  memory.spread.kernel[...] = 10.0 * memory.spread.kernel[...]  # so that both bounds are met
  x = random_tokens(7)
  y, state = compiled(memory)(x, memory.init_state(2))
  assert_matches(reference, memory, y, state, x)
  if "sigma_max" in changes:
    memory.config = dataclasses.replace(memory.config, sigma_min=None, sigma_max=None)
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
      assert_matches(reference, memory, y, state, x)


def test_a_summary_starts_with_the_mean_of_its_tokens_and_tells_them_apart():
  alone = TensorMemory(MemoryConfig(chunk_size=1), 32, rngs=nnx.Rngs(0))
  np.testing.assert_array_equal(alone.summary.kernel[...], np.eye(32))
  several = TensorMemory(MemoryConfig(chunk_size=4), 32, rngs=nnx.Rngs(0))
  parts = several.summary.kernel[...].reshape(4, 32, 32)
  random = parts - np.eye(32) / 4
  np.testing.assert_allclose(random.std(axis=(1, 2)), 0.75 * 128**-0.5, rtol=0.1)
  np.testing.assert_allclose(random.mean(axis=(1, 2)), 0.0, atol=0.01)
  assert np.abs(np.corrcoef(random.reshape(4, -1)) - np.eye(4)).max() < 0.15


def test_initial_parameters():
  memory = make(dynamics="convlstm", grid=(3, 4, 5), forget_bias=3.0)
  assert memory.gates.depthwise.shape == (3, 3, 4)
  np.testing.assert_array_equal(memory.gates.depthwise[:, 1], 1.0)
  np.testing.assert_array_equal(memory.gates.depthwise[:, ::2], 0.0)
  np.testing.assert_array_equal(memory.gates.depthwise_bias[...], 0.0)
  np.testing.assert_array_equal(memory.gates.pointwise_bias[...], [0, 0, 3, 3, 0, 0, 0, 0])
  bound = np.sqrt(6 / (4 + 8))
  assert 0.5 * bound < np.abs(memory.gates.pointwise[...]).max() <= bound
  np.testing.assert_array_equal(memory.spread.bias[...], 1.0)
  for name in ("summary", "coordinate", "content", "output"):
    np.testing.assert_array_equal(getattr(memory, name).bias[...], 0.0)
  leaves = jax.tree.leaves(nnx.state(memory, nnx.Param))
  assert len(leaves) == len(jax.tree.leaves(nnx.state(memory))) == 14
  assert {leaf.dtype for leaf in leaves} == {jnp.dtype(jnp.float32)}


def test_published_is_the_memory_with_a_neutral_forget_gate():
  memory = make(dynamics="convlstm", forget_bias=0.0)
  np.testing.assert_array_equal(memory.gates.pointwise_bias[...], 0.0)


@pytest.mark.parametrize("tail", ["commit", "hold"])
def test_initial_state(tail):
  memory = make()
  state = memory.init_state(3, tail=tail)
  assert state.hidden.shape == (3, 3, 2, 2)
  assert (state.pending is None) == (tail == "commit")
  assert jax.tree.map(jnp.shape, state) == jax.tree.map(jnp.shape, make(tail=tail).init_state(3))
  if tail == "hold":
    assert (state.pending.shape, state.fill.shape) == ((3, 3, FEATURES), (3,))
  assert not any(np.asarray(a).any() for a in jax.tree.leaves(state))


def test_recomputing_is_asked_of_the_scan(randomised, compiled):
  memory = randomised(make)
  x, state = random_tokens(31), memory.init_state(2)
  y, after = compiled(memory)(x, state)
  memory.config = dataclasses.replace(memory.config, remat=3)
  y_again, after_again = compiled(memory)(x, state)
  np.testing.assert_allclose(y_again, y, atol=1e-6)
  np.testing.assert_allclose(after_again.hidden, after.hidden, atol=1e-6)
  assert "remat" in str(jax.make_jaxpr(lambda x: memory(x, state))(x))


def test_later_tokens_have_no_influence(memory):
  """Neither on the values before them nor on the gradients."""
  graphdef, params = nnx.split(memory)
  start = memory.init_state(1)._replace(
    hidden=np.sin(np.arange(12, dtype=np.float32)).reshape(1, 3, 2, 2)
  )

  @jax.jit
  def pull(x, weights):
    y, back = jax.vjp(lambda x: nnx.merge(graphdef, params)(x, start)[0], x)
    return y, back(weights)[0]

  x = random_tokens(10, batch=1)
  for position in range(10):
    weights = np.zeros_like(x)
    weights[:, position] = 1.0
    y, grad = pull(x, weights)
    assert not np.asarray(grad)[:, position + 1 :].any()
    reader = position if memory.config.read_query == "token" else position // 4 * 4
    assert np.abs(grad[:, reader]).max() > 1e-4
    if position >= 4:
      assert np.abs(grad[:, : position // 4 * 4]).min() > 0.0  # all chunks before were written
    changed = x.copy()
    changed[:, position] += 1.0
    np.testing.assert_array_equal(pull(changed, weights)[0][:, :position], y[:, :position])


BAD_X = [
  (np.zeros((2, 5), np.float32), r"x: got shape \(2, 5\), expected \[batch, tokens, 3\]"),
  (np.zeros((2, 5, 4), np.float32), r"x: got shape \(2, 5, 4\)"),
  (np.zeros((2, 5, 3), np.int32), r"x: got dtype int32, expected a floating type"),
]


@pytest.mark.parametrize(("x", "message"), BAD_X)
def test_wrong_tokens_are_refused(x, message):
  memory = make()
  with pytest.raises(ValueError, match=f"^{message}"):
    memory(x, memory.init_state(2))


BAD_STATE = [
  ({"hidden": np.zeros((2, 3, 2, 5), np.float32)}, r"state\.hidden: got float32\[2, 3, 2, 5\]"),
  ({"hidden": np.zeros((1, 3, 2, 2), np.float32)}, r"state\.hidden: got .*\[2, 3, 2, 2\]"),
  ({"cell": np.zeros((2, 2, 3, 2), np.float32)}, r"state\.cell: got float32\[2, 2, 3, 2\]"),
  ({"cell": jnp.zeros((2, 3, 2, 2), jnp.bfloat16)}, r"state\.cell: got bfloat16"),
  ({"hidden": None}, r"state\.hidden: got None"),
  ({"pending": np.zeros((2, 1, 3), np.float32)}, r"state\.pending: .*expected float32\[2, 3, 3\]"),
  ({"pending_mask": np.zeros((2, 3), np.float32)}, r"state\.pending_mask: .*expected bool\[2, 3\]"),
  ({"fill": np.zeros((2, 1), np.int32)}, r"state\.fill: .*expected int32\[2\]"),
  ({"fill": None}, r"state\.fill: got None"),
]


@pytest.mark.parametrize(("changes", "message"), BAD_STATE)
def test_wrong_states_are_refused(changes, message):
  memory = make(tail="hold")
  with pytest.raises(ValueError, match=f"^{message}"):
    memory(random_tokens(5), memory.init_state(2)._replace(**changes))


@pytest.mark.parametrize(
  ("mask", "came"),
  [(np.ones((2, 4), bool), r"bool\[2, 4\]"), (np.ones((2, 5), np.float32), r"float32\[2, 5\]")],
)
def test_wrong_masks_are_refused(mask, came):
  memory = make()
  with pytest.raises(ValueError, match=rf"^mask: got {came}, expected bool\[2, 5\]"):
    memory(random_tokens(5), memory.init_state(2), mask)


def test_other_wrong_arguments_are_refused():
  memory = make()
  with pytest.raises(ValueError, match=r"^tail: got 'drop'"):
    memory(random_tokens(5), memory.init_state(2), tail="drop")
  with pytest.raises(ValueError, match=r"^tail: got 'drop'"):
    memory.init_state(2, tail="drop")
  with pytest.raises(ValueError, match=r"^batch_size: got 0"):
    memory.init_state(0)
  with pytest.raises(ValueError, match=r"^state: got tuple, expected a MemoryState"):
    memory(random_tokens(5), tuple(memory.init_state(2)))
  with pytest.raises(ValueError, match=r"^features: got 0"):
    TensorMemory(SMALL, 0, rngs=nnx.Rngs(0))


@pytest.mark.parametrize("tail", ["commit", "hold"])
def test_a_fresh_state_can_be_donated(tail, randomised, reference):
  memory = randomised(make)
  graphdef, params = nnx.split(memory)
  step = jax.jit(
    lambda params, state, x: nnx.merge(graphdef, params)(x, state, tail=tail), donate_argnums=1
  )
  state, x = memory.init_state(2, tail), random_tokens(4)
  y, after = step(params, state, x)
  assert state.hidden.is_deleted()
  assert_matches(reference, memory, y, after, x)
