"""Models on disk: whole or not at all."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tmem import MemoryConfig, interop
from tmem.image_models import ImageClassifier, ImageClassifierConfig
from tmem.masked_autoencoder import AutoencoderConfig, MaskedAutoencoder
from tmem.models import LanguageConfig, LanguageModel
from tmem.video_models import VideoClassifier, VideoConfig

SMALL = {
  "vocab_size": 5,
  "features": 4,
  "num_heads": 2,
  "num_layers": 2,
  "max_length": 6,
  "memory": MemoryConfig(channels=2, grid=(2, 1), dynamics="convlstm", read_heads=1),
}

IMAGES = {"image_size": 4, "patch_size": 2, "features": 4, "num_layers": 1, "num_heads": 2}


@pytest.fixture(scope="module")
def build(randomised):
  def make(**changes):
    config = LanguageConfig(**{**SMALL, **changes})
    return randomised(lambda: LanguageModel(config, rngs=nnx.Rngs(0)))

  return make


@pytest.fixture
def saved(build, tmp_path):
  model = build()
  interop.save_model(tmp_path / "model", model)
  return tmp_path / "model", model


def assert_same(model, other):
  ours, theirs = interop.flat_params(model), interop.flat_params(other)
  assert ours.keys() == theirs.keys()
  for path, value in ours.items():
    assert value.dtype == theirs[path].dtype
    np.testing.assert_array_equal(np.asarray(value), np.asarray(theirs[path]), err_msg=path)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("method", ["base", "tensor_local"])
def test_round_trip_is_exact(method, dtype, build, tmp_path):
  model = build(method=method, dtype=dtype, param_dtype=dtype, dropout=0.1)
  interop.save_model(tmp_path / "a" / "model", model)
  loaded = interop.load_model(tmp_path / "a" / "model")
  assert loaded.config == model.config
  assert_same(loaded, model)
  assert {v.dtype for v in interop.flat_params(loaded).values()} == {jnp.dtype(dtype)}
  assert all(isinstance(v, jax.Array) for v in interop.flat_params(loaded).values())
  names = sorted(p.name for p in tmp_path.rglob("*") if p.is_file())
  assert names == ["config.json", "model.safetensors"]


def test_paths_are_readable(build):
  paths = set(interop.flat_params(build()))
  assert {"embedding.embedding", "positions", "blocks.1.mlp.up.kernel"} <= paths
  assert {"blocks.0.fusion.gate", "memory.gates.pointwise", "memory.summary.bias"} <= paths


def test_loaded_models_compute_the_same(build, compiled, tmp_path):
  model = build(num_layers=1)
  tokens = np.array([[0, 1, 2, 3, 4]])
  interop.save_model(tmp_path / "model", model)
  loaded = interop.load_model(tmp_path / "model")
  np.testing.assert_array_equal(compiled(loaded)(tokens), compiled(model)(tokens))


def test_saving_replaces_the_model_as_a_whole(saved, build):
  directory, _ = saved
  (directory / "left over").write_text("from before")
  other = build(method="local", features=8)
  interop.save_model(directory, other)
  assert_same(interop.load_model(directory), other)
  assert sorted(p.name for p in directory.iterdir()) == ["config.json", "model.safetensors"]
  assert [p.name for p in directory.parent.iterdir()] == ["model"]


def test_a_save_that_fails_leaves_the_model(saved, build, monkeypatch):
  directory, model = saved

  def no_space(path, content):
    with path.open("wb") as file:
      file.write(content[:10])
    raise OSError(28, "No space left on device")

  monkeypatch.setattr(Path, "write_bytes", no_space)
  with pytest.raises(OSError, match="No space left"):
    interop.save_model(directory, build(features=8))
  assert_same(interop.load_model(directory), model)
  assert [p.name for p in directory.parent.iterdir()] == ["model"]


def test_others_may_read_what_was_saved(saved):
  """As with any folder that a program makes: what the user's umask leaves."""
  directory, _ = saved
  plain = directory.parent / "plain"
  plain.mkdir()
  assert directory.stat().st_mode == plain.stat().st_mode


