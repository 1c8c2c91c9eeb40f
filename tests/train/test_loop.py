"""What the loop takes from a task other than the ones there are."""

import dataclasses
import json

import jax.numpy as jnp
import pytest

from train import loop
from train.losses import language_loss
from train.progress import Progress

LENGTHS = (4, 4, 8, 4, 8, 4, 8, 8)


class CutBatches:
  """Batches that have a length of their own in every step and lie on a device."""

  def __init__(self, batches):
    self.batches, self.step = batches, 0

  def __next__(self):
    length, self.step = LENGTHS[self.step], self.step + 1
    return {name: jnp.asarray(rows[:, :length]) for name, rows in next(self.batches).items()}

  def get_state(self):
    return self.step


@pytest.fixture(scope="module")
def curriculum(task, tmp_path_factory):
  """(result, progress, folder) of a run whose task exports nothing and sums more than a loss."""
  made, config = task(method="local")
  run = dataclasses.replace(config.run, workdir=tmp_path_factory.mktemp("curriculum"))

  def loss_fn(model, batch, key):
    return {**language_loss(model, batch, key), "answers": jnp.float32(3)}

  def metrics(means, split):
    return {"loss": means["loss"], "answers": means["answers"]}

  batches = made.train_batches
  made = dataclasses.replace(
    made,
    loss_fn=loss_fn,
    eval_loss_fn=loss_fn,
    metrics=metrics,
    train_batches=lambda: CutBatches(batches()),
    export=None,
  )
  kept = []
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(loop, "Progress", lambda: kept.append(Progress()) or kept[0])
    found = loop.train(made, run, config.optim, {})
  return found, kept[0], run.workdir


def test_steps_that_compile_are_not_counted_as_training(curriculum, task):
  _, progress, _ = curriculum
  rows = task(method="local")[1].run.batch_size
  assert progress.step == len(LENGTHS)
  assert progress.train_items == rows * (sum(LENGTHS) - sum(set(LENGTHS)))


def test_what_a_task_sums_besides_is_measured_in_evaluation_only(curriculum):
  found, _, workdir = curriculum
  # Three per batch: the mean over items is the less, the more items there are.
  assert 0 < found["valid_answers"] < 1
  lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
  assert "answers" not in lines[0]
  assert [line["step"] for line in lines if "valid_answers" in line] == [4, 8]


def test_a_task_may_export_nothing(curriculum):
  found, _, workdir = curriculum
  assert found["steps"] == 8
  assert not (workdir / "model").exists()
  assert (workdir / "result.json").exists()


class Clock:
  """Counts how often it was looked at; a second each time."""

  def __init__(self):
    self.seconds = 0.0

  def monotonic(self):
    self.seconds += 1
    return self.seconds


@pytest.mark.parametrize(("idle", "seconds"), [(True, 1), (False, 0)])
def test_waiting_for_data_counts_while_devices_have_nothing_to_do(
  idle, seconds, task, tmp_path, monkeypatch
):
  made, config = task(method="local", steps=4)
  monkeypatch.setattr(loop, "time", Clock())
  monkeypatch.setattr(loop._Loop, "_is_idle", lambda self: idle)
  kept = []
  monkeypatch.setattr(loop, "Progress", lambda: kept.append(Progress()) or kept[0])
  run = dataclasses.replace(config.run, workdir=tmp_path / "run")
  found = loop.train(dataclasses.replace(made, export=None), run, config.optim, {})
  assert kept[0].data_seconds == 3 * seconds  # the step that compiles does not count
  assert found["data_wait"] == 3 * seconds / kept[0].train_seconds


def test_a_picture_that_fails_costs_no_result(task, tmp_path):
  made, config = task(method="local", steps=2, eval_every=2)

  def fail(folder, model):
    raise ValueError("no picture")

  made = dataclasses.replace(made, export=None, figures=fail)
  run = dataclasses.replace(config.run, workdir=tmp_path / "run")
  with pytest.raises(ValueError, match="no picture"):
    loop.train(made, run, config.optim, {})
  assert json.loads((tmp_path / "run" / "result.json").read_text())["steps"] == 2
