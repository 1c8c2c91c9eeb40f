"""Killed at any moment, out of room, with the wrong things in the way: nothing is lost."""

import errno
import functools
import itertools
import json
import os
import time

import numpy as np
import pytest

from train import checkpoint, cli, loop, outputs, runlog
from train.errors import RunError
from train.runlog import RunLog

MEASURED = ("seconds", "per_second", "wait", "memory")


def result_of(workdir):
  content = json.loads((workdir / "result.json").read_text())
  return {k: v for k, v in content.items() if not any(word in k for word in MEASURED)}


def files_of(workdir):
  """Names of everything but TensorBoard's files and those within a checkpoint."""
  return sorted(
    str(path.relative_to(workdir))
    for pattern in ("*", "checkpoints/*", "plots/*")
    for path in workdir.glob(pattern)
  )


@pytest.fixture(scope="module")
def train(run):
  """Runs the tiny training, without a memory: less to compile."""
  return functools.partial(run, method="local")


@pytest.fixture(scope="module")
def whole(train, tmp_path_factory):
  """One that nothing disturbed."""
  return train(tmp_path_factory.mktemp("whole") / "run")


def kill(start, *arguments):
  process = start("tests.train.kill_driver", *map(str, arguments))
  output, errors = process.communicate(timeout=600)
  assert process.returncode == 0, errors
  return json.loads(output)


def test_twenty_kills_change_not_a_bit(start, text_file, records, saved, tmp_path):
  report = kill(start, "trainings", tmp_path, text_file)
  assert sum(report["landed"].values()) == 20
  assert min(report["landed"].values()) >= 3, report
  assert len(report["landed"]) == 6
  whole = tmp_path / "whole"
  for run in (tmp_path / name for name in report["runs"]):
    for step in (14, 16):
      first, second = saved(run, step), saved(whole, step)
      assert first["progress"] == second["progress"]
      assert first["arrays"].keys() == second["arrays"].keys()
      for name, value in first["arrays"].items():
        np.testing.assert_array_equal(value, second["arrays"][name], err_msg=name)
    assert records(run) == records(whole)
    assert result_of(run) == result_of(whole)
    assert files_of(run) == files_of(whole)  # no remains


def test_clips_are_whole_whenever_their_decoding_was_killed(start, write_video, tmp_path):
  videos = tmp_path / "videos"
  for split, of in itertools.product(("train", "test"), ("bright", "dark")):
    for index in range(6 if split == "train" else 1):
      write_video(videos / split / of / f"{index}.avi", range(40, 80 + 5 * index, 10))
  report = kill(start, "clips", tmp_path, videos, 8)
  assert sum(report["landed"].values()) == 8
  assert report["landed"].keys() == {"clip", "cache"}
  expected = np.load(tmp_path / "whole" / "clips.npy")
  assert expected.shape[:2] == (10, 4)  # two are for validation
  for run in report["runs"]:
    np.testing.assert_array_equal(np.load(tmp_path / run / "clips.npy"), expected)
    assert not list((tmp_path / f"{run}_cache").rglob("*.partial"))


class FullDisk:
  """Raises the system's error for want of room at some call of a function, and at none after."""

  def __init__(self, function, at=1):
    self.function, self.left = function, at

  def __call__(self, *arguments, **options):
    self.left -= 1
    if self.left == 0:
      raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return self.function(*arguments, **options)


def orbax_error(*_, **__):
  raise ValueError(
    "RESOURCE_EXHAUSTED: Error writing local file: Failed to write 208 bytes to file 14:"
    " No space left on device [os_error_code='28']\nand more\nlines"
  )


FULL = {
  "metrics": (runlog.json, "dumps", 3),
  "events": (runlog._Events, "write", 3),
  "a file": (outputs.os, "fsync", 1),
  "a checkpoint": (checkpoint.ocp.Checkpointer, "save", 2),
  "the model": (loop._Loop, "_export", 1),
  "a plot": (loop, "plot_losses", 1),
}


@pytest.mark.parametrize("what", FULL)
def test_a_full_disk_is_one_line_and_the_same_command_goes_on(
  train, records, whole, saved, tmp_path, monkeypatch, what
):
  place, name, at = FULL[what]
  with monkeypatch.context() as patch:
    function = getattr(place, name)
    full = FullDisk(function, at)
    patch.setattr(place, name, lambda *arguments, **options: full(*arguments, **options))
    with pytest.raises(RunError, match=r"cannot be written \(No space left on device\)") as caught:
      train(tmp_path / "run")
  assert str(tmp_path / "run") in str(caught.value)
  assert cli.describe(caught.value)[0] == 1
  train(tmp_path / "run")
  assert records(tmp_path / "run") == records(whole)
  assert result_of(tmp_path / "run") == result_of(whole)
  assert files_of(tmp_path / "run") == files_of(whole)


def test_a_checkpoint_without_room_leaves_no_half_and_those_before_it(
  train, records, whole, tmp_path, monkeypatch
):
  workdir = train(tmp_path / "run", stop_at=4)
  before = files_of(workdir)

  def half(self, path, args):
    (path.parent / f"{path.name}.orbax-checkpoint-tmp").mkdir()
    orbax_error()

  with monkeypatch.context() as patch:
    patch.setattr(checkpoint.ocp.Checkpointer, "save", half)
    with pytest.raises(RunError, match=r"checkpoints: cannot be written \(No space left on dev"):
      train(workdir)
  assert files_of(workdir) == before
  train(workdir)
  assert result_of(workdir) == result_of(whole)


