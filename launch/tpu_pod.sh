#!/usr/bin/env bash
# Trains on every worker of a Cloud TPU slice, again and again until the run has ended.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

usage() {
  cat <<'EOF'
Usage: bash launch/tpu_pod.sh --tpu=NAME --zone=ZONE [OPTION...] TASK [FLAG...]

Makes the slice or uses the one there is, sends the committed code to all of its workers, installs
the requirements, and runs `python -m train.TASK FLAG...` on every worker at once, with what they
print here. A slice that has been taken away is made anew, and the run goes on where it was saved.
Ctrl-C or SIGTERM here has the workers save first; the same command resumes.

  --tpu=NAME       name of the slice
  --zone=ZONE      its zone, as us-west4-a
  --project=ID     its project (default: that of gcloud)
  --type=TYPE      accelerator type of a slice to be made, as v5litepod-16; without it, and
  --runtime=NAME   its software version, as v2-alpha-tpuv5-lite, the slice has to be there
  --spot           make one that may be taken away
  --setup=COMMAND  what every worker does before anything else, each time: mount a file system,
                   install a Python
  --python=PYTHON  the interpreter on the workers (default: python3)
  --restarts=N     how often to start again (default: 100)
  --dry_run        print the commands of a start, with --type one that makes the slice; run nothing

  TASK             language, image or video
  FLAG             for the training; --workdir=DIR has to be a folder that all workers share

The slice is not deleted at the end: gcloud compute tpus tpu-vm delete NAME --zone=ZONE
EOF
}

tpu='' zone='' project='' type='' runtime='' spot=0 setup='' python=python3 restarts=100 dry_run=0
RETRY_SECONDS=${RETRY_SECONDS:-30} # until gcloud knows of a slice that has just been taken away

while [ $# -gt 0 ]; do
  case "$1" in
    -h | --help) usage && exit ;;
    --tpu=* | --zone=* | --project=* | --type=* | --runtime=* | --setup=* | --python=* | --restarts=*)
      name=${1%%=*}
      printf -v "${name#--}" %s "${1#*=}"
      ;;
    --spot) spot=1 ;;
    --dry_run) dry_run=1 ;;
    -*) bad_flags "$1: no option of this script (--help shows them); flags of the training follow the TASK" ;;
    *) break ;;
  esac
  shift
done
check_task "$@"
[ -n "$tpu" ] || bad_flags "--tpu=NAME is missing: the name of the slice"
[ -n "$zone" ] || bad_flags "--zone=ZONE is missing: where the slice is, as us-west4-a"
[ -z "$type$runtime" ] || { [ -n "$type" ] && [ -n "$runtime" ]; } ||
  bad_flags "--type and --runtime go together: both to make a slice, neither to use one"
case "$restarts" in '' | *[!0-9]*) bad_flags "--restarts=$restarts: expected a number" ;; esac

# tpu_vm COMMAND ARGUMENT...: a command of gcloud on the slice.
tpu_vm() {
  local command=(gcloud compute tpus tpu-vm "$@" "--zone=$zone" ${project:+"--project=$project"} --quiet)
  if [ "$dry_run" -eq 1 ]; then
    quoted "${command[@]}"
    return
  fi
  "${command[@]}"
}

# on_workers WORD...: runs a command on all workers, in the folder with the code.
on_workers() {
  tpu_vm ssh "$tpu" --worker=all --command="cd tensor-memory && $(quoted "$@")"
}

# state_of_slice: prints READY, PREEMPTED, ...; nothing if there is none.
state_of_slice() {
  if [ "$dry_run" -eq 1 ]; then
    [ -n "$type" ] || echo READY
  else
    tpu_vm describe "$tpu" '--format=value(state)' 2>/dev/null || true
  fi
}

ensure_slice() {
  local state options=()
  state=$(state_of_slice)
  case "$state" in
    READY) return ;;
    STOPPED)
      tpu_vm start "$tpu"
      return
      ;;
    '') ;;
    PREEMPTED | TERMINATED) [ -z "$type" ] || tpu_vm delete "$tpu" || return ;;
    *)
      echo "slice $tpu is $state; waiting" >&2
      return 1
      ;;
  esac
  [ -n "$type" ] ||
    fail "slice $tpu in $zone is ${state:-not there, or gcloud cannot see it}; --type and --runtime make one"
  [ "$spot" -eq 0 ] || options+=(--spot)
  tpu_vm create "$tpu" "--accelerator-type=$type" "--version=$runtime" ${options[@]+"${options[@]}"}
}

# Every && counts: `set -e` has no effect where a status is asked for.
prepare_workers() {
  tpu_vm scp "$archive" "$tpu:tensor-memory.tar.gz" --worker=all &&
    tpu_vm ssh "$tpu" --worker=all \
      --command='mkdir -p tensor-memory && tar -xzf tensor-memory.tar.gz -C tensor-memory' &&
    on_workers env "PYTHON=$python" bash launch/tpu_worker.sh prepare ${setup:+"$setup"}
}

# In the background, as a shell that waits for a foreground process would answer a signal only after
# that has ended; and Ctrl-C does not reach it there, which would cut the connection too early.
train() {
  on_workers bash launch/tpu_worker.sh train "$@" &
  child=$!
  wait "$child"
}

# shellcheck disable=SC2329  # traps call it
stop_workers() {
  trap '' INT TERM
  if [ -n "$child" ]; then
    echo "stopping: the workers save first" >&2
    on_workers bash launch/tpu_worker.sh stop || true
    wait "$child" || true
  fi
  exit "$1"
}

# Whether to start again after a status: not if the training itself failed, on a slice that is there.
is_worth_another() {
  case "$1" in 143 | 255) return ;; esac # a worker was told to end, or the connection broke
  sleep "$RETRY_SECONDS"
  [ "$(state_of_slice)" != READY ]
}

archive=tensor-memory.tar.gz
if [ "$dry_run" -eq 0 ]; then
  folder=$(mktemp -d)
  trap 'rm -rf "$folder"' EXIT
  archive=$folder/$archive
  [ -z "$(git -C "$ROOT" status --porcelain)" ] ||
    echo "warning: changes that are not committed are not sent" >&2
  git -C "$ROOT" archive --format=tar.gz --output="$archive" HEAD
fi
child=
trap 'stop_workers 130' INT
trap 'stop_workers 143' TERM

for ((start = 0; start <= restarts; start++)); do
  [ "$start" -eq 0 ] || sleep "$RETRY_SECONDS"
  ensure_slice || continue
  status=0
  { prepare_workers && train "$@"; } || status=$?
  child=
  [ "$status" -ne 0 ] && is_worth_another "$status" || exit "$status"
  echo "ended with status $status; starting again" >&2
done
fail "gave up after $restarts restarts"
