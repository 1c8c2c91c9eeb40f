"""Several processes on loopback train as one does, and stop and end as one."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import jax
import numpy as np
import pytest
from flax import nnx

from tmem import interop
from train import processes, rendezvous
from train.checkpoint import Checkpoints
from train.errors import FlagError, RunError, ToldElsewhere
from train.optim import make_optimizer
from train.rendezvous import Place
from train.sharding import batch_sharding, make_mesh
from train.state import make_setup

TRIPLE = ("TMEM_COORDINATOR", "TMEM_PROCESS_COUNT", "TMEM_PROCESS_INDEX")
TWO_DEVICES = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=2"
LONG = {"steps": 400, "checkpoint_every": 1000}


def free_port():
  with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    return probe.getsockname()[1]


@pytest.fixture(scope="module")
def together(start):
  """Starts a module as processes of one run, each with its own arguments."""

  def call(module, *arguments, **more):
    contract = {"TMEM_COORDINATOR": f"127.0.0.1:{free_port()}", "TMEM_LOST_SECONDS": "4"}
    contract["TMEM_PROCESS_COUNT"] = str(len(arguments))
    return [
      start(module, *own, **contract, TMEM_PROCESS_INDEX=str(index), **more)
      for index, own in enumerate(arguments)
    ]

  return call


def ends(started):
  """Exit status, output and errors of each process."""
  found = []
  for process in started:
    out, err = process.communicate(timeout=240)
    found.append((process.returncode, out, err))
  return found


def wait_for_line(process, beginning):
  while not (line := process.stdout.readline()).startswith(beginning):
    assert line, process.stderr.read()


def near(records, expected):
  assert [r.keys() for r in records] == [r.keys() for r in expected]
  for one, other in zip(records, expected, strict=True):
    for name, value in one.items():
      np.testing.assert_allclose(value, other[name], rtol=1e-4, err_msg=f"{name} of {one['step']}")


# Joins the others and waits.
WAITING = """
import time
from train import cli

def main(argv):
  print("joined", flush=True)
  time.sleep(200)

