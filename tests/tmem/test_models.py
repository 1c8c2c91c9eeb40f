"""The language model: what it is made of, and that no logit sees a later token."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tmem import MemoryConfig
from tmem.audit import future_influence
from tmem.decoder_config import METHODS
from tmem.layout import Layout
from tmem.models import LanguageConfig, LanguageModel
from tmem.transformer import MemoryFusion

# Four chunks of three and a ragged end.
LENGTH, VOCABULARY, FEATURES = 14, 5, 8
SMALL = LanguageConfig(
  vocab_size=VOCABULARY,
  features=FEATURES,
  num_heads=2,
  num_layers=3,
  max_length=LENGTH,
  window=4,
  memory=MemoryConfig(channels=2, grid=(4,), chunk_size=3),
)
LEAKING = {"state_scope": "depth", "allow_future_leak": True}


def make(**changes):
  return LanguageModel(dataclasses.replace(SMALL, **changes), rngs=nnx.Rngs(0))


@pytest.fixture(scope="module")
def models(randomised, compiled):
  """Models by their changes, each made and compiled once."""
  known = {}

  def get(**changes):
    key = json.dumps(changes, sort_keys=True, default=str)
    if key not in known:
      model = randomised(lambda: make(**changes))
      known[key] = model, compiled(model)
    return known[key]

  return get


@pytest.fixture(scope="module")
def tokens():
  return np.random.default_rng(0).integers(0, VOCABULARY, size=(3, LENGTH)).astype(np.int32)


def test_the_methods():
  parts = {name: tuple(method) for name, method in METHODS.items()}
  assert parts == {
    "base": ("full", None, False, "learned"),
    "base_sln": ("full", None, True, "learned"),
    "local": ("window", None, False, "learned"),
    "local_rope": ("window", None, False, "rotary"),
    "linear": ("linear", None, False, "learned"),
    "gated_delta": ("delta", None, False, "learned"),
    "xl": ("segments", None, False, "distance"),
    "slots": ("full", "slots", False, "learned"),
    "slots_local": ("window", "slots", False, "learned"),
    "tensor": ("full", "memory", False, "learned"),
    "tensor_sln": ("full", "memory", True, "learned"),
    "tensor_local": ("window", "memory", False, "learned"),
    "tensor_local_rope": ("window", "memory", False, "rotary"),
  }


@pytest.mark.parametrize("method", METHODS)
def test_later_tokens_have_exactly_no_influence(method, models, tokens):
  model, call = models(method=method)
  assert model.causal
  assert future_influence(call, tokens) == 0.0


@pytest.mark.parametrize("method", ["tensor", "tensor_local"])
def test_the_published_state_scope_is_seen_to_leak(method, models, tokens):
  model, call = models(method=method, **LEAKING)
  assert not model.causal
  assert future_influence(call, tokens) > 1e-6


@pytest.mark.parametrize("method", METHODS)
def test_earlier_tokens_do_have_influence(method, models, tokens):
  """As far back as attention and memory reach, so that the zeros above say something."""
  _, call = models(method=method)
  other = tokens.copy()
  other[:, 0] = (other[:, 0] + 1) % VOCABULARY
  moved = np.abs(call(other) - call(tokens)).max(axis=(0, 2))
  reach = 3 * (SMALL.window - 1) + 1 if method in ("local", "local_rope") else LENGTH
  assert (moved[:reach] > 0).all()
  assert not moved[reach:].any()


@pytest.mark.parametrize("method", ["tensor", "tensor_local"])
def test_the_leak_has_to_be_allowed(method):
  with pytest.raises(ValueError, match=r"state_scope: 'depth'.*allow_future_leak=True"):
    dataclasses.replace(SMALL, method=method, state_scope="depth")
  assert not dataclasses.replace(SMALL, method=method, **LEAKING).causal
  assert dataclasses.replace(SMALL, method=method, allow_future_leak=True).causal


@pytest.mark.parametrize("method", ["base", "local"])
def test_without_a_memory_there_is_no_leak(method):
  assert dataclasses.replace(SMALL, method=method, state_scope="depth").causal


@pytest.mark.parametrize("method", ["tensor", "local"])
def test_padding_does_not_matter(method, models, tokens):
  _, call = models(method=method)
  for real in (1, 7, 12):
    mask = np.broadcast_to(np.arange(LENGTH) < real, tokens.shape)
    padded = np.where(mask, tokens, 3).astype(np.int32)
    np.testing.assert_allclose(
      call(padded, None, mask)[:, :real], call(tokens)[:, :real], atol=1e-5
    )
  holes = np.arange(LENGTH) % 5 != 2
  mask = np.broadcast_to(holes, tokens.shape)
  before = call(tokens, None, mask)
  after = call(np.where(mask, tokens, (tokens + 1) % VOCABULARY), None, mask)
  np.testing.assert_array_equal(before[:, holes], after[:, holes])


def test_rows_do_not_know_of_each_other(models, tokens):
  _, call = models(method="tensor_local")
  other = tokens.copy()
  other[1] = other[1, ::-1]
  before, after = np.asarray(call(tokens)), np.asarray(call(other))
  np.testing.assert_array_equal(after[[0, 2]], before[[0, 2]])
  assert np.abs(after[1] - before[1]).max() > 1e-3


def test_dropout_needs_a_key_and_follows_it(models, tokens):
  _, call = models(method="tensor_local", num_layers=1, dropout=0.5)
  _, without = models(method="tensor_local", num_layers=1)
  one, two = jax.random.split(jax.random.key(0))
  np.testing.assert_array_equal(call(tokens), without(tokens))
  np.testing.assert_array_equal(call(tokens, one), call(tokens, one))
  assert np.abs(call(tokens, one) - call(tokens, two)).max() > 1e-2
  np.testing.assert_array_equal(without(tokens, one), without(tokens))


@pytest.mark.parametrize("every", [1, 2])
def test_one_memory_and_a_norm_and_a_gate_for_each_block(every):
  model = nnx.eval_shape(lambda: make(method="tensor", memory_every_n_layers=every))
  layers = (0, 1, 2) if every == 1 else (0, 2)
  assert model.config.memory_layers == layers
  paths = {".".join(map(str, path)) for path, _ in nnx.to_flat_state(nnx.state(model))}
  memory = {p for p in paths if any(k in p for k in ("summary", "content", "spread", "gates"))}
  assert len(memory) == 3 * 2 + 2
  assert all(p.startswith("memory.") for p in memory)
  own = ("gate", "norm.scale", "norm.bias")
  assert {p for p in paths if "fusion" in p} == {
    f"blocks.{layer}.fusion.{name}" for layer in layers for name in own
  }
  assert all(isinstance(v, nnx.Param) for _, v in nnx.to_flat_state(nnx.state(model)))


def test_methods_without_memory_have_no_parameters_of_it():
  model = nnx.eval_shape(lambda: make(method="local"))
  assert model.memory is None
  assert not [p for p, _ in nnx.to_flat_state(nnx.state(model)) if "fusion" in p or "memory" in p]


@pytest.mark.parametrize("changes", [LEAKING, {"memory_every_n_layers": 2}])
def test_scope_layer_starts_every_block_empty_and_depth_hands_on(changes, models, tokens):
  model, call = models(method="tensor", **changes)
  graphdef, params = nnx.split(model)

  @jax.jit
  def by_hand(params):
    model = nnx.merge(graphdef, params)
    x = model.embedding(tokens) + model.positions[:LENGTH]
    states = []
    for layer, block in enumerate(model.blocks):
      before = states[-1] if states and "state_scope" in changes else model.memory.init_state(3)
      x = x + block.attention(block.attention_norm(x), Layout())[0]
      x = x + block.mlp(block.mlp_norm(x))
      if layer in model.config.memory_layers:
        y, after = model.memory(block.fusion.norm(x), before)
        x = x + jax.nn.sigmoid(block.fusion.gate[...]) * y
        states.append(after)
    return model.norm(x) @ model.embedding.embedding[...].T

  np.testing.assert_allclose(call(tokens), by_hand(params), atol=1e-5)


def test_gradients_of_the_shared_memory_come_from_all_blocks(models, tokens):
  """Against differences of the loss along one direction of the memory's parameters."""
  with jax.enable_x64(True):
    types = {"dtype": "float64", "param_dtype": "float64"}
    memory = dataclasses.replace(SMALL.memory, state_dtype="float64")
    model, _ = models(method="tensor", num_layers=2, memory=memory, **types)
    graphdef, params = nnx.split(model)

    @jax.jit
    def loss(params):
      logits = nnx.merge(graphdef, params)(tokens)
      return jnp.sum(jnp.sin(logits))

    numbers = nnx.to_pure_dict(jax.tree.map(np.asarray, params))
    grads = nnx.to_pure_dict(jax.tree.map(np.asarray, jax.jit(jax.grad(loss))(params)))["memory"]
    rng = np.random.default_rng(1)
    direction = jax.tree.map(lambda g: rng.normal(size=g.shape), grads)
    slope = sum(jax.tree.leaves(jax.tree.map(lambda g, d: np.sum(g * d), grads, direction)))

    def moved(step):
      memory = jax.tree.map(lambda p, d: p + step * d, numbers["memory"], direction)
      nnx.replace_by_pure_dict(params, numbers | {"memory": memory})
      return float(loss(params))

    numeric = (moved(1e-5) - moved(-1e-5)) / 2e-5
    assert abs(slope) > 1e-2
    np.testing.assert_allclose(slope, numeric, rtol=1e-5)


