"""The diagnostic suite as a command: what it leaves, and what interruptions and failures do."""

import dataclasses
import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from flax import nnx

from data.synthetic import CoordinateBinding
from tmem import MemoryConfig, audit, interop
from tmem.models import SequenceConfig, SequenceModel
from tmem.places import axes_penalty, memory_places
from train import cell_task, diagnostics, diagnostics_report, flags, sweep
from train.diagnostics_flags import COMMAND
from train.diagnostics_plots import plot_places
from train.diagnostics_presets import SETTINGS
from train.diagnostics_report import CURVES
from train.errors import FlagError, Interrupted, RunError
from train.experiments import EXPERIMENTS
from train.losses import classification_loss, classification_sums
from train.workers import claimed

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


@pytest.mark.parametrize("how", ["a file", "no ceilings", "a folder for its config"])
def test_a_broken_cell_does_not_stop_the_others(finished, tmp_path, how):
  shutil.copytree(finished, tmp_path / "run")
  cell = tmp_path / "run" / "cells" / "no_harm" / "base-window_2-seed_0"
  if how == "a file":
    shutil.rmtree(cell)
    cell.write_text("")
  elif how == "no ceilings":
    result = {k: v for k, v in read(cell / "result.json").items() if k != "ceilings"}
    (cell / "result.json").write_text(json.dumps(result))
  else:
    (cell / "config.json").unlink()
    (cell / "config.json").mkdir()
  with pytest.raises(RunError, match="1 of 2 cells failed"):
    run(tmp_path / "run")
  report = read(tmp_path / "run" / "report.json")
  assert list(report["cells"]) == ["no_harm/tensor-window_2-seed_0"]
  assert list(report["failed"]) == ["no_harm base-window_2-seed_0"]


@pytest.mark.parametrize(
  ("options", "message"),
  [
    (("--task=ablations", "--methods=base"), "^--methods: none of them is trained in ablations"),
    (("--init_from=nowhere",), "^--init_from=nowhere: no suite there"),
  ],
)
def test_a_suite_that_cannot_be_is_refused_before_anything_is_written(tmp_path, options, message):
  with pytest.raises(FlagError, match=message):
    run(tmp_path / "run", *options)
  assert not (tmp_path / "run").exists()


def test_a_cell_is_a_run_that_can_be_audited(finished):
  model = interop.load_model(finished / "cells/no_harm/tensor-window_2-seed_0/model")
  report = audit.audit_model(model, tokens=6, floor_steps=0)
  assert report["future_influence"] == 0.0
  assert report["causal"]


def test_cells_start_from_those_of_another_suite(finished, tmp_path, monkeypatch):
  started = {}
  monkeypatch.setattr(
    sweep.loop, "train", lambda task, run, *_: started.update({run.workdir.name: run.init_from})
  )
  with pytest.raises(RunError, match="2 of 2 cells failed"):  # nothing was trained
    run(tmp_path / "run", f"--init_from={finished}")
  cells = finished / "cells" / "no_harm"
  names = ("base-window_2-seed_0", "tensor-window_2-seed_0")
  assert started == {name: cells / name for name in names}


def test_a_finished_suite_is_left_alone(finished, monkeypatch, capsys):
  trained = []
  monkeypatch.setattr(sweep.loop, "train", lambda *arguments: trained.append(arguments))
  run(finished)
  assert trained == []
  assert "| tensor |" in capsys.readouterr().out


def test_an_interrupted_suite_goes_on_at_the_first_unfinished_cell(tmp_path, monkeypatch):
  trained, train = [], sweep.loop.train

  def train_one(task, run, optim, record):
    trained.append(record["cell"]["method"])
    if len(trained) == 2:
      raise Interrupted("SIGTERM", 15)
    return train(task, run, optim, record)

  monkeypatch.setattr(sweep.loop, "train", train_one)
  with pytest.raises(Interrupted, match=r"--workdir=.*/run goes on from here") as caught:
    run(tmp_path / "run")
  assert caught.value.exit_status == 143
  run(tmp_path / "run")
  assert trained == ["base", "tensor", "tensor"]


def test_a_failing_cell_is_reported_and_the_rest_goes_on(tmp_path, monkeypatch, capsys):
  train = sweep.loop.train

  def fail_once(task, run, optim, record):
    if record["cell"]["method"] == "base":
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
  with claimed(workdir / "cells/no_harm/base-window_2-seed_0"):
    run(workdir, "--worker")
  assert trained == ["tensor-window_2-seed_0"]
  assert not (workdir / "report.md").exists()


def test_what_was_made_with_other_settings_is_neither_shown_nor_written_over(finished, tmp_path):
  workdir = tmp_path / "run"
  shutil.copytree(finished, workdir)
  folder = workdir / "cells/no_harm/tensor-window_2-seed_0"
  record = read(folder / "config.json")
  record["cell"]["batch_size"] += 1
  (folder / "config.json").write_text(json.dumps(record))
  before = (folder / "result.json").read_bytes()
  with pytest.raises(RunError, match=r"1 of 2 cells failed, .*made with other settings; delete it"):
    run(workdir)
  assert list(read(workdir / "report.json")["cells"]) == ["no_harm/base-window_2-seed_0"]
  assert (folder / "result.json").read_bytes() == before


