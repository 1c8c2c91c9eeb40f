"""Videos as a frozen encoder sees them: its own features, computed once, whole or with gaps."""

import json

import numpy as np
import pytest
from flax import nnx

from tmem import MemoryConfig, interop
from tmem.masked_autoencoder import AutoencoderConfig, MaskedAutoencoder
from tmem.patches import patchify
from train import video, video_data, video_features
from train.errors import FlagError, RunError
from train.video_flags import COMMAND, build

SIZES = {
  "preset": "smoke", "num_layers": 1, "features": 8, "memory_channels": 2, "steps": 2,
  "eval_every": 2, "checkpoint_every": 2, "log_every": 1,
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def few_digits(tmp_path_factory):
  with pytest.MonkeyPatch.context() as patch:
    patch.delenv("TMEM_DATA_DIR", raising=False)
    patch.setenv("TMEM_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
    patch.setattr("data.moving_digits.SPLITS", {"train": 8, "valid": 4, "test": 6})
    yield


@pytest.fixture(scope="module")
def encoder():
  config = AutoencoderConfig(
    image_size=16, patch_size=8, features=12, num_layers=1, decoder_features=8,
    memory=MemoryConfig(grid=(2, 2), channels=2, read_heads=1),
  )  # fmt: skip
  return MaskedAutoencoder(config, rngs=nnx.Rngs(0))


@pytest.fixture(scope="module")
def encoder_run(encoder, tmp_path_factory):
  run = tmp_path_factory.mktemp("encoder")
  interop.save_model(run / "model", encoder)
  return run


@pytest.fixture(scope="module")
def finished(encoder_run, tmp_path_factory):
  workdir = tmp_path_factory.mktemp("runs") / "run"
  values = {"workdir": workdir, "encoder": encoder_run, **SIZES}
  video.main(["video", *(f"--{name}={value}" for name, value in values.items())])
  return workdir


def clips_of(encoder):
  config = build(COMMAND.values("smoke") | {"workdir": "none"})
  return video_data.load_clips(config.data, config.model, encoder)


def test_features_are_those_that_the_encoder_makes_of_each_frame(encoder):
  clips, pixels = clips_of(encoder), clips_of(None)
  example = clips.examples("test", video_data.TESTS["test"])(3, np.random.default_rng(0))
  shown = pixels.examples("test", video_data.TESTS["test"])(3, np.random.default_rng(0))
  assert example["frames"].shape == (4, 4, 12)
  assert example["label"] == shown["label"]
  _, expected = encoder.encode_patches(patchify(shown["frames"], 8))
  np.testing.assert_allclose(example["frames"], expected, atol=2e-3)  # kept in 16 bits


def test_what_is_missing_is_missing_to_the_encoder_too(encoder):
  clips, generator = clips_of(encoder), np.random.default_rng
  whole = clips.examples("test", video_data.TESTS["test"])(2, generator(5))["frames"]
  covered = clips.examples("test_covered_50", video_data.TESTS["test_covered_50"])
  covered = covered(2, generator(5))["frames"]
  assert (np.abs(covered - whole).max(axis=(1, 2)) > 1e-3).all()
  blank = clips.examples("test_blank_50", video_data.TESTS["test_blank_50"])
  blank = blank(2, generator(5))["frames"]
  gone = (blank == clips.features.empty).all(axis=(1, 2))
  assert gone.sum() == 2  # of three frames
  np.testing.assert_array_equal(blank[~gone], whole[~gone])


def test_features_are_computed_once(encoder, monkeypatch):
  clips_of(encoder)

  def never(*_):
    raise AssertionError("computed again")

  monkeypatch.setattr(video_features, "frame_encoder", lambda _: never)
  clips_of(encoder)
  other = MaskedAutoencoder(encoder.config, rngs=nnx.Rngs(1))
  with pytest.raises(AssertionError, match="computed again"):
    clips_of(other)


def test_the_encoder_that_a_run_began_with_is_kept(finished, encoder, tmp_path, assert_same_model):
  found = video_features.encoder_of(finished, str(tmp_path / "has gone"))
  assert_same_model(found, encoder)
  assert video_features.encoder_of(finished, None) is None


def test_a_start_that_failed_settles_on_no_encoder(
  encoder, encoder_run, tmp_path, assert_same_model
):
  workdir, other = tmp_path / "run", MaskedAutoencoder(encoder.config, rngs=nnx.Rngs(1))
  interop.save_model(tmp_path / "other" / "model", other)
  command = ["video", f"--workdir={workdir}", "--preset=smoke", "--dataset=ucf101"]
  with pytest.raises(RunError, match="ucf101: needs --data_dir"):
    video.main([*command, f"--encoder={tmp_path / 'other'}"])
  assert_same_model(video_features.encoder_of(workdir, str(encoder_run)), encoder)


def test_a_run_on_features(finished, encoder_run):
  result = json.loads((finished / "result.json").read_text())
  assert result["encoder"] == str(encoder_run)
  assert np.isfinite(result["test_covered_75_loss"])
  model = interop.load_model(finished / "model")
  assert model.config.frame_shape == (4, 12)
  video.main(["video", f"--workdir={finished}", "--mode=eval"])
  measured = json.loads((finished / "eval.json").read_text())
  np.testing.assert_allclose(measured["test_loss"], result["test_loss"], rtol=1e-6)


def test_a_run_on_features_watches_videos(finished, write_video, tmp_path, capsys):
  path = write_video(tmp_path / "two.avi", [50, 150])
  video.main(["video", f"--workdir={finished}", "--mode=online", f"--input={path}"])
  lines = capsys.readouterr().out.splitlines()
  assert [line.split(":")[0] for line in lines] == ["frame 0", "frame 1"]


def test_what_is_no_encoder_is_refused(finished, tmp_path):
  for run, message in ((tmp_path, "no such file"), (finished, "is no encoder of images")):
    with pytest.raises(FlagError, match=f"--encoder: .*{message}"):
      video.main(["video", f"--workdir={tmp_path / 'run'}", "--preset=smoke", f"--encoder={run}"])


def test_the_sizes_of_frames_are_those_of_the_encoder(encoder_run):
  values = COMMAND.values() | {"workdir": "none", "encoder": str(encoder_run)}
  assert build(values).data.encoder == str(encoder_run)
  with pytest.raises(FlagError, match=r"--image_size=48: with --encoder it is the encoder's"):
    build(values | {"image_size": 48})
