"""Runs a command as several processes of one run, all on this machine.

  python launch/local_processes.py 2 -- python -m train.language --workdir=runs/two
  python launch/local_processes.py 2 --devices_per_process=4 -- python -m train.language ...

Each process gets the environment that `train/processes.py` describes. Lines of output begin with
the process they come from. SIGTERM and Ctrl-C are passed on: the run saves and ends, and the same
command goes on. If a process ends with an error and the others do not follow, they are ended. The
exit status is the highest of all processes; of one that a signal ended, 128 + its number.
"""

import argparse
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

POLL_SECONDS = 0.1
KILL_SECONDS = 10.0  # from SIGTERM to SIGKILL


def main() -> None:
  parser = argparse.ArgumentParser(
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
    usage="%(prog)s N [options] -- COMMAND ...",
  )
  parser.add_argument("processes", metavar="N", type=_positive, help="number of processes")
  parser.add_argument(
    "--devices_per_process",
    metavar="K",
    type=_positive,
    help="CPU devices that each process has; without it jax finds the devices, and each process"
    " has all of them",
  )
  parser.add_argument(
    "--end_seconds",
    metavar="S",
    type=_positive,
    default=60,
    help="how long after an error of one process the others are given to end (default: 60)",
  )
  parser.add_argument("command", nargs="+", metavar="COMMAND", help="what to run, behind --")
  options = parser.parse_args()
  sys.exit(
    run(options.command, options.processes, options.devices_per_process, options.end_seconds)
  )


def _positive(text: str) -> int:
  value = int(text)
  if value < 1:
    raise argparse.ArgumentTypeError(f"{text}: expected an integer of at least 1")
  return value


def run(command: Sequence[str], count: int, devices: int | None, end_seconds: float) -> int:
  """Runs a command as several processes.

  Args:
    command: the command.
    count: number of processes.
    devices: CPU devices that each has; None: as jax finds them.
    end_seconds: how long the others may go on after an error of one.

  Returns:
    The highest exit status.
  """
  address = f"127.0.0.1:{_free_port()}"
  workers: list[subprocess.Popen] = []

  def pass_on(signum, frame):
    for worker in workers:
      if worker.poll() is None:
        worker.send_signal(signum)

  for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, pass_on)
  try:
    for index in range(count):
      workers.append(_start(command, _environment(address, count, index, devices)))
  except OSError as error:
    _end(workers)
    print(f"error: {command[0]}: {error.strerror}", file=sys.stderr)
    return 127
  pumps = [
    threading.Thread(target=_pump, args=(pipe, f"[{index}] ", sink))
    for index, worker in enumerate(workers)
    for pipe, sink in ((worker.stdout, sys.stdout), (worker.stderr, sys.stderr))
  ]
  for pump in pumps:
    pump.start()
  ended = _wait(workers, end_seconds)
  for pump in pumps:
    pump.join()
  return max(_status(worker) for worker in workers if worker not in ended)


def _free_port() -> int:
  with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    return probe.getsockname()[1]


def _environment(address: str, count: int, index: int, devices: int | None) -> dict[str, str]:
  found = {
    **os.environ,
    "PYTHONUNBUFFERED": "1",
    "TMEM_COORDINATOR": address,
    "TMEM_PROCESS_COUNT": str(count),
    "TMEM_PROCESS_INDEX": str(index),
  }
  if devices is not None:
    asked = f"--xla_force_host_platform_device_count={devices}"
    found["JAX_PLATFORMS"] = "cpu"
    found["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {asked}".strip()
  return found


def _start(command: Sequence[str], environment: dict[str, str]) -> subprocess.Popen:
  """A process in a session of its own: Ctrl-C reaches it only through us."""
  return subprocess.Popen(
    command,
    env=environment,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
    errors="replace",
    start_new_session=True,
  )


def _pump(pipe, prefix: str, sink) -> None:
  with pipe:
    for line in pipe:
      sink.write(prefix + line.rstrip("\n") + "\n")
      sink.flush()


def _wait(workers: Sequence[subprocess.Popen], end_seconds: float) -> list[subprocess.Popen]:
  """Waits for all; ends those that go on long after an error of one, and returns them."""
  deadline, ended = None, []
  while any(worker.poll() is None for worker in workers):
    failed = [index for index, worker in enumerate(workers) if worker.poll()]
    if failed and deadline is None:
      deadline = time.monotonic() + end_seconds
      for index in failed:
        if workers[index].returncode < 0:
          name = signal.Signals(-workers[index].returncode).name
          print(f"process {index} was ended by {name}", file=sys.stderr, flush=True)
    if deadline is not None and time.monotonic() > deadline:
      ended = _end(workers)
    time.sleep(POLL_SECONDS)
  return ended


def _end(workers: Sequence[subprocess.Popen]) -> list[subprocess.Popen]:
  running = [worker for worker in workers if worker.poll() is None]
  for worker in running:
    worker.terminate()
  deadline = time.monotonic() + KILL_SECONDS
  for worker in running:
    try:
      worker.wait(max(deadline - time.monotonic(), 0.0))
    except subprocess.TimeoutExpired:
      worker.kill()
      worker.wait()
  return running


def _status(worker: subprocess.Popen) -> int:
  return worker.returncode if worker.returncode >= 0 else 128 - worker.returncode


if __name__ == "__main__":
  main()