cli.run(main, can_share=True)
"""


@pytest.fixture(scope="module")
def failures(together, options, tmp_path_factory):
  """What becomes of three runs of two processes that cannot go on."""
  folder = tmp_path_factory.mktemp("program")
  (folder / "wait_for_the_end.py").write_text(WAITING)
  workdir = folder / "run"
  unequal = [options(workdir), options(workdir, learning_rate=0.5)]
  runs = {"unequal": together("train.language", *unequal)}
  for victim in (0, 1):
    runs[victim] = together("wait_for_the_end", [], [], PYTHONPATH=str(folder))
  for victim in (0, 1):
    wait_for_line(runs[victim][0], "joined")
    runs[victim][victim].kill()
  return {name: ends(run) for name, run in runs.items()}


def test_different_flags_are_named_by_one_process(failures):
  (status, _, err), (other_status, _, silence) = failures["unequal"]
  assert (status, other_status) == (2, 2)
  assert err.splitlines() == [
    "error: --learning_rate: process 0 has 0.001, process 1 has 0.5; start all processes with the"
    " same command"
  ]
  assert silence == ""


@pytest.mark.parametrize("victim", [0, 1])
def test_a_process_that_is_killed_ends_the_others_with_a_line(failures, victim):
  found = failures[victim]
  assert found[victim][0] == -signal.SIGKILL
  status, _, err = found[1 - victim]
  assert status == 1
  (line,) = err.splitlines()
  assert line.startswith(f"error: process {victim} of 2")
  assert "has ended without a word" in line


@pytest.fixture(scope="module")
def stopped(together, options, tmp_path_factory):
  """A run of two processes with two devices each; the second of them got SIGTERM."""
  workdir = tmp_path_factory.mktemp("stopped") / "run"
  arguments = options(workdir, **LONG)
  started = together("train.language", arguments, arguments, XLA_FLAGS=TWO_DEVICES)
  wait_for_line(started[0], "step 2/")
  started[1].send_signal(signal.SIGTERM)
  return workdir, ends(started)


def test_a_signal_to_one_process_stops_all_at_one_step(stopped):
  workdir, ((status, _, err), (other_status, out, silence)) = stopped
  assert (status, other_status) == (143, 143), err + silence
  (step,) = (int(path.name) for path in (workdir / "checkpoints").glob("0*[!0]"))
  assert err.splitlines() == [
    f"SIGTERM: saved at step {step} of 400; to continue: python -m train.language"
    f" --workdir={workdir}"
  ]
  assert out == silence == ""


def test_one_process_goes_on_where_two_stopped(stopped, run, records, tmp_path):
  workdir, _ = stopped
  step = max(int(path.name) for path in (workdir / "checkpoints").iterdir())
  run(workdir, **LONG, stop_at=step + 2)
  alone = run(tmp_path / "alone", **LONG, stop_at=step + 2)
  near(records(workdir), records(alone))


@pytest.fixture(scope="module")
def four(run, options, compilation_cache, tmp_path_factory):
  """A run that one process began and four finish."""
  workdir = run(tmp_path_factory.mktemp("four") / "run", stop_at=3)
  command = [sys.executable, "-m", "train.language", *options(workdir)]
  launch = [sys.executable, "launch/local_processes.py", "4", "--devices_per_process=1", "--"]
  environment = {**os.environ, "JAX_COMPILATION_CACHE_DIR": compilation_cache}
  found = subprocess.run(
    [*launch, *command], env=environment, capture_output=True, text=True, timeout=300
  )
  assert found.returncode == 0, found.stderr
  return workdir, found.stdout


def test_four_processes_equal_one(four, finished, records):
  workdir, out = four
  near(records(workdir), records(finished))
  assert {line[:4] for line in out.splitlines()} == {"[0] "}
  assert f"[0] Resuming {workdir} at step 3." in out
  ours, expected = (json.loads((w / "result.json").read_text()) for w in (workdir, finished))
  for name in ("test_loss", "valid_perplexity", "test_tokens", "best_step"):
    np.testing.assert_allclose(ours[name], expected[name], rtol=1e-4, err_msg=name)


def test_what_four_processes_saved_is_what_one_restores(four, task):
  """The model was exported from memory at the same step."""
  workdir, _ = four
  exported = interop.flat_params(interop.load_model(workdir / "model"))
  made, config = task()
  mesh = make_mesh((1, 1, 1), 1)
  setup = make_setup(made.build, make_optimizer(config.optim), mesh, 0)
  params, step = Checkpoints(workdir / "checkpoints").restore_params(setup.abstract.params)
  assert step == 8
  restored = interop.flat_params(nnx.merge(setup.graphdef, params))
  assert restored.keys() == exported.keys()
  for name, value in restored.items():
    np.testing.assert_array_equal(value, exported[name], err_msg=name)


def test_without_the_variables_there_is_one_process():
  assert processes.place({}) is None
  assert processes.peers().first_says(3) == 3
  assert processes.peers().first_problem(None) is None
  processes.peers().check_same({"a": 1}, "", RunError)


def test_the_place_to_meet_is_read_from_the_environment():
  values = dict(zip(TRIPLE, ("[::1]:80", "4", "3"), strict=True))
  place = processes.place(values | {"TMEM_CONNECT_SECONDS": "7.5"})
  assert place == Place("::1", 80, 4, 3, 7.5, "TMEM_COORDINATOR=[::1]:80")


@pytest.mark.parametrize(
  ("values", "message"),
  [
    (("host:1", "2", None), "^TMEM_PROCESS_INDEX: missing, but TMEM_COORDINATOR is set"),
    ((None, None, "0"), "^TMEM_COORDINATOR: missing, but TMEM_PROCESS_INDEX is set"),
    (("host", "2", "0"), "^TMEM_COORDINATOR=host: expected HOST:PORT"),
    (("host:65536", "2", "0"), "expected HOST:PORT, the port from 1 to 65535"),
    (("host:1", "two", "0"), "^TMEM_PROCESS_COUNT=two: expected an integer of at least 1"),
    (("host:1", "0", "0"), "^TMEM_PROCESS_COUNT=0: expected an integer of at least 1"),
    (("host:1", "2", "2"), r"^TMEM_PROCESS_INDEX=2: expected 0 to 1 \(TMEM_PROCESS_COUNT=2\)"),
    (("host:1", "2", "-1"), "^TMEM_PROCESS_INDEX=-1: expected an integer of at least 0"),
  ],
)
def test_a_wrong_variable_is_named(values, message):
  given = {name: value for name, value in zip(TRIPLE, values, strict=True) if value is not None}
  with pytest.raises(FlagError, match=message):
    processes.place(given)


@pytest.mark.parametrize(
  ("values", "message"),
  [
    ({"TMEM_CLUSTER": "mine"}, "^TMEM_CLUSTER=mine: expected auto"),
    ({"TMEM_CLUSTER": "auto"}, "^TMEM_CLUSTER=auto: jax finds no cluster"),
    ({"TMEM_CLUSTER": "auto", "TMEM_PROCESS_INDEX": "0"}, "^TMEM_CLUSTER: set, and so is"),
    ({"TMEM_CLUSTER": "auto", "TMEM_CONNECT_SECONDS": "soon"}, "^TMEM_CONNECT_SECONDS=soon: ex"),
  ],
)
def test_what_contradicts_itself_is_refused(values, message):
  with pytest.raises(FlagError, match=message):
    processes.place(values)


def test_a_command_for_one_process_refuses_several(monkeypatch):
  for name, value in zip(TRIPLE, ("host:1", "2", "0"), strict=True):
    monkeypatch.setenv(name, value)
  with pytest.raises(FlagError, match=r"^TMEM_PROCESS_COUNT=2: this command runs in one process"):
    processes.join(can_share=False)


def meeting(*places):
  """Lets processes meet, each in a thread; what each raises."""
  found = [None] * len(places)

  def attend(index):
    try:
      rendezvous.meet(places[index])
    except RunError as error:
      found[index] = error

  threads = [threading.Thread(target=attend, args=(index,)) for index in range(len(places))]
  for thread in threads:
    thread.start()
    time.sleep(0.05)
  for thread in threads:
    thread.join()
  return found


def places(*indices, count, seconds=60.0):
  port = free_port()
  return [Place("127.0.0.1", port, count, index, seconds, "HERE") for index in indices]


def test_processes_that_are_all_there_meet():
  assert meeting(*places(2, 0, 1, count=3)) == [None] * 3


def test_the_missing_are_named_by_the_first():
  first, second = meeting(*places(0, 2, count=4, seconds=1.0))
  assert str(first) == (
    "HERE: after 1 seconds (TMEM_CONNECT_SECONDS) 2 of 4 processes are missing: 1, 3"
  )
  assert isinstance(second, ToldElsewhere)


def test_two_with_one_number_are_named():
  first, *others = meeting(*places(0, 1, 1, count=3))
  assert str(first) == "TMEM_PROCESS_INDEX=1: two processes have it; each needs its own"
  assert all(isinstance(other, ToldElsewhere) for other in others)


def test_another_idea_of_how_many_there_are_is_named():
  here, there = places(0, 1, count=2)
  first, second = meeting(here, there._replace(count=3))
  assert str(first) == "TMEM_PROCESS_COUNT: process 0 has 2, process 1 has 3"
  assert isinstance(second, ToldElsewhere)


def test_a_coordinator_that_cannot_be_reached_is_named():
  (error,) = meeting(*places(1, count=2, seconds=1.0))
  assert str(error) == (
    "HERE: process 1 cannot reach process 0 there after 1 seconds (TMEM_CONNECT_SECONDS):"
    " Connection refused"
  )


def test_a_port_that_is_taken_is_named():
  (place,) = places(0, count=2)
  with socket.create_server(("127.0.0.1", place.port)):
    (error,) = meeting(place)
  assert str(error).startswith("HERE: process 0 cannot listen there (Address already in use)")


def test_one_process_has_all_rows_of_a_batch():
  processes.check_share(batch_sharding(make_mesh((1, 1, 1), 4)), 4)


def test_processes_need_rows_of_their_own(monkeypatch):
  monkeypatch.setattr(jax, "process_count", lambda: 2)
  with pytest.raises(FlagError, match="--mesh: uses devices of 1 of 2 processes"):
    processes.check_share(batch_sharding(make_mesh((1, 1, 1), 4)), 4)