def test_other_errors_of_a_save_are_not_taken_for_a_full_disk(train, tmp_path, monkeypatch):
  def broken(*_, **__):
    raise ValueError("a dimension is wrong")

  monkeypatch.setattr(checkpoint.ocp.Checkpointer, "save", broken)
  with pytest.raises(ValueError, match="a dimension is wrong"):
    train(tmp_path / "run")


def test_no_thread_is_waited_for_once_events_cannot_be_written(tmp_path, monkeypatch):
  """What tensorboardX's own writer did: its queue took ten more, and then nothing for ever."""
  log = RunLog(tmp_path, 0)
  log.write({"step": 1, "loss": 1.0})

  def full(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

  monkeypatch.setattr(log._events._writer._py_recordio_writer, "flush", full)
  for step in range(2, 30):
    with pytest.raises(OSError, match="No space left"):
      log.write({"step": step, "loss": 1.0})


def test_a_workdir_that_cannot_be_written_is_named(train, tmp_path, monkeypatch):
  def refused(*_, **__):
    raise PermissionError(errno.EROFS, os.strerror(errno.EROFS))

  monkeypatch.setattr(outputs.tempfile, "TemporaryFile", refused)
  message = rf"^--workdir={tmp_path}/run: cannot be written to \(Read-only file system\)"
  with pytest.raises(RunError, match=message):
    train(tmp_path / "run")


@pytest.mark.parametrize("name", ["checkpoints", "model", "plots", "tensorboard"])
def test_a_file_in_the_place_of_a_folder_is_named_before_anything_is_done(train, tmp_path, name):
  (tmp_path / name).write_text("mine")
  with pytest.raises(RunError, match=rf"/{name}: expected a folder, as a run writes it; move it"):
    train(tmp_path)
  assert (tmp_path / name).read_text() == "mine"
  assert not (tmp_path / "config.json").exists()


@pytest.mark.parametrize(
  ("name", "message"),
  [
    ("metrics.jsonl", "expected a file, as a run writes it"),
    (".lock", "expected a file, as a run writes it"),
    ("tokenizer.json", r"cannot be written \(Is a directory\)"),
    ("config.json", r"cannot be read \(Is a directory\)"),
    ("result.json", r"cannot be read \(Is a directory\)"),
  ],
)
def test_a_folder_in_the_place_of_a_file_is_named(train, tmp_path, name, message):
  (tmp_path / name / "mine").mkdir(parents=True)
  with pytest.raises(RunError, match=rf"/{name}: {message}"):
    train(tmp_path)
  assert (tmp_path / name / "mine").is_dir()


def test_foreign_files_among_the_checkpoints_stay_and_are_in_nobodys_way(
  train, records, whole, tmp_path
):
  folder = tmp_path / "run" / "checkpoints"
  (folder / "unfinished.business").mkdir(parents=True)
  (folder / "unfinished.txt").write_text("mine")
  (folder / "00000004").write_text("the name of a checkpoint")
  workdir = train(tmp_path / "run", stop_at=4)
  train(workdir)
  assert records(workdir) == records(whole)
  assert {path.name for path in folder.iterdir()} == {
    *("unfinished.business", "unfinished.txt", "00000004"),
    *("00000004.1", "00000008"),
  }


def test_a_clock_that_is_set_back_changes_nothing(train, records, saved, whole, tmp_path, patched):
  clock = itertools.count(2_000_000_000, -3600)
  patched.setattr(time, "time", lambda: float(next(clock)))
  workdir = train(tmp_path / "run", stop_at=3)
  patched.setattr(time, "time", lambda: 2_000_000_000.0)  # and stands still
  train(workdir, stop_at=5)
  train(workdir)
  assert records(workdir) == records(whole)
  assert result_of(workdir) == result_of(whole)
  assert len(list((workdir / "tensorboard").iterdir())) == 3  # none in the place of another


@pytest.fixture
def patched():
  """A monkeypatch that is undone before the fixtures of others end."""
  with pytest.MonkeyPatch.context() as patch:
    yield patch


def test_the_lock_of_a_process_that_is_gone_holds_nobody_up(train, tmp_path):
  """What an owner leaves, on this host or another: a file that nobody has locked."""
  workdir = train(tmp_path / "run", stop_at=1)
  (workdir / ".lock").write_text("4194304 on another host\n")
  os.utime(workdir / ".lock", (4e9, 4e9))
  train(workdir, stop_at=2)
  with outputs.held(workdir), pytest.raises(RunError, match="another process trains there"):
    train(workdir)


def test_what_a_killed_process_left_half_written_goes_when_the_next_has_the_folder(tmp_path):
  for name in (".config.json.k3j", ".metrics.jsonl.0a1", ".result.json.xx", ".model-ab/new"):
    (tmp_path / name).mkdir(parents=True) if "/" in name else (tmp_path / name).write_text("{")
  for name in (".mine", ".models", "notes"):
    (tmp_path / name).write_text("mine")
  with outputs.held(tmp_path):
    pass
  assert {path.name for path in tmp_path.iterdir()} == {".mine", ".models", "notes", ".lock"}


@pytest.mark.parametrize(("keep", "newest"), [(1, [7]), (3, [5, 6, 7])])
def test_the_newest_checkpoints_and_the_best_are_kept(train, tmp_path, monkeypatch, keep, newest):
  """What docs/clusters.md promises; the evaluation of step 4 is the best."""
  monkeypatch.setattr(loop._Loop, "_evaluate", lambda *_: {"loss": 1.0})
  workdir = train(tmp_path / "run", keep=keep, checkpoint_every=1, stop_at=7)
  kept = sorted(int(path.name) for path in (workdir / "checkpoints").iterdir())
  assert kept == [4, *newest]
