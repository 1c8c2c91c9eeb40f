"""The scripts, run with a stand-in for Python that records how it is called."""

import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
SCRIPTS = [*sorted(ROOT.glob("launch/*.sh")), *ROOT.glob("launch/*.sbatch"), ROOT / ".ci" / "run"]

# Answers the question for its version, makes "environments" that hold a copy of itself, fails or
# hangs on request, and appends every other call to $CALLS, one line each, an underscore for each
# space within an argument.
STAND_IN = """#!/usr/bin/env bash
case "$*" in
  "-c "*) echo "${FAKE_VERSION:-3.12.4}"; exit ;;
  "-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" && cp "$0" "$3/bin/shellcheck" ;;
esac
set -- "${@//"$FAKE_ROOT"/ROOT}"
echo "${@// /_}" >>"$CALLS"
case "$*" in *${FAIL_ON:-nothing fails}*) exit "${FAIL_STATUS:-1}" ;; esac
case "$*" in *${HANG_ON:-nothing hangs}*)
  trap 'echo terminated >>"$CALLS"; exit 143' TERM
  echo waiting >>"$CALLS"
  while true; do sleep 0.02; done ;;
esac
"""

MAKE = "-m venv ROOT/.venv"
INSTALL = "-m pip install --quiet --disable-pip-version-check --no-input -r ROOT/requirements.txt"
PYTEST = "-m pytest -n logical --maxprocesses 4 --dist loadfile"


def trainings(base, *flags):
  command = "-m train.language --preset=quickstart"
  return [
    " ".join([command, f"--method={method}", f"--workdir={base}/{method}", *flags])
    for method in ("local", "tensor_local")
  ]


def aftermath(base):
  return [
    f"-m train.report --workdirs={base}/local,{base}/tensor_local --output={base}",
    f"-m train.language --mode=generate --workdir={base}/tensor_local",
    "-m train.diagnostics --task=coordinate_binding --methods=base,tensor --attention_window=4"
    " --curriculum=5:200,10:300 --tested=5,10 --noise=0.05 --seeds=1"
    f" --workdir={base}/binding",
  ]


class Checkout:
  """A copy of the scripts beside a stand-in for Python."""

  def __init__(self, path):
    self.root = path / "checkout"
    self.calls_file = path / "calls"
    self.elsewhere = path / "elsewhere"
    self.elsewhere.mkdir()
    for name in ("launch", ".ci"):
      shutil.copytree(ROOT / name, self.root / name)
    for name in ("requirements.txt", "requirements-dev.txt"):
      shutil.copy(ROOT / name, self.root)
    self.python = path / "python3"
    self.python.write_text(STAND_IN)
    self.python.chmod(0o755)

  def start(self, script, *arguments, **environment):
    """Starts a script with nothing recorded so far."""
    self.calls_file.write_text("")
    return subprocess.Popen(
      ["bash", str(self.root / "launch" / script), *arguments],
      cwd=self.elsewhere,
      env={
        "PATH": f"{self.python.parent}:{os.environ['PATH']}",
        "HOME": str(self.elsewhere),
        "CALLS": str(self.calls_file),
        "FAKE_ROOT": str(self.root),
        **environment,
      },
      stdin=subprocess.DEVNULL,
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
    )

  def calls(self):
    return self.calls_file.read_text().splitlines()

  def run(self, script, *arguments, **environment):
    """Returns the finished process and the calls it made."""
    with self.start(script, *arguments, **environment) as process:
      output, errors = process.communicate(timeout=60)
    finished = subprocess.CompletedProcess(process.args, process.returncode, output, errors)
    return finished, self.calls()


@pytest.fixture
def checkout(tmp_path):
  return Checkout(tmp_path)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_have_none_of_the_faults_that_shellcheck_knows(script):
  shellcheck = pathlib.Path(sys.executable).with_name("shellcheck")
  checked = subprocess.run([str(shellcheck), str(script)], cwd=ROOT, capture_output=True, text=True)
  assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize("flag", ["--help", "-h"])
@pytest.mark.parametrize("script", ["quickstart.sh", "compare.sh", "test.sh"])
def test_help_explains_and_does_nothing(checkout, script, flag):
  process, calls = checkout.run(script, flag)
  assert process.returncode == 0
  assert process.stdout.startswith(f"Usage: bash launch/{script} [--")
  assert calls == []
  assert not (checkout.root / ".venv").exists()