def test_bytes_of_a_stream():
  layer = 2 * FEATURES * 4  # one key and one value in float32
  cells = 2 * (4 * 2) * 4  # hidden and cell of 4 cells of 2 channels
  waiting = 2 * FEATURES * 4 + 2 + 4  # two tokens, their mask, and their number
  expected = {
    "base": 3 * layer * (LENGTH - 1),
    "local": 3 * layer * 3,
    "tensor": 3 * layer * (LENGTH - 1) + 3 * (cells + waiting),
    "tensor_local": 3 * layer * 3 + 3 * (cells + waiting),
  }
  for method, size in expected.items():
    assert nnx.eval_shape(lambda m=method: make(method=m)).state_bytes() == size
  half = nnx.eval_shape(lambda: make(method="base", dtype="bfloat16"))
  assert half.state_bytes() == expected["base"] / 2
  every_second = nnx.eval_shape(lambda: make(method="tensor_local", memory_every_n_layers=2))
  assert every_second.state_bytes() == 3 * layer * 3 + 2 * (cells + waiting)
  leaking = nnx.eval_shape(lambda: make(method="tensor_local", **LEAKING))
  assert leaking.state_bytes() == 3 * layer * 3 + cells + waiting


def test_fusion_gates(models):
  fusion = MemoryFusion(2, -2.0, 0.0, dtype=np.float32, param_dtype=np.float32, rngs=nnx.Rngs(0))
  assert float(fusion.gate[...]) == -2.0
  model, _ = models(method="tensor", memory_every_n_layers=2)
  expected = {
    f"block_{layer}": 1 / (1 + np.exp(-float(model.blocks[layer].fusion.gate[...])))
    for layer in (0, 2)
  }
  assert model.fusion_gates() == pytest.approx(expected)
  assert expected["block_0"] != pytest.approx(expected["block_2"])
  assert models(method="local")[0].fusion_gates() == {}


