"""Several processes on this machine, started with one command."""

import pathlib
import signal
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
TELL = """
import os
names = ("COORDINATOR", "PROCESS_COUNT", "PROCESS_INDEX")
print(*(os.environ["TMEM_" + name] for name in names), os.environ.get("XLA_FLAGS"))
"""
FAIL = """
import os, sys, time
if os.environ["TMEM_PROCESS_INDEX"] == "1":
  sys.exit("no luck")
time.sleep(100)
"""
WAIT = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
print("waiting")
time.sleep(100)
"""


def launch(*arguments):
  return subprocess.Popen(
    [sys.executable, "launch/local_processes.py", *arguments],
    cwd=ROOT,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )


def test_each_process_is_told_who_it_is():
  out, err = launch("3", "--devices_per_process=2", "--", sys.executable, "-c", TELL).communicate()
  lines = [line.split() for line in sorted(out.splitlines())]
  assert [line[0] for line in lines] == ["[0]", "[1]", "[2]"]
  assert len({line[1] for line in lines}) == 1
  assert [line[2:4] for line in lines] == [["3", "0"], ["3", "1"], ["3", "2"]]
  assert all(line[-1] == "--xla_force_host_platform_device_count=2" for line in lines)
  assert err == ""


def test_an_error_of_one_ends_the_others():
  process = launch("2", "--end_seconds=1", "--", sys.executable, "-c", FAIL)
  _, err = process.communicate(timeout=60)
  assert process.returncode == 1
  assert err == "[1] no luck\n"


def test_a_process_that_is_killed_is_named():
  kill = FAIL.replace('sys.exit("no luck")', "os.kill(os.getpid(), 9)")
  process = launch("2", "--end_seconds=1", "--", sys.executable, "-c", kill)
  _, err = process.communicate(timeout=60)
  assert process.returncode == 137
  assert err == "process 1 was ended by SIGKILL\n"


def test_signals_are_passed_on():
  process = launch("2", "--", sys.executable, "-c", WAIT)
  for _ in range(2):
    assert process.stdout.readline().endswith("waiting\n")
  process.send_signal(signal.SIGTERM)
  process.communicate(timeout=60)
  assert process.returncode == 143


def test_a_command_that_does_not_exist_is_named():
  process = launch("2", "--", "no_such_command")
  _, err = process.communicate()
  assert process.returncode == 127
  assert err == "error: no_such_command: No such file or directory\n"