def test_quickstart_installs_trains_compares_and_generates(checkout):
  process, calls = checkout.run("quickstart.sh")
  base = "ROOT/runs/quickstart"
  assert process.returncode == 0, process.stderr
  assert calls == [MAKE, INSTALL, *trainings(base), *aftermath(base)]
  assert f"Everything is in {checkout.root}/runs/quickstart" in process.stdout


def test_quickstart_passes_flags_to_both_trainings_only(checkout):
  _, calls = checkout.run(
    "quickstart.sh", "--steps=20", "--workdir=base", "--data_path=a file", "--debug"
  )
  received = ["--steps=20", "--data_path=a_file", "--debug"]
  assert calls == [MAKE, INSTALL, *trainings("base", *received), *aftermath("base")]
  _, calls = checkout.run("quickstart.sh", "--workdir", "base")
  assert calls == [*trainings("base"), *aftermath("base")]


@pytest.mark.parametrize(
  ("argument", "message"),
  [
    ("--method=base", "--method is set by this script"),
    ("--mode=eval", "--mode is set by this script"),
    ("--workdir", "--workdir needs a folder"),
    ("--workdir=", "--workdir is empty"),
  ],
)
def test_quickstart_refuses_what_it_cannot_pass_on(checkout, argument, message):
  process, calls = checkout.run("quickstart.sh", argument)
  assert (process.returncode, calls) == (2, [])
  assert process.stderr.startswith(f"error: {message}")


@pytest.mark.parametrize(
  ("failing", "made"),
  [
    ("method=local", 1),
    ("method=tensor_local", 2),
    ("train.report", 3),
    ("mode=generate", 4),
    ("train.diagnostics", 5),
  ],
)
def test_quickstart_stops_with_the_status_of_what_failed(checkout, failing, made):
  checkout.run("quickstart.sh")
  process, calls = checkout.run("quickstart.sh", FAIL_ON=failing, FAIL_STATUS="7")
  assert process.returncode == 7
  base = "ROOT/runs/quickstart"
  assert calls == [*trainings(base), *aftermath(base)][:made]


