"""The presets of accelerators: they run, on less data and shorter rows."""

import json

import pytest


@pytest.mark.parametrize(("preset", "params"), [("paper", 33e6), ("standard", 33e6)])
def test_large_presets_make_steps(bare, text_file, tmp_path, preset, params):
  bare(
    workdir=tmp_path / "run", preset=preset, dataset="text", data_path=text_file, tokenizer="byte",
    batch_size=1, max_length=16, window=8, steps=2, warmup_steps=1, log_every=1, eval_every=2,
    eval_tokens=16, checkpoint_every=2,
  )  # fmt: skip
  result = json.loads((tmp_path / "run" / "result.json").read_text())
  assert (result["preset"], result["steps"], result["causal"]) == (preset, 2, True)
  assert result["skipped_steps"] == 0
  # With WikiText-2's 33,278 words in the place of 256 bytes.
  assert result["params"] + (33_278 - 256) * 384 < params