def test_bfloat16_models_give_float32_logits(models, tokens):
  model, call = models(method="tensor_local", dtype="bfloat16")
  half, whole = call(tokens), models(method="tensor_local")[1](tokens)
  assert half.dtype == whole.dtype == jnp.float32
  assert model.memory.config.dtype == jnp.bfloat16
  assert model.memory.init_state(1).hidden.dtype == jnp.float32
  assert 1e-4 < np.abs(half - whole).max() < 0.1 * np.abs(whole).max()


@pytest.mark.parametrize(
  ("wrong", "message"),
  [
    (np.zeros((1, LENGTH + 1), np.int32), r"tokens: got 15 in a row, .*14 positions"),
    (np.zeros((1, 3), np.float32), r"tokens: got float32\[1, 3\], expected integers"),
    (np.zeros((1, 3), bool), r"tokens: got bool\[1, 3\], expected integers"),
    (np.zeros((3,), np.int32), r"tokens: got int32\[3\], expected integers \[batch, tokens\]"),
  ],
)
def test_wrong_tokens_are_refused(wrong, message, models):
  with pytest.raises(ValueError, match=f"^{message}"):
    models(method="local")[0](wrong)


@pytest.mark.parametrize("mask", [np.ones((3, 2), bool), np.ones((3, LENGTH), np.int32)])
def test_wrong_masks_are_refused(mask, models, tokens):
  with pytest.raises(ValueError, match=r"^mask: got .*, expected bool\[3, 14\]"):
    models(method="local")[0](tokens, mask=mask)


