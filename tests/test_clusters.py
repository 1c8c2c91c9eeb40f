"""The scripts for clusters, run with stand-ins for gcloud and Slurm that record their calls."""

import os
import pathlib
import re
import shutil
import signal
import subprocess
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
RECORD = """#!/usr/bin/env bash
line="${0##*/} $*"
echo "${line//"$FAKE_ROOT"/ROOT}" >>"$CALLS"
"""
# Says what $STATES lists of the slice, line by line; trainings end with the statuses of $STATUSES,
# "wait" is one that goes on until it is stopped.
GCLOUD = r"""
next() { local line; line=$(head -n 1 "$1"); sed -i.old 1d "$1"; echo "$line"; }
case "$*" in
  *" describe "*) state=$(next "$STATES"); [ -z "$state" ] || echo "$state" ;;
  *"tpu_worker.sh stop"*) touch "$STATUSES.stopped" ;;
  *"tpu_worker.sh train"*)
    status=$(next "$STATUSES")
    if [ "$status" = wait ]; then
      until [ -e "$STATUSES.stopped" ]; do sleep 0.02; done
      status=143
    fi
    exit "${status:-0}" ;;
esac
"""
SRUN = r"""
[ "$1" = --kill-on-bad-exit=1 ] || exit 9
shift
status=0 children=()
for ((i = 0; i < SLURM_NTASKS; i++)); do SLURM_PROCID=$i "$@" & children+=($!); done
echo "${children[@]}" >"$PROCESSES"
for child in "${children[@]}"; do wait "$child" || status=$?; done
exit "$status"
"""
SCONTROL = """
case "$*" in "show hostnames node[7-8]") printf 'node7\\nnode8\\n' ;; esac
"""
SCANCEL = """
read -r -a processes <"$PROCESSES"
kill -TERM "${processes[@]}"
"""
# A Python that records its process's number; it makes environments with a copy of itself.
PYTHON = r"""
case "$*" in
  "-c "*) echo 3.12.4 ;;
  "-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
  "-m train."*)
    echo "$TMEM_CLUSTER$TMEM_COORDINATOR $TMEM_PROCESS_INDEX of $TMEM_PROCESS_COUNT" >>"$CALLS"
    if [ -n "${HANGS:-}" ]; then
      trap 'exit 143' TERM
      while true; do sleep 0.02; done
    fi
    exit "${STATUS:-0}" ;;
esac
"""


class Cluster:
  """A checkout beside stand-ins for the commands of a cluster."""

  def __init__(self, path):
    self.path, self.root = path, path / "checkout"
    shutil.copytree(ROOT / "launch", self.root / "launch")
    shutil.copy(ROOT / "requirements.txt", self.root)
    commands = {
      "gcloud": GCLOUD,
      "srun": SRUN,
      "scontrol": SCONTROL,
      "scancel": SCANCEL,
      "python3": PYTHON,
    }
    (path / "bin").mkdir()
    for name, content in commands.items():
      (path / "bin" / name).write_text(RECORD + content)
      (path / "bin" / name).chmod(0o755)
    git = ["git", "-C", str(self.root), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "all"]):
      subprocess.run([*git, *command], check=True)

  def start(self, script, *arguments, states=(), statuses=(), **environment):
    for name, lines in {"calls": (), "states": states, "statuses": statuses}.items():
      (self.path / name).write_text("".join(f"{line}\n" for line in lines))
    return subprocess.Popen(
      ["bash", str(self.root / "launch" / script), *arguments],
      cwd=self.path,
      env={
        "PATH": f"{self.path / 'bin'}:{os.environ['PATH']}",
        "HOME": str(self.path),
        "FAKE_ROOT": str(self.root),
        "CALLS": str(self.path / "calls"),
        "STATES": str(self.path / "states"),
        "STATUSES": str(self.path / "statuses"),
        "PROCESSES": str(self.path / "processes"),
        "RETRY_SECONDS": "0",
        **environment,
      },
      stdin=subprocess.DEVNULL,
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
    )

  def run(self, *arguments, **more):
    with self.start(*arguments, **more) as process:
      output, errors = process.communicate(timeout=60)
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)

  def calls(self):
    return (self.path / "calls").read_text().splitlines()

  def wait_for(self, text, count=1):
    deadline = time.monotonic() + 60
    while "\n".join(self.calls()).count(text) < count:
      assert time.monotonic() < deadline, self.calls()
      time.sleep(0.02)


@pytest.fixture
def cluster(tmp_path):
  return Cluster(tmp_path)


SLICE = ("--tpu=pod", "--zone=here")
NEW = ("--type=v5litepod-16", "--runtime=v2")
TASK = ("language", "--workdir=/shared/a b", "--steps=9")


