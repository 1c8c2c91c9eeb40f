"""The sequence classifier: real-valued tokens in, a class at each out, segment by segment."""

import dataclasses

import jax
import numpy as np
import pytest
from flax import nnx

from tmem import MemoryConfig, interop
from tmem.audit import audit_model, future_influence
from tmem.decoder_config import METHODS
from tmem.models import SequenceConfig, SequenceModel
from tmem.slots import SlotConfig

LENGTH = 10
SMALL = SequenceConfig(
  input_features=3,
  classes=4,
  features=8,
  num_heads=2,
  num_layers=2,
  max_length=LENGTH,
  window=3,
  memory=MemoryConfig(channels=2, grid=(3, 2), chunk_size=2),
  slots=SlotConfig(count=3, chunk_size=2),
)


@pytest.fixture(scope="module")
def inputs():
  return np.random.default_rng(0).normal(size=(2, LENGTH, 3)).astype(np.float32)


def make(randomised, **changes):
  config = dataclasses.replace(SMALL, **changes)
  return randomised(lambda: SequenceModel(config, rngs=nnx.Rngs(0)))


@pytest.mark.parametrize("method", METHODS)
def test_later_tokens_have_exactly_no_influence(method, randomised, inputs):
  assert future_influence(make(randomised, method=method), inputs) == 0.0


@pytest.mark.parametrize(
  "change",
  [
    {"write": "nearest", "coordinate_heads": "separate"},
    {"depthwise": False, "read_query": "token"},
  ],
  ids=["nearest-separate", "no_depthwise-token"],
)
def test_no_part_that_can_be_exchanged_lets_the_future_in(change, randomised, inputs):
  memory = dataclasses.replace(SMALL.memory, **change)
  assert future_influence(make(randomised, memory=memory), inputs) == 0.0


def test_the_published_state_scope_is_seen_to_leak(randomised, inputs):
  model = make(randomised, state_scope="depth", allow_future_leak=True)
  assert future_influence(model, inputs) > 1e-6
  assert not audit_model(model, tokens=LENGTH, floor_steps=0)["causal"]


@pytest.mark.parametrize("method", ["slots_local", "tensor_local"])
def test_segments_hand_on_their_memories(method, randomised, inputs):
  """With attention of one token nothing but the memory crosses: segments equal one pass."""
  model = make(randomised, method=method, window=1, positions=False)
  whole = model(inputs)
  states, pieces = model.init_states(2), []
  for start in (0, 4, 8):
    logits, states = jax.jit(model.advance)(inputs[:, start : start + 4], states)
    pieces.append(logits)
  np.testing.assert_allclose(np.concatenate(pieces, axis=1), whole, atol=1e-5)


def test_memory_goes_where_attention_cannot(randomised, inputs):
  other = inputs.copy()
  other[:, 0] += 1
  for method, moved in (("local", False), ("slots_local", True), ("tensor_local", True)):
    model = make(randomised, method=method)
    last = [model(x)[:, -1] for x in (inputs, other)]
    assert np.array_equal(*last) is not moved, method


def test_a_saved_model_is_the_same_model(randomised, inputs, tmp_path):
  model = make(randomised, method="slots_local", dropout=0.1)
  interop.save_model(tmp_path / "model", model)
  again = interop.load_model(tmp_path / "model")
  assert again.config == model.config
  np.testing.assert_array_equal(again(inputs), model(inputs))


def test_a_model_is_not_saved_over_a_file(randomised, tmp_path):
  (tmp_path / "model").write_text("mine")
  with pytest.raises(ValueError, match=r"^directory: .*is a file"):
    interop.save_model(tmp_path / "model", make(randomised))
  assert (tmp_path / "model").read_text() == "mine"


def test_without_positions_any_length_will_do(randomised):
  inputs = np.ones((1, 2 * LENGTH, 3), np.float32)
  assert make(randomised, positions=False)(inputs).shape == (1, 2 * LENGTH, 4)
  with pytest.raises(ValueError, match=r"^inputs: got 20 in a row, but the model has 10 positions"):
    make(randomised)(inputs)


@pytest.mark.parametrize(
  ("inputs", "message"),
  [
    (np.ones((2, 5), np.float32), r"^inputs: got shape \(2, 5\), expected \[batch, tokens, 3\]"),
    (np.ones((2, 5, 3), np.int32), "^inputs: got dtype int32, expected a floating type"),
  ],
)
def test_wrong_inputs_are_named(inputs, message, randomised):
  with pytest.raises(ValueError, match=message):
    make(randomised)(inputs)


@pytest.mark.parametrize("field", ["input_features", "classes"])
def test_wrong_sizes_are_named(field):
  with pytest.raises(ValueError, match=f"^{field}: got 0"):
    dataclasses.replace(SMALL, **{field: 0})
