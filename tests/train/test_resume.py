import json
import os
import signal
import time

import chex
import numpy as np
import pytest

from train import language, outputs
from train.errors import FlagError, Interrupted, RunError


def assert_same_run(records, saved, first, second, step):
  assert records(first) == records(second)
  one, two = saved(first, step), saved(second, step)
  assert one["progress"] == two["progress"]
  assert one["arrays"].keys() == two["arrays"].keys()
  for name, value in one["arrays"].items():
    np.testing.assert_array_equal(value, two["arrays"][name], err_msg=name)


def result_of(workdir):
  content = json.loads((workdir / "result.json").read_text())
  measured = ("seconds", "per_second", "wait", "memory")
  return {k: v for k, v in content.items() if not any(word in k for word in measured)}


@pytest.mark.parametrize("stop_at", [3, 4])
def test_two_halves_equal_the_whole(run, records, saved, finished, tmp_path, stop_at):
  """Step 3 is inside everything, step 4 has an evaluation and a checkpoint."""
  workdir = run(tmp_path / "halves", stop_at=stop_at)
  assert not (workdir / "result.json").exists()
  assert records(workdir)[-1]["step"] == stop_at
  run(workdir)
  assert_same_run(records, saved, workdir, finished, 8)
  assert result_of(workdir) == result_of(finished)


def test_two_processes_do_not_train_in_one_folder(run, tmp_path):
  workdir = run(tmp_path / "run", stop_at=3)
  message = f"--workdir={workdir}: another process trains there"
  with outputs.held(workdir), pytest.raises(RunError, match=message):
    run(workdir)
  run(workdir)
  assert (workdir / "result.json").exists()


def test_a_run_starts_from_the_parameters_of_another(run, records, saved, finished, tmp_path):
  best = saved(finished, json.loads((finished / "result.json").read_text())["best_step"])["arrays"]
  still = {"learning_rate": 1e-6, "warmup_steps": 0, "seed": 5}
  tuned = run(tmp_path / "tuned", init_from=finished, **still)
  arrays = saved(tuned, 8)["arrays"]
  for name in (name for name in best if name.startswith("params/")):
    np.testing.assert_allclose(arrays[name], best[name], atol=1e-5, err_msg=name)
  # One checkpoint of it, by name; stopped and resumed.
  source = finished / "checkpoints" / "00000004"
  whole = run(tmp_path / "whole", init_from=source)
  halves = run(tmp_path / "halves", init_from=source, stop_at=3)
  run(halves, init_from=source)
  assert_same_run(records, saved, whole, halves, 8)
  assert records(whole)[0]["loss"] != records(finished)[0]["loss"]
  assert json.loads((whole / "result.json").read_text())["init_from"] == str(source)


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"features": 16}, r"is of another model: params/.* is float32\[[\d, ]+\] in the checkpoint"),
    ({"init_from": "nowhere"}, "^--init_from=nowhere: no checkpoint there"),
  ],
)
def test_what_a_run_cannot_start_from_is_named(run, finished, tmp_path, changes, message):
  with pytest.raises(RunError, match=message):
    run(tmp_path / "run", **{"init_from": finished, **changes})


def test_a_run_does_not_start_from_one_with_other_tokens(run, finished, tmp_path):
  with pytest.raises(FlagError, match=r"^--init_from=.*was trained with other tokens"):
    run(tmp_path / "run", init_from=finished, tokenizer="char")


def test_a_flag_that_is_newer_than_the_run_had_its_default(run, bare, finished, tmp_path):
  workdir = run(tmp_path / "run", stop_at=2)
  config = json.loads((workdir / "config.json").read_text())
  del config["flags"]["init_from"]
  (workdir / "config.json").write_text(json.dumps(config))
  with pytest.raises(FlagError, match=r"^--init_from: the run in .* was started with None"):
    bare(workdir=workdir, init_from=finished)
  bare(workdir=workdir)
  assert (workdir / "result.json").exists()


def test_log_lines_may_be_longer_than_the_pieces_of_a_run(run, records, saved, tmp_path):
  """A log line averages over steps of two processes."""
  rhythm = {"log_every": 4}
  whole = run(tmp_path / "whole", **rhythm)
  halves = run(tmp_path / "halves", stop_at=2, **rhythm)
  run(halves, stop_at=6, **rhythm)
  run(halves, **rhythm)
  assert_same_run(records, saved, whole, halves, 8)


def test_a_signal_during_an_evaluation_is_obeyed_and_the_evaluation_made_up_for(
  run, records, saved, finished, tmp_path, monkeypatch
):
  from train import loop

  evaluate = loop.make_evaluate

  def interrupted(*arguments):
    measure = evaluate(*arguments)

    def call(params, batches, stop):
      os.kill(os.getpid(), signal.SIGINT)
      return measure(params, batches, stop)

    return call

  workdir = tmp_path / "run"
  with monkeypatch.context() as patch:
    patch.setattr(loop, "make_evaluate", interrupted)
    with pytest.raises(Interrupted, match="SIGINT: saved at step 4 of 8; to continue: python"):
      run(workdir)
  assert [r["step"] for r in records(workdir)] == [1, 2, 3]
  run(workdir)
  assert records(workdir) == records(finished)
  assert result_of(workdir) == result_of(finished)


