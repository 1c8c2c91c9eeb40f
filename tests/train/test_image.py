"""`train.image`: a run on images, what it leaves behind, and what its figures mean."""

import dataclasses
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from PIL import Image
from skimage.metrics import peak_signal_noise_ratio, structural_similarity

from data.image_crops import normalised
from tmem import MemoryConfig, interop
from tmem.masked_autoencoder import AutoencoderConfig, MaskedAutoencoder
from tmem.patches import patchify
from train import image
from train.errors import FlagError, RunError
from train.image_flags import COMMAND
from train.image_losses import (
  reconstruction_loss,
  reconstruction_quality,
  reconstructions,
)
from train.image_plots import draw_places

SIZES = {
  "preset": "smoke",
  "dataset": "folder",
  "num_layers": 1,
  "features": 8,
  "decoder_features": 8,
  "decoder_heads": 2,
  "memory_channels": 2,
  "dropout": 0.2,
  "steps": 4,
  "eval_every": 2,
  "checkpoint_every": 2,
  "log_every": 1,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """Twelve images to train on and three for tests, one of each kind that is difficult."""
  path = tmp_path_factory.mktemp("images")
  rng = np.random.default_rng(0)
  for split, count in (("train", 12), ("test", 3)):
    (path / split).mkdir()
    for index in range(count):
      pixels = rng.integers(0, 256, size=(4, 5, 3), dtype=np.uint8)
      picture = Image.fromarray(pixels).resize((30, 24), Image.Resampling.BICUBIC)
      picture.convert("L" if index == 1 else "RGB").save(path / split / f"{index:02}.png")
  (path / "train" / "broken.jpg").write_bytes(b"no image")
  return path


def arguments(folder, workdir, **changes):
  values = {"workdir": workdir, "data_path": folder, **SIZES, **changes}
  return ["image", *(f"--{name}={value}" for name, value in values.items())]


@pytest.fixture(scope="module")
def finished(folder, tmp_path_factory):
  workdir = tmp_path_factory.mktemp("runs") / "run"
  image.main(arguments(folder, workdir))
  return workdir


def read(path):
  return json.loads(path.read_text())


def test_a_run_says_how_it_reconstructs(finished):
  result = read(finished / "result.json")
  assert (result["task"], result["method"], result["dataset"]) == ("image", "tensor", "folder")
  assert result["images"] == {"train": 10, "valid": 2, "test": 3}
  assert result["causal"] is False
  assert list(result["fusion_gates"]) == ["block_0"]
  assert result["images_per_second"] > 0
  assert result["state_bytes"] == 2 * 4 * 2**3 * 2  # h and c of 8 cells with 2 channels
  hidden = [result[f"test_{percent}_hidden_patches"] for percent in (25, 50, 75)]
  assert hidden == [3 * 4, 3 * 8, 3 * 12]
  # The more is hidden, the more of the image is a guess.
  errors = [result[f"test_{percent}_mse"] for percent in (25, 50, 75)]
  assert errors == sorted(errors)
  for split in ("valid", "test_50"):
    assert 0 < result[f"{split}_psnr"] < 40
    assert -1 < result[f"{split}_ssim"] <= 1
    assert result[f"{split}_mse"] < result[f"{split}_masked_mse"]
  model = interop.load_model(finished / "model")
  assert isinstance(model, MaskedAutoencoder)
  last = (finished / "metrics.jsonl").read_text().splitlines()[-1]
  assert json.loads(last)["memory_cell_max"] > 0


def test_pictures_show_reconstructions_and_places(finished):
  names = [f"reconstructions_test_{percent}" for percent in (25, 50, 75)]
  for name in (*names, "places", "gates", "loss"):
    assert (finished / "plots" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
  with np.load(finished / "plots" / "reconstructions_test_50.npz") as rows:
    original, masked, told = (rows[name] for name in ("original", "masked", "reconstruction"))
  hidden = (masked == 128).all(axis=-1)
  assert 0.45 < hidden.mean() < 0.55
  np.testing.assert_array_equal(told[~hidden], original[~hidden])
  assert (told[hidden] != original[hidden]).mean() > 0.5


def test_what_is_shown_has_the_truth_where_nothing_is_hidden():
  pixels, batch, config, rng = case()
  told = jnp.asarray(rng.normal(size=patchify(batch["images"], 4).shape), jnp.float32)
  found = reconstructions(Told(told, config), batch)
  np.testing.assert_allclose(found.truth, pixels / 255, atol=1e-6)
  hidden = np.broadcast_to(found.hidden, found.truth.shape)
  np.testing.assert_array_equal(found.filled[~hidden], found.truth[~hidden])
  assert (found.filled[hidden] != found.truth[hidden]).mean() > 0.9
  assert hidden.mean() == 10 / 16
  seen = patchify(found.hidden, 4)[np.arange(3)[:, None], batch["visible"]]
  assert not seen.any()


def test_an_evaluation_repeats_the_result(finished, folder, capsys):
  image.main(["image", f"--workdir={finished}", "--mode=eval", f"--data_path={folder}"])
  measured, result = read(finished / "eval.json"), read(finished / "result.json")
  for name in ("valid_loss", "test_25_psnr", "test_75_masked_ssim"):
    np.testing.assert_allclose(measured[name], result[name], rtol=1e-6)
  assert "protocol: middle crops" in capsys.readouterr().out


def test_a_run_that_was_stopped_goes_on_exactly(finished, folder, tmp_path, assert_same_model):
  image.main(arguments(folder, tmp_path / "run", stop_at=3))
  assert not (tmp_path / "run" / "result.json").exists()
  image.main(arguments(folder, tmp_path / "run"))
  assert_same_model(finished / "model", tmp_path / "run" / "model")


@pytest.mark.parametrize("method", ["base", "local", "registers"])
def test_the_other_methods_train(method, folder, tmp_path):
  image.main(arguments(folder, tmp_path / "run", method=method, steps=2, order="random"))
  result = read(tmp_path / "run" / "result.json")
  assert (result["method"], result["order"]) == (method, "random")
  assert result["fusion_gates"] == {}
  assert result["state_bytes"] == 0
  assert np.isfinite(result["test_75_loss"])


class Told(nnx.Module):
  """In place of a model: tells what it was made with."""

  def __init__(self, told, config):
    self.told, self.config = told, config

  def __call__(self, patches, visible, key=None):
    del patches, visible, key
    return self.told


def case(size=16, patch=4, batch=3):
  rng = np.random.default_rng(0)
  pixels = rng.integers(0, 256, size=(batch, size, size, 3), dtype=np.uint8)
  images = jnp.asarray(normalised(pixels))
  visible = np.stack([rng.permutation((size // patch) ** 2)[:6] for _ in range(batch)])
  config = AutoencoderConfig(image_size=size, patch_size=patch)
  return pixels, {"images": images, "visible": jnp.asarray(visible)}, config, rng


def test_the_loss_counts_hidden_patches_of_rows_that_exist():
  _, batch, config, _ = case()
  patches = np.asarray(patchify(batch["images"], 4))
  spread = (patches - patches.mean(-1, keepdims=True)) / patches.std(-1, keepdims=True)
  told = spread.copy()
  told[0, batch["visible"][0, 0]] += 9.0  # seen: does not count
  hidden = np.setdiff1d(np.arange(16), batch["visible"][0])
  told[0, hidden[0]] += 2.0
  told[2] += 7.0  # of a row that is none
  batch["mask"] = np.array([True, True, False])
  sums = reconstruction_loss(Told(jnp.asarray(told), config), batch, None)
  assert sums["weight"] == 2 * 10
  np.testing.assert_allclose(sums["loss"], 4.0, rtol=1e-4)


def test_quality_is_what_scikit_image_measures():
  pixels, batch, config, rng = case(size=24)
  told = jnp.asarray(rng.normal(size=patchify(batch["images"], 4).shape), jnp.float32)
  quality = jax.jit(lambda batch: reconstruction_quality(Told(told, config), batch, None))
  sums = quality(batch)
  found = {name: float(value / sums["weight"]) for name, value in sums.items()}

  patches = np.asarray(patchify(jnp.asarray(pixels / 255.0), 4))
  raw = np.asarray(patchify(batch["images"], 4))
  shown = np.asarray(told) * raw.std(-1, keepdims=True) + raw.mean(-1, keepdims=True)
  scale = np.tile([0.229, 0.224, 0.225], 16), np.tile([0.485, 0.456, 0.406], 16)
  filled = np.clip(shown * scale[0] + scale[1], 0, 1)
  for row, visible in enumerate(np.asarray(batch["visible"])):
    filled[row, visible] = patches[row, visible]

  def whole(patches):  # [36, 48] -> [24, 24, 3]
    parts = patches.reshape(6, 6, 4, 4, 3)
    return parts.transpose(0, 2, 1, 3, 4).reshape(24, 24, 3)

  pairs = [(whole(t), whole(f)) for t, f in zip(patches, filled, strict=True)]
  psnr = [peak_signal_noise_ratio(t, f, data_range=1.0) for t, f in pairs]
  ssim = [
    structural_similarity(
      t, f, data_range=1.0, channel_axis=-1, gaussian_weights=True, sigma=1.5,
      use_sample_covariance=False,
    )
    for t, f in pairs
  ]  # fmt: skip
  np.testing.assert_allclose(found["mse"], np.mean([(t - f) ** 2 for t, f in pairs]), rtol=1e-4)
  np.testing.assert_allclose(found["psnr"], np.mean(psnr), rtol=1e-4)
  np.testing.assert_allclose(found["ssim"], np.mean(ssim), atol=2e-4)
  # 30 of 36 patches are hidden, and the others have no error.
  np.testing.assert_allclose(found["masked_mse"], found["mse"] * 36 / 30, rtol=1e-4)


def test_hidden_pixels_at_the_border_are_judged_too():
  """One hidden patch in a corner, where the filter of the similarity does not fit, told exactly."""
  _, batch, config, _ = case()
  patches = np.asarray(patchify(batch["images"], 4))
  told = (patches - patches.mean(-1, keepdims=True)) / patches.std(-1, keepdims=True)
  batch["visible"] = jnp.broadcast_to(jnp.arange(1, 16), (3, 15))
  sums = reconstruction_quality(Told(jnp.asarray(told), config), batch, None)
  np.testing.assert_allclose(sums["masked_ssim"] / sums["weight"], 1.0, atol=1e-3)


@pytest.mark.parametrize(
  ("changes", "error", "message"),
  [
    ({"method": "tensor_local"}, FlagError, "--method=tensor_local: .*base, local, registers"),
    ({"mask_ratio": 0.99}, FlagError, "--mask_ratio=0.99: hides 16 of 16 patches"),
    ({"mask_ratio": 1.0}, FlagError, "--mask_ratio=1.0: "),
    ({"image_size": 18}, FlagError, "--image_size: 18 is not a multiple of --patch_size 4"),
    ({"image_size": 8}, FlagError, "--image_size=8: below 11"),
    ({"data_path": ""}, FlagError, "--data_path: missing, --dataset=folder needs one"),
    ({"data_path": "/absent"}, RunError, "/absent: no such folder"),
    (
      {"dataset": "cub", "data_dir": "/absent"},
      RunError,
      "neither CUB_200_2011/images.txt nor",
    ),
  ],
)
def test_what_cannot_be_is_refused_in_one_line(changes, error, message, folder, tmp_path):
  with pytest.raises(error, match=message) as caught:
    image.main(arguments(folder, tmp_path / "run", **changes))
  assert "\n" not in str(caught.value)


def test_other_images_are_refused(finished, folder, tmp_path):
  for split in ("train", "test"):
    (tmp_path / "images" / split).mkdir(parents=True)
    for path in sorted((folder / split).glob("*.png"))[1:]:
      (tmp_path / "images" / split / path.name).write_bytes(path.read_bytes())
  (finished / "result.json").rename(tmp_path / "result.json")
  try:
    with pytest.raises(RunError, match=r"began with \(train, valid, test changed\); use"):
      image.main(arguments(tmp_path / "images", finished))
  finally:
    (tmp_path / "result.json").rename(finished / "result.json")


@pytest.mark.parametrize("grid", [(4,), (3, 2), (2, 2, 1, 2)])
def test_places_are_drawn_on_grids_of_any_number_of_axes(grid, tmp_path):
  _, batch, config, _ = case()
  memory = MemoryConfig(grid=grid, channels=2, chunk_size=2, read_heads=1)
  sizes = {"features": 8, "num_heads": 2, "num_layers": 1, "decoder_features": 8}
  config = dataclasses.replace(config, memory=memory, mlp_features=None, **sizes)
  batch = {name: np.asarray(rows) for name, rows in batch.items()} | {"mask": np.ones(3, bool)}
  draw_places(MaskedAutoencoder(config, rngs=nnx.Rngs(0)), batch, tmp_path / "places.png")
  assert (tmp_path / "places.png").read_bytes().startswith(b"\x89PNG")


def test_what_is_skipped_is_counted(folder, tmp_path, caplog):
  image.main(arguments(folder, tmp_path / "run", steps=2, log_every=2))
  (line,) = [m for m in caplog.messages if m.startswith("skipped")]
  assert line.startswith("skipped 1 of 13 images; the first: ")
  assert "broken.jpg: not an image that can be read" in line


@pytest.mark.parametrize(
  ("preset", "sizes"),
  [
    ("small", (192, 4, 196)),
    ("base", (384, 6, 196)),
    ("large", (768, 12, 196)),
    ("cpu", (96, 3, 64)),
  ],
)
def test_presets_have_their_sizes(preset, sizes):
  model = COMMAND.build(COMMAND.values(preset) | {"workdir": "runs/none"}).model
  assert (model.features, model.num_layers, model.patches) == sizes
  assert (model.state_scope, model.gate_init) == ("depth", -2.0)


def test_other_pixels_under_the_same_names_are_other_data(folder, tmp_path):
  own = tmp_path / "images"
  shutil.copytree(folder, own)
  workdir = tmp_path / "run"
  image.main(arguments(own, workdir, stop_at=2))
  Image.new("RGB", (30, 24), "grey").save(own / "test" / "02.png")
  for more in ([], ["--mode=eval"]):
    with pytest.raises(RunError, match=r"not the data that the run .* began with \(test changed\)"):
      image.main(["image", f"--workdir={workdir}", *more])
