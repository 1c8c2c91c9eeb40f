"""The audits themselves: they find what leaks, and nothing else."""

import dataclasses
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tmem import MemoryConfig, audit, interop
from tmem.decoder_config import METHODS
from tmem.models import LanguageConfig, LanguageModel

TOKENS = np.random.default_rng(0).integers(0, 5, size=(2, 9)).astype(np.int32)
LEAKING = {"state_scope": "depth", "allow_future_leak": True}

# Four chunks of two tokens; with the published state scope the leak is learnt in 120 steps.
LEARNER = LanguageConfig(
  vocab_size=4,
  features=16,
  num_heads=2,
  num_layers=2,
  max_length=8,
  window=4,
  memory=MemoryConfig(channels=8, grid=(4,), chunk_size=2, forget_bias=3.0),
)
TRAINING = {"steps": 120, "batch_size": 32, "learning_rate": 1e-2}


def one_hot_sums(tokens):
  """A causal model: how often each of five symbols has come so far."""
  return jnp.cumsum(jax.nn.one_hot(tokens, 5), axis=1)


def planted(position, size=1e-3):
  """`one_hot_sums`, whose first logit also depends a little on one later token."""

  def logits(tokens):
    return one_hot_sums(tokens).at[:, 0, 2].add(size * tokens[:, position])

  return logits


def test_a_causal_function_has_exactly_no_influence():
  assert audit.future_influence(one_hot_sums, TOKENS) == 0.0


@pytest.mark.parametrize("position", [1, 4, 8])
def test_a_leak_of_one_position_is_found(position):
  assert audit.future_influence(planted(position), TOKENS) >= 0.9e-3


def test_the_largest_change_is_reported():
  both = lambda tokens: planted(3, 0.5)(tokens) + planted(7, 2.0)(tokens)  # noqa: E731
  zeros = np.zeros((1, 9), np.int32)
  assert audit.future_influence(both, zeros) == 2.0


def test_a_leak_in_one_row_is_found():
  def logits(tokens):
    return one_hot_sums(tokens).at[1, 2, 0].add(tokens[1, 5])

  assert audit.future_influence(logits, TOKENS) > 0.5


def test_nan_and_infinity():
  still_nan = lambda tokens: one_hot_sums(tokens).at[:, 0].set(jnp.nan)  # noqa: E731
  assert audit.future_influence(still_nan, TOKENS) == 0.0
  still_infinite = lambda tokens: one_hot_sums(tokens).at[..., 0].set(-jnp.inf)  # noqa: E731
  assert audit.future_influence(still_infinite, TOKENS) == 0.0

  def appearing(value):
    def logits(tokens):
      hit = tokens[:, 6:7] == TOKENS[:, 6:7]
      return one_hot_sums(tokens).at[:, 0].set(jnp.where(hit, 0.0, value))

    return logits

  assert audit.future_influence(appearing(jnp.nan), TOKENS) == math.inf
  assert audit.future_influence(appearing(jnp.inf), TOKENS) == math.inf


@pytest.mark.parametrize(
  "tokens", [np.zeros((2, 1), np.int32), np.zeros(5, np.int32), np.zeros((2, 5), np.float32)]
)
def test_wrong_tokens_are_refused(tokens):
  with pytest.raises(ValueError, match=r"^tokens: got .*expected integers \[batch, tokens >= 2\]"):
    audit.future_influence(one_hot_sums, tokens)


@pytest.mark.parametrize("method", METHODS)
def test_causal_models_respect_the_entropy_floor(method):
  config = dataclasses.replace(LEARNER, method=method, dropout=0.3)
  floor = audit.entropy_floor(config, **TRAINING)
  assert floor.floor == math.log(4)
  assert floor.causal
  assert floor.floor - 0.01 < floor.loss < floor.floor + 0.05
  assert 0.0 < floor.margin < 0.02


def test_the_published_state_scope_goes_below_the_floor():
  config = dataclasses.replace(LEARNER, method="tensor_local", **LEAKING)
  floor = audit.entropy_floor(config, **TRAINING)
  assert not floor.causal
  assert floor.loss < floor.floor - 0.1


def test_the_margin_decides():
  assert audit.Floor(loss=0.69, floor=math.log(2), margin=0.01).causal
  assert not audit.Floor(loss=0.67, floor=math.log(2), margin=0.01).causal


def run_audit(workdir, *arguments):
  done = subprocess.run(
    [sys.executable, "-m", "tmem.audit", f"--workdir={workdir}", *arguments],
    cwd=Path(__file__).parents[2],
    env=os.environ | {"JAX_PLATFORMS": "cpu"},
    capture_output=True,
    text=True,
    timeout=300,
    check=False,
  )
  return done.returncode, done.stdout, done.stderr.strip()


@pytest.fixture(scope="module")
def workdir(tmp_path_factory, randomised):
  def save(**changes):
    small = dataclasses.replace(LEARNER, features=4, **changes)
    path = tmp_path_factory.mktemp("run")
    interop.save_model(path / "model", randomised(lambda: LanguageModel(small, rngs=nnx.Rngs(0))))
    return path

  return save


def test_the_command_passes_a_causal_model(workdir):
  status, out, _ = run_audit(workdir(method="local", num_layers=1, vocab_size=6), "--floor_steps=8")
  report = json.loads(out)
  assert status == 0
  assert report["causal"] is True
  assert report["future_influence"] == 0.0
  assert report["influence_tokens"] == 8
  assert report["entropy_floor"]["floor"] == math.log(4)


def test_the_command_fails_a_leaking_model(workdir):
  leaking = workdir(method="tensor", **LEAKING)
  status, out, err = run_audit(leaking, "--floor_steps=0", "--tokens=6")
  report = json.loads(out)
  assert status == 1
  assert report["causal"] is False
  assert report["future_influence"] > 1e-6
  assert report["influence_tokens"] == 6
  assert report["entropy_floor"] is None
  assert err.splitlines() == ["the model is NOT causal: later tokens reach earlier ones"]


@pytest.mark.parametrize("broken", ["missing", "truncated"])
def test_the_command_says_in_one_line_what_it_cannot_read(broken, tmp_path, workdir):
  path = tmp_path
  if broken == "truncated":
    path = workdir(method="base")
    (path / "model" / "model.safetensors").write_bytes(b"\x08")
  status, out, err = run_audit(path)
  assert status == 1
  assert out == ""
  assert len(err.splitlines()) == 1
  assert err.startswith(f"error: --workdir={path}: ")
  assert ("broken or truncated" if broken == "truncated" else "no such file") in err


def test_what_cannot_be_judged_is_refused():
  with pytest.raises(ValueError, match="every logit is NaN"):
    audit.future_influence(lambda tokens: one_hot_sums(tokens) * jnp.nan, TOKENS)
  with pytest.raises(ValueError, match="one symbol"):
    audit.future_influence(lambda tokens: one_hot_sums(tokens)[..., :1], TOKENS)
  with pytest.raises(ValueError, match="steps: got 7"):
    audit.entropy_floor(LEARNER, steps=7)


@pytest.mark.parametrize("flags", [["--floor_steps=3"], ["--tokens=1"]])
def test_bad_flags_of_the_command(flags, tmp_path):
  status, out, err = run_audit(tmp_path, *flags)
  assert status == 2
  assert out == ""
  assert flags[0].split("=")[0] in err.splitlines()[-1]
