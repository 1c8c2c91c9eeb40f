"""Videos as a frozen encoder sees them: its own features, computed once, whole or with gaps."""

import json

import numpy as np
import pytest
from flax import nnx

from tmem import MemoryConfig, interop
from tmem.masked_autoencoder import AutoencoderConfig, MaskedAutoencoder
from tmem.patches import patchify
from train import video, video_data, video_features
from train.errors import FlagError
from train.video_flags import COMMAND, build

SIZES = {
  "preset": "smoke", "num_layers": 1, "features": 8, "memory_channels": 2, "steps": 2,
  "eval_every": 2, "checkpoint_every": 2, "log_every": 1,
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def few_digits(tmp_path_factory):
  with pytest.MonkeyPatch.context() as patch:
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
  assert example["frames"].shape == (3, 4, 12)
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


def test_the_encoder_that_a_run_began_with_is_kept(finished, encoder, tmp_path):
  found = video_features.kept_encoder(finished, str(tmp_path / "has gone"))
  kept = interop.flat_params(found)
  for name, value in interop.flat_params(encoder).items():
    np.testing.assert_array_equal(kept[name], value, err_msg=name)
  assert video_features.kept_encoder(finished, None) is None


def test_a_run_on_features(finished, encoder_run):
  result = json.loads((finished / "result.json").read_text())
  assert result["encoder"] == str(encoder_run)
  assert np.isfinite(result["test_covered_75_loss"])
  model = interop.load_model(finished / "model")
  assert model.config.frame_shape == (4, 12)
  video.main(["video", f"--workdir={finished}", "--mode=eval"])
  measured = json.loads((finished / "eval.json").read_text())
  np.testing.assert_allclose(measured["test_loss"], result["test_loss"], rtol=1e-6)


def test_a_run_on_features_watches_videos(finished, tmp_path, capsys):
  import av

  with av.open(str(tmp_path / "two.avi"), "w") as container:
    stream = container.add_stream("mpeg4", rate=25)
    stream.width = stream.height = 32
    stream.pix_fmt = "yuv420p"
    for level in (50, 150):
      pixels = np.full((32, 32, 3), level, np.uint8)
      container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
    container.mux(stream.encode())
  video.main(["video", f"--workdir={finished}", "--mode=online", f"--input={tmp_path}/two.avi"])
  lines = capsys.readouterr().out.splitlines()
  assert [line.split(":")[0] for line in lines] == ["frame 0", "frame 1"]


def test_what_is_no_encoder_is_refused(finished, tmp_path):
  for run, message in ((tmp_path, "no such file"), (finished, "is no encoder of images")):
    with pytest.raises(FlagError, match=f"--encoder: .*{message}"):
      video.main(["video", f"--workdir={tmp_path / 'run'}", "--preset=smoke", f"--encoder={run}"])