def pod_calls(cluster):
  """What was done with the slice: the commands, and what the workers ran."""
  found = []
  for call in cluster.calls():
    assert call.startswith("gcloud compute tpus tpu-vm "), call
    assert call.endswith(" --zone=here --quiet")
    words = call.removeprefix("gcloud compute tpus tpu-vm ").removesuffix(" --zone=here --quiet")
    words = words.replace("pod --worker=all --command=", "").replace("cd tensor-memory && ", "")
    found.append(re.sub(r"^scp \S+/", "scp ", words))  # from a temporary folder
  return found


DESCRIBE = "describe pod --format=value(state)"
CREATE = "create pod --accelerator-type=v5litepod-16 --version=v2"
SEND = [
  "scp tensor-memory.tar.gz pod:tensor-memory.tar.gz --worker=all",
  "ssh mkdir -p tensor-memory && tar -xzf tensor-memory.tar.gz -C tensor-memory",
]
PREPARE = "ssh env PYTHON=python3 bash launch/tpu_worker.sh prepare"
TRAIN = "ssh bash launch/tpu_worker.sh train language '--workdir=/shared/a b' --steps=9"
STOP = "ssh bash launch/tpu_worker.sh stop"
START = [*SEND, PREPARE, TRAIN]


def test_a_slice_that_is_there_is_used(cluster):
  process = cluster.run("tpu_pod.sh", *SLICE, *TASK, states=["READY"])
  assert process.returncode == 0, process.stderr
  assert pod_calls(cluster) == [DESCRIBE, *START]
  cluster.run("tpu_pod.sh", *SLICE, "--setup=mount it", *TASK, states=["READY"])
  assert pod_calls(cluster)[3] == f"{PREPARE} 'mount it'"


def test_a_slice_that_is_not_there_is_made_if_it_is_known_how(cluster):
  process = cluster.run("tpu_pod.sh", *SLICE, *NEW, "--spot", *TASK, states=[""])
  assert process.returncode == 0, process.stderr
  assert pod_calls(cluster) == [DESCRIBE, f"{CREATE} --spot", *START]
  process = cluster.run("tpu_pod.sh", *SLICE, *TASK, states=[""])
  assert process.returncode == 1
  assert process.stderr.startswith("error: slice pod in here is not there")
  assert len(process.stderr.splitlines()) == 1


def test_a_slice_that_was_taken_away_is_made_anew_and_the_same_command_runs(cluster):
  states = ["READY", "PREEMPTED", "PREEMPTED", "STOPPED"]
  process = cluster.run("tpu_pod.sh", *SLICE, *NEW, *TASK, states=states, statuses=[1, 255, 0])
  assert process.returncode == 0, process.stderr
  assert pod_calls(cluster) == [
    *[DESCRIBE, *START, DESCRIBE],
    *[DESCRIBE, "delete pod", CREATE, *START],
    *[DESCRIBE, "start pod", *START],
  ]


def test_a_training_that_failed_is_not_started_again(cluster):
  process = cluster.run("tpu_pod.sh", *SLICE, *TASK, states=["READY", "READY"], statuses=[2])
  assert process.returncode == 2
  assert pod_calls(cluster) == [DESCRIBE, *START, DESCRIBE]
  more = {"states": ["READY"] * 3, "statuses": [143] * 3}
  process = cluster.run("tpu_pod.sh", *SLICE, "--restarts=2", *TASK, **more)
  assert process.returncode == 1
  assert process.stderr.splitlines()[-1] == "error: gave up after 2 restarts"
  assert pod_calls(cluster).count(TRAIN) == 3


def test_workers_are_told_to_end_and_waited_for(cluster):
  process = cluster.start("tpu_pod.sh", *SLICE, *TASK, states=["READY"], statuses=["wait"])
  cluster.wait_for("tpu_worker.sh train")
  process.send_signal(signal.SIGTERM)
  _, errors = process.communicate(timeout=60)
  assert (process.returncode, errors) == (143, "stopping: the workers save first\n")
  assert pod_calls(cluster) == [DESCRIBE, *START, STOP]


def test_what_would_be_done_is_printed_and_not_done(cluster):
  process = cluster.run("tpu_pod.sh", *SLICE, *NEW, "--project=mine", "--dry_run", *TASK)
  assert (process.returncode, cluster.calls()) == (0, [])
  lines = process.stdout.splitlines()
  assert len(lines) == 5
  shown = "gcloud compute tpus tpu-vm create pod --accelerator-type=v5litepod-16 --version=v2"
  assert lines[0] == f"{shown} --zone=here --project=mine --quiet"
  process = cluster.run("slurm.sbatch", "--dry_run", *TASK)
  assert (process.returncode, cluster.calls()) == (0, [])
  assert process.stdout.startswith("TMEM_COORDINATOR=FIRST_NODE:PORT TMEM_PROCESS_COUNT=NODES srun")
  assert process.stdout.endswith("train.language '--workdir=/shared/a b' --steps=9\n")


