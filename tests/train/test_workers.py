"""Processes that share the cells of a suite."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from train.errors import Interrupted
from train.workers import claimed, run_workers

WORKER = """
import os, pathlib, signal, sys, time
folder = pathlib.Path(sys.argv[1])
def stop(signum, frame):
  (folder / f"stopped-{os.getpid()}").touch()
  sys.exit(128 + signum)
signal.signal(signal.SIGTERM, stop)
cores = getattr(os, "sched_getaffinity", lambda pid: [])(0)
(folder / f"started-{os.getpid()}").write_text(str(sorted(cores)))
time.sleep(float(sys.argv[2]))
"""


@pytest.fixture
def worker(tmp_path, monkeypatch):
  (tmp_path / "a_worker.py").write_text(WORKER)
  monkeypatch.setenv("PYTHONPATH", str(tmp_path))
  made = tmp_path / "made"
  made.mkdir()
  return made


def names(folder, kind):
  return sorted(folder.glob(f"{kind}-*"))


def test_workers_share_the_cores_where_they_can_be_chosen(worker):
  run_workers("a_worker", [str(worker), "0"], 2)
  shares = [eval(path.read_text()) for path in names(worker, "started")]
  cores = sorted(getattr(os, "sched_getaffinity", lambda pid: [])(0))
  expected = [cores[0::2], cores[1::2] or cores]
  assert sorted(shares) == sorted(expected)


def test_a_signal_reaches_every_worker(worker):
  def send():
    while len(names(worker, "started")) < 2:
      time.sleep(0.02)
    os.kill(os.getpid(), signal.SIGTERM)

  threading.Thread(target=send, daemon=True).start()
  with pytest.raises(Interrupted) as caught:
    run_workers("a_worker", [str(worker), "60"], 2)
  assert caught.value.exit_status == 143
  assert len(names(worker, "stopped")) == 2


def test_a_claim_is_of_one_process_and_ends_with_it(tmp_path):
  folder = tmp_path / "cell"
  with claimed(folder) as first, claimed(folder) as second:
    assert (first, second) == (True, False)
  with claimed(folder) as again:
    assert again

  code = (
    "import os, pathlib, sys; from train.workers import claimed\n"
    "with claimed(pathlib.Path(sys.argv[1])) as ours: print(ours, flush=True); sys.stdin.read()"
  )
  command = [sys.executable, "-c", code, str(folder)]
  with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
    assert other.stdout.readline() == "True\n"
    with claimed(folder) as ours:
      assert not ours
    other.kill()
    other.wait()
    with claimed(folder) as ours:
      assert ours
