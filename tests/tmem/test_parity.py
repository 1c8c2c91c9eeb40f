"""Our modules against the numbers of the authors' implementation."""

import dataclasses
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import tmem.attention
from tmem import interop

GOLDEN = Path(__file__).parent.parent / "golden"
MEMORY_VECTORS = sorted(p.name for p in GOLDEN.glob("memory_*.npz"))
LANGUAGE_VECTORS = [
  "lm_base.npz",
  "lm_base_sln.npz",
  "lm_linear.npz",
  "lm_local.npz",
  "lm_tensor_1layer.npz",
  "lm_tensor_depth.npz",
  "lm_tensor_local_depth.npz",
]
VISION_VECTORS = sorted(p.name for p in GOLDEN.glob("v*.npz"))
PRECISIONS = {"float64": 1e-9, "float32": 1e-4}


class Vector:
  """One file of reference numbers, cast to the precision of the test."""

  def __init__(self, name, dtype):
    with np.load(GOLDEN / name) as arrays:
      self.arrays = {k: _cast(v, dtype) for k, v in arrays.items() if k != "config"}
      self.config = json.loads(str(arrays["config"]))

  def group(self, prefix):
    return {k[len(prefix) :]: v for k, v in self.arrays.items() if k.startswith(prefix)}

  def __getitem__(self, name):
    return self.arrays[name]


def _cast(array, dtype):
  return array.astype(dtype) if array.dtype.kind == "f" else array


@pytest.fixture(params=PRECISIONS)
def precision(request):
  with jax.enable_x64(request.param == "float64"):
    yield request.param


def assert_close(ours, theirs, precision, what):
  scale = max(1e-6, float(np.abs(theirs).max()))  # relative to the largest entry
  error = float(np.abs(np.asarray(ours) - theirs).max()) / scale
  assert error < PRECISIONS[precision], f"{what}: differs by {error:.2e}"


def assert_grads_close(module, grads, vector, precision):
  ours = interop.reference_params(nnx.merge(nnx.graphdef(module), grads))
  theirs = vector.group("grad/param/")
  assert ours.keys() == theirs.keys()
  for name, expected in theirs.items():
    assert_close(ours[name], expected, precision, name)


def channels_last(array):
  return jnp.asarray(np.moveaxis(array, 1, -1))


def test_segments_carry_their_cache(precision):
  """Three segments in one call, and as a stream in pieces that are no segments."""
  vector = Vector("lm_xl_three_segments.npz", precision)
  model = interop.build_from_reference(vector.config, vector.group("param/"))
  graphdef, params = nnx.split(model)
  tokens, expected = vector["input/tokens"], vector["output/logits"]
  logits = jax.jit(lambda params: nnx.merge(graphdef, params)(tokens))(params)
  assert_close(logits, expected, precision, "logits")
  onward = jax.jit(lambda *args: nnx.merge(graphdef, params).onward(*args))
  stream = model.init_stream(len(tokens))
  for start, stop in ((0, 7), (7, 30), (30, 36)):
    logits, stream = onward(tokens[:, start:stop], stream)
    assert_close(logits, expected[:, start:stop], precision, f"tokens {start} to {stop}")


@pytest.mark.parametrize("implementation", ["plain", "fast"])
@pytest.mark.parametrize("name", MEMORY_VECTORS)
def test_memory_matches(name, implementation, precision):
  vector = Vector(name, precision)
  memory = interop.build_from_reference(vector.config, vector.group("param/"))
  memory.config = dataclasses.replace(memory.config, implementation=implementation)
  graphdef, params = nnx.split(memory)
  x, h0, c0 = (vector[f"input/{k}"] for k in ("x", "h0", "c0"))
  empty = memory.init_state(x.shape[0])

  def run(params, x, hidden, cell):
    y, state = nnx.merge(graphdef, params)(x, empty._replace(hidden=hidden, cell=cell))
    return jnp.sum(jnp.sin(y)) + jnp.sum(state.hidden * state.cell), (y, state)

  (loss, (y, state)), grads = jax.jit(jax.value_and_grad(run, argnums=(0, 1, 2, 3), has_aux=True))(
    params, jnp.asarray(x), channels_last(h0), channels_last(c0)
  )
  assert y.dtype == precision
  assert_close(loss, vector["output/loss"][0], precision, "loss")
  assert_close(y, vector["output/y"], precision, "y")
  assert_close(state.hidden, channels_last(vector["output/h"]), precision, "h")
  assert_close(state.cell, channels_last(vector["output/c"]), precision, "c")
  assert_close(grads[1], vector["grad/x"], precision, "grad x")
  assert_close(grads[2], channels_last(vector["grad/h0"]), precision, "grad h0")
  assert_close(grads[3], channels_last(vector["grad/c0"]), precision, "grad c0")
  assert_grads_close(memory, grads[0], vector, precision)


@pytest.mark.parametrize("name", LANGUAGE_VECTORS)
def test_language_model_matches(name, precision):
  vector = Vector(name, precision)
  model = interop.build_from_reference(vector.config, vector.group("param/"))
  assert model.causal == ("depth" not in name and "1layer" not in name)
  grads = assert_language_model_close(model, vector, precision)
  assert_grads_close(model, grads, vector, precision)