@pytest.mark.parametrize(
  ("script", "arguments", "message"),
  [
    ("tpu_pod.sh", ["--zone=here", *TASK], "--tpu=NAME is missing"),
    ("tpu_pod.sh", ["--tpu=pod", *TASK], "--zone=ZONE is missing"),
    ("tpu_pod.sh", [*SLICE, "--type=v5litepod-16", *TASK], "--type and --runtime go together"),
    ("tpu_pod.sh", [*SLICE, "--restarts=x", *TASK], "--restarts=x: expected a number"),
    ("tpu_pod.sh", [*SLICE, "--steps=9", *TASK], "--steps=9: no option of this script"),
    ("tpu_pod.sh", SLICE, "the task is missing"),
    ("slurm.sbatch", ["sound", "--workdir=a"], "no task is named sound"),
    ("slurm.sbatch", ["video"], "--workdir=DIR is missing"),
  ],
)
def test_what_is_missing_is_one_clear_line(cluster, script, arguments, message):
  process = cluster.run(script, *arguments)
  assert (process.returncode, cluster.calls()) == (2, [])
  assert process.stderr.startswith(f"error: {message}")
  assert len(process.stderr.splitlines()) == 1


def test_a_worker_trains_as_one_of_a_pod_and_ends_when_told(cluster):
  def worker(*arguments, **more):
    return cluster.run("tpu_worker.sh", *arguments, **more)

  assert worker("prepare", "touch mounted").returncode == 0
  assert (cluster.root / "mounted").exists()
  assert "jax[tpu]" in cluster.calls()[-1]
  process = worker("train", *TASK, STATUS="7")
  assert process.returncode == 7
  assert cluster.calls() == [
    "python -m train.language --workdir=/shared/a b --steps=9",
    "auto  of ",
  ]
  assert worker("stop").returncode == 0
  process = cluster.start("tpu_worker.sh", "train", *TASK, HANGS="1")
  cluster.wait_for("auto")
  assert worker("stop").returncode == 0
  assert process.wait(timeout=60) == 143
  assert worker("leave").returncode == 2


JOB = {"SLURM_JOB_ID": "120034", "SLURM_NTASKS": "2", "SLURM_JOB_NODELIST": "node[7-8]"}


def numbered(cluster):
  return sorted(call for call in cluster.calls() if " of " in call)


def test_a_job_starts_a_process_on_each_node(cluster):
  process = cluster.run("slurm.sbatch", *TASK, **JOB, JAX_EXTRA="cuda13")
  assert process.returncode == 0, process.stderr
  assert numbered(cluster) == ["node7:20034 0 of 2", "node7:20034 1 of 2"]
  calls = [call for call in cluster.calls() if call.startswith("python ")]
  assert calls[-3].endswith("jax[cuda13]")
  assert calls[-1] == "python -m train.language --workdir=/shared/a b --steps=9"
  assert cluster.run("slurm.sbatch", *TASK, **JOB, STATUS="2").returncode == 2
  assert not any("requeue" in call for call in cluster.calls())
  for name in JOB:
    less = {other: value for other, value in JOB.items() if other != name}
    process = cluster.run("slurm.sbatch", *TASK, **less)
    assert process.returncode == 1
    assert process.stderr.startswith(f"error: {name} is not set, as it is in a job")


def test_a_job_whose_time_is_nearly_over_saves_and_is_put_back(cluster):
  process = cluster.start("slurm.sbatch", *TASK, **JOB, HANGS="1")
  cluster.wait_for(" of 2", count=2)
  process.send_signal(signal.SIGUSR1)
  _, errors = process.communicate(timeout=60)
  assert process.returncode == 143, errors
  assert cluster.calls()[-2:] == ["scancel --signal=TERM 120034", "scontrol requeue 120034"]


def test_a_job_that_is_cancelled_waits_for_its_processes_and_is_not_put_back(cluster):
  process = cluster.start("slurm.sbatch", *TASK, **JOB, HANGS="1")
  cluster.wait_for(" of 2", count=2)
  process.send_signal(signal.SIGTERM)
  with pytest.raises(subprocess.TimeoutExpired):
    process.wait(timeout=0.3)
  for pid in (cluster.path / "processes").read_text().split():
    os.kill(int(pid), signal.SIGTERM)
  process.communicate(timeout=60)
  assert process.returncode == 143
  assert not any("requeue" in call for call in cluster.calls())


def test_the_options_of_a_job_let_it_save_and_come_back():
  lines = (ROOT / "launch" / "slurm.sbatch").read_text().splitlines()
  options = [line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH ")]
  assert {"--requeue", "--open-mode=append", "--ntasks-per-node=1"} <= set(options)
  assert "--signal=B:USR1@180" in options
  first_command = next(i for i, line in enumerate(lines) if line and not line.startswith("#"))
  last_option = max(i for i, line in enumerate(lines) if line.startswith("#SBATCH"))
  assert last_option < first_command  # Slurm reads no further
