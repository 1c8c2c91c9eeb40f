"""The presets of accelerators: they run, in two of their blocks and on less data."""

import dataclasses
import json

import jax
import pytest
from flax import nnx

from tmem.models import LanguageModel
from train import flags, image, video
from train.language_flags import COMMAND

WORDS = 33_278  # of WikiText-2


@pytest.mark.parametrize("preset", ["paper", "standard"])
def test_large_presets_make_steps(bare, text_file, tmp_path, preset):
  bare(
    workdir=tmp_path / "run", preset=preset, dataset="text", data_path=text_file, tokenizer="byte",
    num_layers=2, batch_size=1, max_length=16, window=8, steps=2, warmup_steps=1, log_every=1,
    eval_every=2, eval_tokens=16, checkpoint_every=2,
  )  # fmt: skip
  result = json.loads((tmp_path / "run" / "result.json").read_text())
  assert (result["preset"], result["steps"], result["causal"]) == (preset, 2, True)
  assert result["skipped_steps"] == 0


@pytest.mark.parametrize("preset", ["paper", "standard"])
def test_large_presets_have_at_most_33_million_parameters(preset, tmp_path):
  config = flags.parse(COMMAND, ["language", f"--workdir={tmp_path}", f"--preset={preset}"])
  config = dataclasses.replace(config.model, vocab_size=WORDS)
  model = nnx.eval_shape(lambda: LanguageModel(config, rngs=nnx.Rngs(0)))
  assert 20e6 < sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model, nnx.Param))) < 33e6


@pytest.fixture
def small_cache(tmp_path, monkeypatch):
  monkeypatch.setenv("TMEM_CACHE_DIR", str(tmp_path / "cache"))
  monkeypatch.setattr("data.moving_digits.SPLITS", {"train": 2, "valid": 1, "test": 1})


REDUCED = {
  "num_layers": 2, "batch_size": 1, "steps": 2, "warmup_steps": 1, "log_every": 1, "eval_every": 2,
  "checkpoint_every": 2, "image_size": 32, "features": 48, "num_heads": 2, "memory_channels": 8,
  "grid": "3,3,3",
}  # fmt: skip


def run_reduced(main, name, workdir, **flags):
  values = {"workdir": workdir, **REDUCED, **flags}
  main([name, *(f"--{flag}={value}" for flag, value in values.items())])
  result = json.loads((workdir / "result.json").read_text())
  assert (result["preset"], result["steps"]) == (flags["preset"], 2)
  assert result["skipped_steps"] == 0


@pytest.mark.parametrize("preset", ["small", "base", "large"])
def test_large_presets_of_images_make_steps(preset, tmp_path):
  run_reduced(
    image.main, "image", tmp_path / "run", preset=preset, decoder_layers=1, decoder_features=16
  )


def test_the_paper_preset_of_videos_makes_steps(tmp_path, small_cache):
  run_reduced(video.main, "video", tmp_path / "run", preset="paper", num_frames=2)
