"""The slot memory: what it computes, and what every memory of a stream promises."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tmem.slots import SlotConfig, SlotMemory

FEATURES, CHUNK, LENGTH = 4, 3, 11


@pytest.fixture(scope="module")
def memory(randomised):
  config = SlotConfig(count=5, chunk_size=CHUNK, tail="hold")
  return randomised(lambda: SlotMemory(config, FEATURES, rngs=nnx.Rngs(0)))


@pytest.fixture(scope="module")
def call(memory, compiled):
  return compiled(memory)


@pytest.fixture(scope="module")
def x():
  return np.random.default_rng(0).normal(size=(2, LENGTH, FEATURES)).astype(np.float32)


def softmax(scores, axis):
  weights = np.exp(scores - scores.max(axis=axis, keepdims=True))
  return weights / weights.sum(axis=axis, keepdims=True)


def sigmoid(x):
  return 1.0 / (1.0 + np.exp(-x))


class Oracle:
  """One row's slots, chunk by chunk, in float64."""

  def __init__(self, memory):
    self.params = jax.tree.map(np.float64, nnx.to_pure_dict(nnx.state(memory, nnx.Param)))

  def linear(self, name, x):
    return x @ self.params[name]["kernel"] + self.params[name]["bias"]

  def norm(self, x):
    scaled = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    return scaled * self.params["slot_norm"]["scale"] + self.params["slot_norm"]["bias"]

  def run(self, x):
    slots, ys = self.params["initial"], []
    for start in range(0, len(x), CHUNK):
      chunk = x[start : start + CHUNK]
      read_query, write_query, value, gate = np.split(self.linear("token", chunk), 4, -1)
      normed = self.norm(slots)
      read = softmax(read_query @ normed.T / np.sqrt(FEATURES), axis=1)
      ys.append(self.linear("output", read @ normed))
      share = softmax(normed @ write_query.T / np.sqrt(FEATURES), axis=0)
      keep = sigmoid(self.linear("keep", normed) + share @ gate)
      if len(chunk) == CHUNK:
        slots = keep * slots + (1 - keep) * np.tanh(share @ value)
    return np.concatenate(ys), slots


def test_outputs_and_slots_are_those_of_the_definition(memory, call, x):
  y, state = call(x, memory.init_state(2))
  for row in range(2):
    expected, slots = Oracle(memory).run(x[row].astype(np.float64))
    np.testing.assert_allclose(y[row], expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(state.slots[row], slots, rtol=1e-4, atol=1e-5)


def test_every_stream_starts_from_the_learned_slots(memory):
  state = memory.init_state(3)
  np.testing.assert_array_equal(state.slots[2], memory.initial[...])
  assert np.abs(state.slots).max() > 0.1


@pytest.mark.parametrize("cuts", [[1] * 11, [2, 1, 1, 2, 5], [5, 5, 1]])
def test_a_stream_in_pieces_is_the_stream_in_one_piece(cuts, memory, call, x):
  whole, end = call(x, memory.init_state(2))
  state, pieces, start = memory.init_state(2), [], 0
  for length in cuts:
    y, state = call(x[:, start : start + length], state)
    pieces.append(y)
    start += length
  np.testing.assert_allclose(jnp.concatenate(pieces, axis=1), whole, atol=1e-6)
  np.testing.assert_allclose(state.slots, end.slots, atol=1e-6)
  np.testing.assert_array_equal(state.fill, [LENGTH % CHUNK] * 2)


def test_masked_tokens_change_nothing_whatever_they_contain(memory, call, x):
  mask = np.array([list("11111111111"), list("01000110101")]) == "1"
  y, state = call(x, memory.init_state(2), mask)
  other, same = call(np.where(mask[..., None], x, np.nan), memory.init_state(2), mask)
  np.testing.assert_array_equal(y, other)
  np.testing.assert_array_equal(state.slots, same.slots)
  assert not np.asarray(y)[~mask].any()
  unread, untouched = call(x, memory.init_state(2), np.zeros((2, LENGTH), bool))
  assert not np.asarray(unread).any()
  np.testing.assert_array_equal(untouched.slots, memory.init_state(2).slots)


def test_rows_never_meet_and_gradients_are_finite(memory, x):
  graphdef, params = nnx.split(memory)

  @jax.jit
  def row_loss(params, x):
    y, state = nnx.merge(graphdef, params)(x, memory.init_state(2))
    return jnp.sum(y[0]) + jnp.sum(state.slots[0])

  by_input = jax.grad(row_loss, argnums=1)(params, x)
  assert not np.asarray(by_input[1]).any()
  assert np.asarray(by_input[0]).any()
  for extreme in (1e4 * x, 0 * x):
    leaves = jax.tree.leaves(jax.grad(row_loss)(params, extreme))
    assert all(np.isfinite(leaf).all() for leaf in leaves)


def test_bfloat16_compute_keeps_float32_slots():
  config = SlotConfig(count=2, chunk_size=2, dtype=jnp.bfloat16)
  memory = SlotMemory(config, FEATURES, rngs=nnx.Rngs(0))
  with jax.numpy_dtype_promotion("strict"):
    y, state = memory(jnp.ones((1, 4, FEATURES), jnp.bfloat16), memory.init_state(1))
  assert (y.dtype, state.slots.dtype) == (jnp.bfloat16, jnp.float32)


@pytest.mark.parametrize(
  ("field", "value"), [("count", 0), ("chunk_size", 0), ("forget_bias", "3"), ("tail", "keep")]
)
def test_wrong_fields_are_named(field, value):
  with pytest.raises(ValueError, match=f"^{field}: got"):
    SlotConfig(**{field: value})


def test_the_configuration_survives_json():
  config = SlotConfig(count=3, chunk_size=5, forget_bias=1.0, tail="hold", dtype=jnp.bfloat16)
  assert SlotConfig.from_dict(config.to_dict()) == config