BAD = [
  *[(name, 0) for name in ("vocab_size", "features", "num_heads", "num_layers", "mlp_features")],
  *[(name, 1.5) for name in ("max_length", "window", "memory_every_n_layers")],
  *[("features", value) for value in (9, True)],
  *[("method", value) for value in ("xxl", None)],
  *[("dropout", value) for value in (-0.1, 1.0, float("nan"), "0")],
  *[("gate_init", value) for value in (float("inf"), None)],
  ("state_scope", "time"),
  *[("dtype", value) for value in ("int32", None)],
  ("param_dtype", "text"),
  *[("memory", value) for value in (None, {"channels": 2})],
]


@pytest.mark.parametrize(("name", "value"), BAD)
def test_a_bad_field_names_itself(name, value):
  with pytest.raises(ValueError, match=rf"^{name}: "):
    dataclasses.replace(SMALL, **{name: value})


def test_json_round_trip():
  config = dataclasses.replace(SMALL, dtype="bfloat16", dropout=0.1, method="tensor", **LEAKING)
  assert LanguageConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
  assert LanguageConfig.from_dict({"vocab_size": 3}) == LanguageConfig(vocab_size=3)
  with pytest.raises(ValueError, match=r"LanguageConfig has no field 'layers'"):
    LanguageConfig.from_dict({"vocab_size": 3, "layers": 2})
  assert LanguageConfig(vocab_size=3, features=8).mlp_features == 32


def test_a_memory_in_a_block_holds_nothing_back(models, tokens):
  logits = [
    models(method="tensor", memory=dataclasses.replace(SMALL.memory, tail=tail), **LEAKING)[1](
      tokens[:, :7]
    )
    for tail in ("commit", "hold")
  ]
  np.testing.assert_allclose(*logits, atol=1e-5)


@pytest.mark.parametrize("method", ["slots_local", "tensor_local"])
def test_bfloat16_needs_no_silent_promotion(method, tokens):
  config = dataclasses.replace(SMALL, method=method, dtype="bfloat16")
  with jax.numpy_dtype_promotion("strict"):
    model = LanguageModel(config, rngs=nnx.Rngs(0))
    logits = jax.eval_shape(model, tokens)
    states = jax.eval_shape(lambda: model.init_states(2))
  assert logits.dtype == jnp.float32
  assert {leaf.dtype for leaf in jax.tree.leaves(states)} == {jnp.dtype(jnp.float32)}


def test_lists_do_for_tokens_and_masks_and_there_may_be_no_token(models, tokens):
  model, call = models(method="tensor_local")
  mask = np.arange(LENGTH) < 9
  as_lists = model(tokens.tolist(), mask=[mask.tolist()] * 3)
  np.testing.assert_allclose(as_lists[:, :9], call(tokens)[:, :9], atol=1e-5)
  assert model(np.zeros((2, 0), np.int32)).shape == (2, 0, VOCABULARY)