def test_a_broken_result_is_reported(finished, tmp_path):
  workdir = tmp_path / "run"
  shutil.copytree(finished, workdir)
  (workdir / "cells/no_harm/base-window_2-seed_0/result.json").write_text("{")
  with pytest.raises(RunError, match=r"1 of 2 cells failed, .*result.json: not a JSON file"):
    run(workdir)


def test_the_test_samples_are_not_those_that_choose_the_checkpoint():
  (cell,) = cells_of("--task=coordinate_binding", "--methods=base", "--attention_window=2")
  task = cell_task.make_task(cell)
  valid, test = (next(iter(task.eval_batches(name, 0))) for name in task.splits[:2])
  assert cell.tests["valid"] == cell.tests[task.splits[1]]
  assert not np.array_equal(valid["inputs"], test["inputs"])


def test_batches_of_an_evaluation_fit_the_devices(monkeypatch):
  (cell,) = cells_of("--task=no_harm", "--methods=base", "--attention_window=2")
  cell = dataclasses.replace(cell, eval_samples=10)
  monkeypatch.setattr(cell_task.jax, "device_count", lambda: 8)
  (batch,) = cell_task.make_task(cell).eval_batches("valid", 0)
  assert batch["mask"].shape == (16, 3)
  assert batch["mask"].any(axis=1).sum() == 10


def cells_of(*options):
  argv = ["diagnostics", "--workdir=/nowhere", "--preset=smoke", *options]
  return flags.parse(COMMAND, argv).cells


def outcomes_of(*options):
  """Cells as if they had been trained, with made-up results."""
  for cell in cells_of(*options):
    tests = {f"{name}_accuracy": 0.25 for name in cell.tests}
    found = {
      **tests,
      "ceilings": {name: task.ceiling() for name, task in cell.tests.items()},
      "params": 1234,
      "state_bytes": 99,
      "causal": cell.model.causal,
      "fusion_gates": {"block_0": 0.625} if cell.method == "tensor" else {},
      "gate_start": 0.5,
    }
    if cell.method == "tensor":
      found |= dict.fromkeys(tests, 0.75)
    yield sweep.Outcome(cell, Path("/nowhere"), found)


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_every_experiment_has_its_tables_and_pictures(experiment, tmp_path):
  outcomes = list(outcomes_of(f"--task={experiment}"))
  record = {"flags": {"task": experiment, "preset": "smoke"}}
  text = diagnostics_report.write(tmp_path, record, outcomes)
  report = (tmp_path / "report.md").read_text()
  assert "best possible" in text
  assert "75.0" in text
  assert f"--workdir={tmp_path}-{experiment} --task={experiment} --preset=smoke" in report
  assert f"{experiment}-paper --task={experiment} --preset=paper" in report
  if experiment != "ablations":
    assert "in points: " in report or experiment == "long_recall"
    assert "25.0" in text
    assert "| 0.625 | 0.125 |" in text
  pictures = {path.stem for path in (tmp_path / "plots").glob("*.png")}
  assert pictures >= {f"{experiment}_{x.replace(' ', '_')}" for x in CURVES.get(experiment, ())}


def test_a_picture_that_fails_is_not_the_end_of_the_report(tmp_path):
  outcomes = list(outcomes_of("--task=coordinate_binding"))
  diagnostics_report.write(tmp_path, {"flags": {}}, outcomes)
  assert "No picture places: FileNotFoundError" in (tmp_path / "report.md").read_text()


def test_places_are_drawn_for_a_grid_of_any_axes(tmp_path):
  for axes in (1, 2, 3, 4):
    places = np.linspace(-1, 1, 5 * axes).reshape(5, axes)
    path = tmp_path / f"{axes}.png"
    plot_places((3,) * axes, places, np.full(5, 0.2), places, path)
    assert path.read_bytes().startswith(b"\x89PNG")


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
    in_parts = (cell_task.segmented_sums(model, batch, segment) for segment in (4, 16))
    return classification_loss(model, batch, None), *in_parts

  whole, *parts = sums(params)
  for part in parts:
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), part, whole)


def test_training_has_the_axes_penalty_and_evaluation_has_not(randomised_model):
  batch = CoordinateBinding(writes=6, queries=2).sample(jax.random.key(0), 3)
  cell = next(EXPERIMENTS["coordinate_binding"](SETTINGS["smoke"]["coordinate_binding"]))
  graphdef, params = nnx.split(randomised_model)

  @jax.jit
  def losses(params):
    model = nnx.merge(graphdef, params)
    places = memory_places(model, batch["inputs"])
    whole, in_segments = (
      cell_task.make_loss(dataclasses.replace(cell, axes_weight=0.5, segment=segment))
      for segment in (None, 8)
    )
    key = jax.random.key(1)
    penalty = sum(axes_penalty(own.write_at, own.write) for own in places.values())
    runs = [loss(model, batch, k)["loss"] for loss in (whole, in_segments) for k in (None, key)]
    return runs, 0.5 * penalty * batch["mask"].sum()

  (whole, trained, in_parts, trained_in_parts), expected = losses(params)
  assert expected > 0.1
  np.testing.assert_allclose(trained - whole, expected, rtol=1e-4)
  np.testing.assert_allclose(trained_in_parts - in_parts, expected, rtol=1e-4)  # one segment


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