def assert_language_model_close(model, vector, precision):
  """Compares logits and loss; returns the loss's gradients."""
  tokens = jnp.asarray(vector["input/tokens"], jnp.int32)
  graphdef, params = nnx.split(model)

  def run(params):
    logits = nnx.merge(graphdef, params)(tokens)
    log_probs = jax.nn.log_softmax(logits.reshape(-1, logits.shape[-1])[:-1])
    targets = tokens.reshape(-1)[1:, None]
    return -jnp.mean(jnp.take_along_axis(log_probs, targets, axis=1)), logits

  (loss, logits), grads = jax.jit(jax.value_and_grad(run, has_aux=True))(params)
  assert_close(logits, vector["output/logits"], precision, "logits")
  assert_close(loss, vector["output/loss"][0], precision, "loss")
  return grads


def as_the_reference_kernel(q, k, v, window, mask, document):
  """Windowed attention with the error of the kernel that the reference vector came from.

  PyTorch's fused attention for CPUs with AVX-512 (2.14, among others), given float64 queries and a
  float32 mask, adds the score to itself in place of the mask for keys 8 to 15 of each full 16: all
  queries see them, later ones too, at twice the score. In float32 the kernel is right, and the
  gradients of the vector come from yet another computation.
  """
  assert mask is document is None
  key = jnp.arange(k.shape[1])
  distance = key[:, None] - key
  scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / q.shape[-1] ** 0.5
  masked = jnp.where((distance >= 0) & (distance < window), scores, -jnp.inf)
  is_wrong = (key % 16 >= 8) & (key // 16 < len(key) // 16)
  weights = jax.nn.softmax(jnp.where(is_wrong, 2 * scores, masked))
  return jnp.einsum("bhqk,bkhd->bqhd", weights, v)


def test_rotary_model_matches_once_the_kernel_of_the_reference_is_its_own(monkeypatch, precision):
  """That all is loaded and turned as in the reference; what is attended to others test."""
  vector = Vector("lm_local_rope.npz", precision)
  model = interop.build_from_reference(vector.config, vector.group("param/"))
  assert model.causal
  monkeypatch.setitem(PRECISIONS, "float64", 2e-6)  # the reference turns by float32 angles
  window = tmem.attention.ATTENTION["window"]._replace(whole=as_the_reference_kernel)
  monkeypatch.setitem(tmem.attention.ATTENTION, "window", window)
  assert_language_model_close(model, vector, precision)


def test_reference_names_round_trip():
  vector = Vector("lm_tensor_depth.npz", "float32")
  params = vector.group("param/")
  model = interop.build_from_reference(vector.config, params)
  back = interop.reference_params(model)
  assert back.keys() == params.keys() - {"head.weight", "memory.grid_cache"}
  for name, value in back.items():
    np.testing.assert_array_equal(value, params[name])


def test_unknown_kinds_and_missing_parameters_are_named():
  vector = Vector("memory_a.npz", "float32")
  params = vector.group("param/")
  with pytest.raises(ValueError, match="kind 'audio'"):
    interop.build_from_reference({"kind": "audio"}, params)
  del params["coord_net.bias"]
  with pytest.raises(ValueError, match=r"coord_net\.bias is missing"):
    interop.build_from_reference(vector.config, params)
  params["coord_net.bias"] = np.zeros(4, np.float32)
  with pytest.raises(ValueError, match=r"coordinate\.bias has shape \(4,\)"):
    interop.build_from_reference(vector.config, params)


def test_parameters_and_sizes_that_do_not_fit_are_named():
  vector = Vector("lm_base_sln.npz", "float32")
  params = vector.group("param/")
  with pytest.raises(ValueError, match=r"params: blocks\.0\.attn_ln\.weight does not belong"):
    interop.build_from_reference(vector.config | {"method": "base"}, params)
  with pytest.raises(ValueError, match="method 'performer', expected one of base"):
    interop.build_from_reference(vector.config | {"method": "performer"}, params)
  del vector.config["heads"]
  with pytest.raises(ValueError, match="config: heads is missing"):
    interop.build_from_reference(vector.config | {"method": "base"}, params)


def test_a_layer_scope_makes_the_reference_causal():
  vector = Vector("lm_tensor_depth.npz", "float32")
  config = vector.config | {"state_scope": "layer"}
  model = interop.build_from_reference(config, vector.group("param/"))
  assert model.causal
  assert model.config.memory_layers == (0, 1, 2)


@pytest.mark.parametrize("name", VISION_VECTORS)
def test_vision_model_matches(name, precision):
  vector = Vector(name, precision)
  model = interop.build_from_reference(vector.config, vector.group("param/"))
  graphdef, params = nnx.split(model)
  video = name.startswith("video")
  given = vector["input/frames_btchw" if video else "input/images_nchw"]
  inputs = jnp.asarray(np.moveaxis(given, -3, -1))

  def run(params):
    logits = nnx.merge(graphdef, params)(inputs)
    return jnp.sum(jax.nn.logsumexp(logits, axis=-1)), logits

  (loss, logits), grads = jax.jit(jax.value_and_grad(run, has_aux=True))(params)
  assert logits.dtype == precision
  assert_close(logits, vector["output/logits"], precision, "logits")
  assert_close(loss, vector["output/loss"][0], precision, "loss")
  assert_grads_close(model, grads, vector, precision)