@pytest.mark.parametrize("size", [0, 4, 100, -1])
def test_truncated_parameters_are_named(size, saved):
  directory, _ = saved
  file = directory / "model.safetensors"
  file.write_bytes(file.read_bytes()[:size])
  with pytest.raises(ValueError, match=r"model\.safetensors: broken or truncated"):
    interop.load_model(directory)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_missing_files_are_named(name, saved):
  directory, _ = saved
  (directory / name).unlink()
  with pytest.raises(FileNotFoundError, match=rf"{name}: no such file"):
    interop.load_model(directory)
  with pytest.raises(FileNotFoundError, match=r"nowhere/config\.json"):
    interop.load_model(directory / "nowhere")


@pytest.mark.parametrize(
  ("change", "message"),
  [
    (lambda c: c["config"].update(colour=3), "LanguageConfig has no field 'colour'"),
    (lambda c: c["config"]["memory"].update(colour=3), "MemoryConfig has no field 'colour'"),
    (lambda c: c["config"].update(features=5), "features: 5 is not a multiple"),
    (lambda c: c["config"].pop("vocab_size"), "vocab_size"),
    (lambda c: c["config"].update(memory=None), "not a model configuration"),
    (lambda c: c.update(model="Unknown"), "Unknown"),
    (lambda c: c.pop("config"), "config"),
  ],
)
def test_broken_configurations_are_named(change, message, saved):
  directory, _ = saved
  content = json.loads((directory / "config.json").read_text())
  change(content)
  (directory / "config.json").write_text(json.dumps(content))
  with pytest.raises(ValueError, match=message) as caught:
    interop.load_model(directory)
  assert "config.json" in str(caught.value)


@pytest.mark.parametrize(
  ("kind", "sizes"),
  [
    (ImageClassifier, ImageClassifierConfig(classes=3, **IMAGES)),
    (MaskedAutoencoder, AutoencoderConfig(**IMAGES)),
    (VideoClassifier, VideoConfig(classes=3, method="registers", **IMAGES)),
  ],
)
def test_models_of_images_and_videos_come_back(kind, sizes, randomised, tmp_path):
  model = randomised(lambda: kind(sizes, rngs=nnx.Rngs(0)))
  interop.save_model(tmp_path / "model", model)
  loaded = interop.load_model(tmp_path / "model")
  assert type(loaded) is kind
  assert loaded.config == sizes
  assert_same(loaded, model)


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '"text"', "\xff"])
def test_configurations_that_are_none_are_named(text, saved):
  directory, _ = saved
  (directory / "config.json").write_bytes(text.encode("latin-1"))
  with pytest.raises(ValueError, match=r"config\.json: not a model configuration"):
    interop.load_model(directory)


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"method": "local"}, r"parameter blocks\.0\.fusion\.gate is missing"),
    ({"num_layers": 3}, r"parameter blocks\.2\.\S+ does not belong to the model"),
    ({"vocab_size": 7}, r"parameter embedding\.embedding has shape \(7, 4\), .* \(5, 4\)"),
  ],
)
def test_parameters_of_another_model_are_refused(changes, message, saved, build):
  directory, _ = saved
  other = directory.parent / "other"
  interop.save_model(other, build(**changes))
  (other / "model.safetensors").replace(directory / "model.safetensors")
  with pytest.raises(ValueError, match=message) as caught:
    interop.load_model(directory)
  assert "model.safetensors" in str(caught.value)


def test_only_models_are_saved(tmp_path):
  with pytest.raises(
    ValueError, match=r"model: got Linear, expected one of ImageClassifier, LanguageModel"
  ):
    interop.save_model(tmp_path / "model", nnx.Linear(1, 1, rngs=nnx.Rngs(0)))
  assert not list(tmp_path.iterdir())