def test_sigterm_saves_and_the_run_resumes_exactly(
  start, options, run, records, saved, finished, tmp_path
):
  workdir = tmp_path / "run"
  process = start("train.language", *options(workdir, steps=8, checkpoint_every=1000))
  wait_for(lambda: process.stdout.readline().startswith("step 1/"), process)
  process.send_signal(signal.SIGTERM)
  _, err = process.communicate(timeout=60)
  if process.returncode != 0:  # it may have been faster than the signal
    assert process.returncode == 143, err
    last = err.strip().splitlines()[-1]
    assert last.startswith("SIGTERM: saved at step ")
    assert last.endswith(f"to continue: python -m train.language --workdir={workdir}")
    language.main(["language", f"--workdir={workdir}", "--checkpoint_every=4"])
  assert records(workdir) == records(finished)


def test_a_process_killed_at_any_moment_leaves_a_run_that_resumes_exactly(
  start, options, run, records, saved, finished, tmp_path
):
  """Saves after every step, so that kill -9 mostly comes in the middle of a save."""
  workdir = tmp_path / "run"
  process = start("train.language", *options(workdir, checkpoint_every=1, keep=1))
  folder = workdir / "checkpoints"
  wait_for(lambda: folder.is_dir() and any(folder.glob("unfinished.*2*")), process)
  process.kill()
  process.wait()
  with (workdir / "metrics.jsonl").open("a") as file:
    file.write('{"step": 99, "loss"')
  run(workdir, checkpoint_every=4)
  assert records(workdir) == records(finished)
  assert result_of(workdir) == result_of(finished)


def wait_for(condition, process, seconds=90):
  deadline = time.monotonic() + seconds
  while not condition():
    assert process.poll() is None, process.stderr.read()
    assert time.monotonic() < deadline
    time.sleep(0.002)


def test_lines_after_the_checkpoint_are_dropped(run, records, finished, tmp_path):
  workdir = run(tmp_path / "run", stop_at=5)
  with (workdir / "metrics.jsonl").open("a") as file:
    file.write('{"step": 6, "loss": 1.0}\n{"step": 7, "lo')
  run(workdir)
  assert [r["step"] for r in records(workdir)] == list(range(1, 9))
  assert records(workdir) == records(finished)


def test_a_finished_run_says_so_and_changes_nothing(run, finished, traces, capsys):
  before = traces(finished)
  run(finished)
  assert traces(finished) == before
  assert "is finished; nothing to do" in capsys.readouterr().out
  with pytest.raises(FlagError, match=r"--steps: .* started with 8, this command has 9"):
    run(finished, steps=9)
  assert traces(finished) == before


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"learning_rate": 0.5}, r"--learning_rate: the run in .* was started with 0.001"),
    ({"grid": "2,2,3"}, r"--grid: the run in .* was started with 2,2,2, this command has 2,2,3"),
    ({"method": "base"}, r"--method: .* started with tensor_local, this command has base"),
    ({"seed": 1}, r"--seed: "),
    ({"preset": "cpu"}, r"--preset: .* started with smoke, this command has cpu"),
    ({"features": None}, r"--features: .* started with 8, this command has 32"),
  ],
)
def test_another_configuration_is_refused(run, finished, traces, changes, message):
  before = traces(finished)
  with pytest.raises(FlagError, match=message):
    run(finished, **changes)
  assert traces(finished) == before


def test_the_workdir_alone_is_enough_to_resume(run, bare, records, finished, tmp_path):
  workdir = run(tmp_path / "run", stop_at=2)
  bare(workdir=workdir)
  assert records(workdir) == records(finished)


def test_another_text_is_refused(run, tmp_path, text_file):
  text = text_file.read_text()
  copy = tmp_path / "text.txt"
  copy.write_text(text)
  workdir = run(tmp_path / "run", stop_at=1, data_path=copy)
  with pytest.raises(RunError, match=r"not the data that the run .* \(train, valid, test changed"):
    copy.write_text(text.upper())
    run(workdir, data_path=copy)
  with pytest.raises(RunError, match=r"not the data that the run .* began with \(test changed\)"):
    copy.write_text(text[:-10] + text[-10:].upper())
    run(workdir, data_path=copy)


def test_a_signal_before_the_first_step_leaves_nothing_to_save(run, tmp_path, monkeypatch):
  monkeypatch.setattr("train.interrupts.Interrupts.__enter__", signalled)
  with pytest.raises(Interrupted, match="SIGTERM: stopped before the first step, nothing to save"):
    run(tmp_path / "run")
  assert not list((tmp_path / "run").glob("checkpoints/0*"))


def signalled(interrupts):
  interrupts.signum = signal.SIGTERM
  return interrupts


@pytest.mark.parametrize("content", ["{", "{}"])
def test_a_broken_result_is_named(run, finished, tmp_path, content):
  (tmp_path / "config.json").write_bytes((finished / "config.json").read_bytes())
  (tmp_path / "result.json").write_text(content)
  problem = r"not a JSON file|broken \(has no 'task'\); restore it, or"
  with pytest.raises(RunError, match=rf"result.json: ({problem})"):
    run(tmp_path)


def test_resuming_a_broken_configuration_is_one_clear_line(run, tmp_path):
  workdir = run(tmp_path / "run", stop_at=1)
  (workdir / "config.json").write_text("{")
  with pytest.raises(RunError, match=r"config.json: not a JSON file"):
    run(workdir)


def test_arrays_change_from_checkpoint_to_checkpoint(saved, finished):
  with pytest.raises(AssertionError):
    chex.assert_trees_all_equal(saved(finished, 4)["arrays"], saved(finished, 8)["arrays"])
