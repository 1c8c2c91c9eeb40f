"""Streams that stop and go on elsewhere."""

import dataclasses
import subprocess
import sys

import jax
import numpy as np
import pytest
import safetensors.numpy
from flax import nnx
from safetensors import safe_open

from tmem import MemoryConfig, interop, streaming
from tmem.models import LanguageConfig, LanguageModel
from tmem.stream_file import load_stream, save_stream

CONFIG = LanguageConfig(
  vocab_size=7,
  features=8,
  num_heads=2,
  num_layers=2,
  max_length=16,
  window=3,
  memory=MemoryConfig(channels=2, grid=(2, 2), chunk_size=3),
)
TOKENS = np.random.default_rng(0).integers(0, 7, size=(2, 9)).astype(np.int32)
GO_ON = """
import sys, numpy as np
from tmem import interop, streaming
from tmem.stream_file import load_stream
model = interop.load_model(sys.argv[1])
logits, _ = streaming.step(model, np.load(sys.argv[3]), load_stream(sys.argv[2], model)[0])
np.save(sys.argv[4], logits)
"""


@pytest.fixture(scope="module")
def model():
  return LanguageModel(CONFIG, rngs=nnx.Rngs(0))


@pytest.fixture
def saved(model, tmp_path):
  _, stream = streaming.prefill(model, TOKENS[:, :5], streaming.init(model, 2))
  save_stream(tmp_path / "stream", model, stream)
  return tmp_path / "stream", stream


def test_a_stream_goes_on_bit_for_bit_in_another_process(model, saved, tmp_path):
  path, stream = saved
  expected, _ = streaming.step(model, TOKENS[:, 5:], stream)
  interop.save_model(tmp_path / "model", model)
  np.save(tmp_path / "tokens.npy", TOKENS[:, 5:])
  files = [tmp_path / "model", path, tmp_path / "tokens.npy", tmp_path / "logits.npy"]
  subprocess.run([sys.executable, "-c", GO_ON, *map(str, files)], check=True)
  np.testing.assert_array_equal(np.load(tmp_path / "logits.npy"), expected)


def test_a_frozen_model_saves_and_loads_as_well(model, saved, tmp_path):
  path, stream = saved
  frozen = streaming.frozen(model)
  save_stream(tmp_path / "other", frozen, stream)
  for again, _ in (load_stream(path, frozen), load_stream(tmp_path / "other", model)):
    jax.tree.map(np.testing.assert_array_equal, again, stream)


def test_what_is_read_is_what_was_written(model, saved):
  path, stream = saved
  back, logits = load_stream(path, model)
  assert logits is None
  assert jax.tree.structure(back) == jax.tree.structure(stream)
  for ours, theirs in zip(jax.tree.leaves(back), jax.tree.leaves(stream), strict=True):
    assert ours.dtype == theirs.dtype
    np.testing.assert_array_equal(ours, theirs)
  assert [p.name for p in path.parent.iterdir()] == ["stream"]


def test_a_file_that_is_not_whole_is_refused(model, saved):
  path, _ = saved
  whole = path.read_bytes()
  for size in (0, 7, 100, len(whole) - 1):
    path.write_bytes(whole[:size])
    with pytest.raises(ValueError, match="stream: broken or truncated"):
      load_stream(path, model)


def test_an_altered_file_is_refused(model, saved):
  path, _ = saved
  content = bytearray(path.read_bytes())
  content[-3] ^= 1
  path.write_bytes(content)
  with pytest.raises(ValueError, match="stream: altered since it was written"):
    load_stream(path, model)


def test_the_stream_of_another_model_is_refused(model, saved, tmp_path):
  other = LanguageModel(CONFIG, rngs=nnx.Rngs(1))
  with pytest.raises(ValueError, match="stream: the stream of another model"):
    load_stream(saved[0], other)
  interop.save_model(tmp_path / "model", model)
  with pytest.raises(ValueError, match=r"safetensors: not a stream"):
    load_stream(tmp_path / "model" / "model.safetensors", model)
  with pytest.raises(FileNotFoundError, match="no such file; expected a stream"):
    load_stream(tmp_path / "none", model)


@pytest.mark.parametrize("seen", [None, "5", "x{", "[9, 9]", "[1, 2, 3]"])
def test_an_altered_header_is_refused(model, saved, seen):
  path, _ = saved
  with safe_open(path, framework="numpy") as file:
    header = file.metadata()
    arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
  header.pop("seen")
  safetensors.numpy.save_file(arrays, path, header if seen is None else header | {"seen": seen})
  with pytest.raises(ValueError, match="stream: altered since it was written"):
    load_stream(path, model)


def test_a_stream_is_written_for_its_own_model_and_to_a_file(model, saved, tmp_path):
  _, stream = saved
  other = LanguageModel(dataclasses.replace(CONFIG, window=5), rngs=nnx.Rngs(0))
  with pytest.raises(ValueError, match=r"stream\.pasts\[0\]\.keys: got .* it is of another model"):
    save_stream(tmp_path / "other", other, stream)
  with pytest.raises(FileNotFoundError, match=r"none/stream: there is no folder"):
    save_stream(tmp_path / "none" / "stream", model, stream)
  with pytest.raises(ValueError, match="is a folder"):
    save_stream(tmp_path, model, stream)
