"""Several processes that share the cells of a suite."""

import contextlib
import fcntl
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from train.errors import Interrupted
from train.interrupts import Interrupts

POLL_SECONDS = 0.5


@contextlib.contextmanager
def claimed(folder: Path) -> Iterator[bool]:
  """Claims a folder for this process while the context lasts.

  Args:
    folder: the folder; it is made if it is not there.

  Yields:
    Whether no other process has claimed it. A process that dies gives up what it claimed.
  """
  folder.mkdir(parents=True, exist_ok=True)
  with (folder / ".claim").open("w") as file:
    try:
      fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
      yield False
    else:
      yield True


def run_workers(module: str, options: Sequence[str], count: int) -> None:
  """Runs a command in several processes at a time, each on its share of the CPU cores.

  What they print appears line by line. A process that ends with an error says so itself.

  Args:
    module: the module to run.
    options: its command line.
    count: number of processes.

  Raises:
    Interrupted: on SIGTERM or Ctrl-C, when all processes have ended.
  """
  cores = _cores()
  with Interrupts() as interrupts:
    workers = [_start(module, options, cores[index::count]) for index in range(count)]
    pumps = [threading.Thread(target=_pump, args=(worker,)) for worker in workers]
    try:
      for pump in pumps:
        pump.start()
      asked = False
      while running := [worker for worker in workers if worker.poll() is None]:
        if interrupts.pending() and not asked:
          asked = True
          for worker in running:
            worker.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
          running[0].wait(POLL_SECONDS)
    finally:
      for worker in workers:
        worker.terminate()
    for pump in pumps:
      pump.join()
    if interrupts.pending():
      message = "stopped; the same command goes on from here"
      raise Interrupted(message, interrupts.signum)


def _start(module: str, options: Sequence[str], cores: Sequence[int]) -> subprocess.Popen:
  """A process in a session of its own: Ctrl-C reaches it only through us."""
  return subprocess.Popen(
    _on_cores([sys.executable, "-m", module, *options], cores),
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
    errors="replace",
    start_new_session=True,
    env={**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"},  # they share an accelerator
  )


def _pump(worker: subprocess.Popen) -> None:
  with worker.stdout as lines:
    for line in lines:
      print(line, end="", flush=True)


def _cores() -> list[int]:
  if hasattr(os, "sched_getaffinity"):
    return sorted(os.sched_getaffinity(0))
  return []


def _on_cores(command: list[str], cores: Sequence[int]) -> list[str]:
  """The command, kept to some cores where the system can: libraries then start as many threads."""
  if not cores:
    return command
  keep = (
    f"import os, sys; os.sched_setaffinity(0, {set(cores)}); os.execv(sys.argv[1], sys.argv[1:])"
  )
  return [sys.executable, "-c", keep, *command]