@pytest.mark.parametrize(
  ("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)], ids=["TERM", "INT"]
)
def test_quickstart_hands_signals_on_and_waits_for_the_training(checkout, number, status):
  # Whoever runs this suite in the background has it ignore SIGINT, which a shell cannot undo.
  ours = signal.signal(signal.SIGINT, signal.default_int_handler)
  process = checkout.start("quickstart.sh", HANG_ON="method=tensor_local")
  signal.signal(signal.SIGINT, ours)
  deadline = time.monotonic() + 30
  while "waiting" not in checkout.calls() and time.monotonic() < deadline:
    time.sleep(0.02)
  process.send_signal(number)
  process.communicate(timeout=30)
  assert process.returncode == status
  made = [MAKE, INSTALL, *trainings("ROOT/runs/quickstart"), "waiting", "terminated"]
  assert checkout.calls() == made


def test_comparison_trains_what_it_is_asked_for_and_reports_it(checkout):
  chosen = {"RUNS": "xl local_1"}
  process, calls = checkout.run("compare.sh", "--workdir=all", "language", "--steps=9", **chosen)
  assert process.returncode == 0, process.stderr
  command = "-m train.language --preset=cpu --protocol=stream"
  assert calls == [
    MAKE,
    INSTALL,
    f"{command} --steps=9 --method=local --seed=1 --workdir=all/local_1",
    f"{command} --steps=9 --method=xl --carry_state --workdir=all/xl",
    "-m train.report --workdirs=all/local_1,all/xl --output=all",
  ]
  _, calls = checkout.run("compare.sh", "language")
  assert len([call for call in calls if "train.language" in call]) > 12
  process, calls = checkout.run("compare.sh", "language", FAIL_ON="method=local", FAIL_STATUS="7")
  assert (process.returncode, len(calls)) == (7, 1)
  refused = (
    (["language"], {"RUNS": "xl none"}),
    (["language", "--seed=3"], {}),
    (["language", "--preset=paper"], {}),
    (["image", "video"], {}),
    (["sound"], {}),
    ([], {}),
  )
  for arguments, environment in refused:
    process, calls = checkout.run("compare.sh", *arguments, **environment)
    assert (process.returncode, calls) == (2, [])
    assert process.stderr.startswith("error: ")


def test_methods_of_images_and_videos_are_compared_too(checkout):
  chosen = {"RUNS": "joint_0 tensor_2 tensor_whole_1"}
  _, calls = checkout.run("compare.sh", "video", "--dataset=ucf101", "--workdir=all", **chosen)
  command = "-m train.video --preset=cpu --dataset=ucf101 --method"
  assert calls[2:] == [
    f"{command}=joint --seed=0 --workdir=all/joint_0",
    f"{command}=tensor --seed=2 --workdir=all/tensor_2",
    f"{command}=tensor --seed=1 --blank_frames=0 --workdir=all/tensor_whole_1",
    "-m train.report --workdirs=all/joint_0,all/tensor_2,all/tensor_whole_1 --output=all",
  ]
  _, calls = checkout.run("compare.sh", "image")
  trained = [call for call in calls if "train.image" in call]
  assert len(trained) == 15
  assert "--workdir=ROOT/runs/compare_image/base_0" in trained[0]


def test_environment_follows_the_requirement_files(checkout):
  requirements = checkout.root / "requirements.txt"
  assert checkout.run("quickstart.sh")[1][:2] == [MAKE, INSTALL]
  assert INSTALL not in checkout.run("quickstart.sh")[1]
  requirements.write_text(requirements.read_text() + "einops\n")
  _, calls = checkout.run("quickstart.sh")
  assert (calls[0], MAKE in calls) == (INSTALL, False)
  assert INSTALL not in checkout.run("quickstart.sh")[1]


def test_interrupted_installation_is_made_anew(checkout):
  process, calls = checkout.run("quickstart.sh", FAIL_ON="pip install")
  assert (process.returncode, calls) == (1, [MAKE, INSTALL])
  assert "error: pip could not install requirements.txt" in process.stderr
  leftover = checkout.root / ".venv" / "half"
  leftover.write_text("")
  assert checkout.run("quickstart.sh")[1][:2] == [MAKE, INSTALL]
  assert not leftover.exists()


def test_another_python_makes_the_environment_anew(checkout):
  checkout.run("quickstart.sh", FAKE_VERSION="3.11.7")
  other = checkout.python.with_name("other")
  other.write_text(STAND_IN.replace("3.12.4", "3.13.0"))
  other.chmod(0o755)
  assert MAKE in checkout.run("quickstart.sh", PYTHON=str(other))[1]
  assert MAKE not in checkout.run("quickstart.sh", PYTHON=str(other))[1]
  assert MAKE not in checkout.run("quickstart.sh")[1]


def test_environment_of_the_user_is_installed_into_and_kept(checkout):
  own = checkout.root / ".venv" / "bin" / "python"
  own.parent.mkdir(parents=True)
  shutil.copy(checkout.python, own)
  for _ in range(2):
    assert checkout.run("quickstart.sh")[1][0] == INSTALL
  own.write_text(STAND_IN.replace("3.12.4", "3.10.2"))
  process, calls = checkout.run("quickstart.sh")
  assert (process.returncode, calls, own.exists()) == (1, [], True)
  assert "move it away" in process.stderr


@pytest.mark.parametrize("version", ["3.10.14", "3.14.0", "2.7.18"])
def test_unsupported_python_is_one_clear_line(checkout, version):
  process, calls = checkout.run("test.sh", FAKE_VERSION=version)
  assert (process.returncode, calls) == (1, [])
  assert process.stderr == (
    f"error: 'python3' is Python {version}; 3.11, 3.12 or 3.13 is needed;"
    " name another with PYTHON=/path/to/python\n"
  )


def test_tests_pass_their_arguments_to_pytest_after_the_lint(checkout):
  process, calls = checkout.run("test.sh", "-k", "a or b", "tests/tmem")
  assert process.returncode == 0, process.stderr
  assert calls == [
    "-m venv .venv",
    f"{INSTALL} -r ROOT/requirements-dev.txt",
    "-m ruff check --extend-exclude .venv* .",
    "-m ruff format --check --extend-exclude .venv* .",
    f"{' '.join(str(script.relative_to(ROOT)) for script in SCRIPTS)}",
    f"{PYTEST} -k a_or_b tests/tmem",
  ]


def test_all_pythons_report_each_version(checkout):
  for minor in (11, 12, 13):
    python = checkout.python.with_name(f"python3.{minor}")
    python.write_text(STAND_IN.replace("3.12.4", f"3.{minor}.1"))
    python.chmod(0o755)
  process, calls = checkout.run("test.sh", "--all-pythons", "-x", FAIL_ON=".venv-3.12")
  assert process.returncode == 1
  assert calls.count(f"{PYTEST} -x") == 2
  summary = process.stdout.splitlines()[-3:]
  assert [line.rpartition(" in ")[0] or line.rpartition(" after ")[0] for line in summary] == [
    "Python 3.11: passed",
    "Python 3.12: FAILED with exit status 1",
    "Python 3.13: passed",
  ]
