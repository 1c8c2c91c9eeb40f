"""The diagnostic suite as a command: what it leaves, and what interruptions and failures do."""

import json

import jax
import numpy as np
import pytest
from flax import nnx

from data.synthetic import CoordinateBinding
from tmem import MemoryConfig, audit, interop
from tmem.models import SequenceConfig, SequenceModel
from train import cell_task, diagnostics, sweep
from train.errors import Interrupted, RunError
from train.losses import classification_loss, classification_sums

TINY = ("--preset=smoke", "--task=no_harm", "--methods=base,tensor", "--attention_window=2")


def run(workdir, *options):
  diagnostics.main(["diagnostics", f"--workdir={workdir}", *TINY, *options])


def read(path):
  return json.loads(path.read_text())


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
  workdir = tmp_path_factory.mktemp("suite") / "run"
  run(workdir)
  return workdir


def test_the_report_has_every_cell_and_its_pictures(finished):
  report = read(finished / "report.json")
  assert list(report["cells"]) == [
    "no_harm/base-window_2-seed_0",
    "no_harm/tensor-window_2-seed_0",
  ]
  assert report["failed"] == {}
  tensor = report["cells"]["no_harm/tensor-window_2-seed_0"]
  assert (tensor["task"], tensor["dataset"], tensor["method"]) == (
    "diagnostics",
    "no_harm",
    "tensor",
  )
  assert (tensor["attention_window"], tensor["causal"], tensor["steps"]) == (2, True, 4)
  assert 0.0 <= tensor["tokens_3_accuracy"] <= 1.0
  assert tensor["ceilings"] == {"valid": 1.0, "tokens_3": 1.0}
  text = (finished / "report.md").read_text()
  assert "| tensor |" in text
  assert "--task=no_harm" in text
  assert (finished / "plots" / "no_harm_gates.png").read_bytes().startswith(b"\x89PNG")


def test_a_cell_is_a_run_that_can_be_audited(finished):
  model = interop.load_model(finished / "cells/no_harm/tensor-window_2-seed_0/model")
  report = audit.audit_model(model, tokens=6, floor_steps=0)
  assert report["future_influence"] == 0.0
  assert report["causal"]


def test_a_finished_suite_is_left_alone(finished, monkeypatch, capsys):
  trained = []
  monkeypatch.setattr(sweep.loop, "train", lambda *arguments: trained.append(arguments))
  run(finished)
  assert trained == []
  assert "| tensor |" in capsys.readouterr().out


def test_an_interrupted_suite_goes_on_at_the_first_unfinished_cell(tmp_path, monkeypatch):
  trained, train = [], sweep.loop.train

  def train_one(task, run, optim, record):
    trained.append(record["cell"])
    if len(trained) == 2:
      raise Interrupted("SIGTERM", 15)
    return train(task, run, optim, record)

  monkeypatch.setattr(sweep.loop, "train", train_one)
  with pytest.raises(Interrupted):
    run(tmp_path / "run")
  run(tmp_path / "run")
  assert trained == ["base-window_2-seed_0", *["tensor-window_2-seed_0"] * 2]


def test_a_failing_cell_is_reported_and_the_rest_goes_on(tmp_path, monkeypatch, capsys):
  train = sweep.loop.train

  def fail_once(task, run, optim, record):
    if record["cell"].startswith("base"):
      raise ValueError("out of luck")
    return train(task, run, optim, record)

  monkeypatch.setattr(sweep.loop, "train", fail_once)
  with pytest.raises(RunError, match=r"1 of 2 cells failed, .*ValueError: out of luck"):
    run(tmp_path / "run")
  report = read(tmp_path / "run" / "report.json")
  assert list(report["cells"]) == ["no_harm/tensor-window_2-seed_0"]
  assert report["failed"] == {"no_harm base-window_2-seed_0": "ValueError: out of luck"}
  assert "FAILED: ValueError: out of luck" in capsys.readouterr().out


def test_a_worker_trains_and_leaves_the_report_to_others(tmp_path, monkeypatch):
  trained = []
  monkeypatch.setattr(
    sweep.loop, "train", lambda task, run, *rest: trained.append(run.workdir.name)
  )
  workdir = tmp_path / "run"
  with sweep.claimed(workdir / "cells/no_harm/base-window_2-seed_0"):
    run(workdir, "--worker")
  assert trained == ["tensor-window_2-seed_0"]
  assert not (workdir / "report.md").exists()


def test_sums_count_the_answers_alone():
  logits = np.zeros((1, 4, 3), np.float32)
  logits[0, :, 1] = [2.0, 2.0, -2.0, 2.0]
  batch = {
    "targets": np.array([[1, 1, 1, 0]]),
    "mask": np.array([[False, True, True, True]]),
    "observed": np.array([[True, True, False, False]]),
  }
  sums = classification_sums(logits, batch)
  nats = np.log(2 + np.exp([2.0, -2.0, 2.0])) - [2.0, -2.0, 0.0]
  np.testing.assert_allclose(sums["loss"], nats.sum(), rtol=1e-6)
  assert (sums["weight"], sums["accuracy"]) == (3, 1)
  assert (sums["observed"], sums["observed_accuracy"]) == (1, 1)


def test_observed_accuracy_is_that_of_the_observed():
  means = {
    "loss": 1.0,
    "accuracy": 0.5,
    "observed": 0.4,
    "observed_accuracy": 0.3,
    "gate_block_0": 0.5,
  }
  found = cell_task.classification_metrics(means, "observations_4")
  assert found == pytest.approx({"loss": 1.0, "accuracy": 0.5, "observed_accuracy": 0.75})
  assert cell_task.classification_metrics(means, "valid")["gate_block_0"] == 0.5


def test_segments_lose_nothing_but_attention(randomised_model):
  """With attention of one token, a stream in segments has the loss of the stream in one."""
  batch = CoordinateBinding(writes=9, queries=2).sample(jax.random.key(0), 3)
  graphdef, params = nnx.split(randomised_model)

  @jax.jit
  def sums(params):
    model = nnx.merge(graphdef, params)
    in_parts = (cell_task.segmented_loss(segment)(model, batch, None) for segment in (4, 16))
    return classification_loss(model, batch, None), *in_parts

  whole, *parts = sums(params)
  for part in parts:
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), part, whole)


@pytest.fixture(scope="module")
def randomised_model():
  config = SequenceConfig(
    input_features=38,
    classes=32,
    features=8,
    num_heads=2,
    num_layers=2,
    method="tensor_local",
    window=1,
    positions=False,
    memory=MemoryConfig(channels=2, grid=(2, 2), chunk_size=1),
  )
  return SequenceModel(config, rngs=nnx.Rngs(0))
