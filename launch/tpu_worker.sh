#!/usr/bin/env bash
# What launch/tpu_pod.sh runs on each worker of a slice: prepare [SETUP], train TASK FLAG..., stop.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$ROOT"

# The training that was started here and still runs, if any.
running() {
  local pid
  pid=$(cat .training 2>/dev/null) || return 1
  tr '\0' ' ' <"/proc/$pid/cmdline" 2>/dev/null | grep -q -- '-m train\.' || return 1
  echo "$pid"
}

# Asks it to save and end, and waits for that.
stop_training() {
  local pid
  if pid=$(running); then
    kill -TERM "$pid"
    while running >/dev/null; do sleep 0.2; done
  fi
}

case "${1:-}" in
  prepare)
    [ -z "${2:-}" ] || bash -c "$2"
    ensure_venv .venv requirements.txt
    ensure_jax .venv tpu
    ;;
  train)
    stop_training # one that a broken connection has left behind
    shift
    task=$1
    shift
    echo $$ >.training
    export TMEM_CLUSTER=auto
    exec .venv/bin/python -m "train.$task" "$@"
    ;;
  stop) stop_training ;;
  *) bad_flags "expected prepare, train or stop, got '${1:-}'" ;;
esac
