# shellcheck shell=bash
# Shared by the scripts of this folder; source it, do not run it.
#
# A virtual environment made here carries `.requirements`: the checksum of every requirement file
# installed in it, or the word "incomplete" until that is done. One without it is the user's own:
# it is installed into, never cleared.

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

fail() {
  echo "error: $*" >&2
  exit 1
}

# python_version PYTHON: prints "major.minor.micro"; fails if PYTHON does not run.
python_version() {
  "$1" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null
}

is_supported() {
  case "$1" in 3.11.* | 3.12.* | 3.13.*) true ;; *) false ;; esac
}

# require_python PYTHON: ends with one clear line unless PYTHON runs and is supported.
require_python() {
  local version hint="name another with PYTHON=/path/to/python"
  version=$(python_version "$1") || fail "'$1' does not run; Python 3.11, 3.12 or 3.13 is needed; $hint"
  is_supported "$version" || fail "'$1' is Python $version; 3.11, 3.12 or 3.13 is needed; $hint"
}

# has_wanted_python VENV: its Python is the one PYTHON names; any supported one if PYTHON is unset.
has_wanted_python() {
  local version
  version=$(python_version "$1/bin/python") && is_supported "$version" || return 1
  [ -z "${PYTHON:-}" ] || [ "$version" = "$(python_version "$PYTHON")" ]
}

is_ours() {
  [ -f "$1/.requirements" ]
}

is_complete() {
  ! is_ours "$1" || [ "$(cat "$1/.requirements")" != incomplete ]
}

# make_venv VENV: a new one in its place.
make_venv() {
  local venv=$1 python=${PYTHON:-python3}
  require_python "$python"
  if ! is_ours "$venv" && [ -n "$(ls -A "$venv" 2>/dev/null)" ]; then
    fail "'$venv' is not from this script and its Python is not the one wanted; move it away"
  fi
  echo "Making $venv with Python $(python_version "$python")"
  mkdir -p "$venv"
  echo incomplete >"$venv/.requirements"
  # The mark goes last, so that an interruption here is noticed too.
  find "$venv/" -mindepth 1 -maxdepth 1 ! -name .requirements -exec rm -rf {} +
  "$python" -m venv "$venv" ||
    fail "'$python -m venv' failed (Debian and Ubuntu keep it in the package python3-venv)"
}

# checksums FILE...: one line for each requirement file, named relative to the repository.
checksums() {
  (cd "$ROOT" && cksum "$@")
}

is_installed() {
  local venv=$1 line
  shift
  is_ours "$venv" || return 1
  while read -r line; do
    grep -qxF -- "$line" "$venv/.requirements" || return 1
  done < <(checksums "$@")
}

install_requirements() {
  local venv=$1 file options=()
  shift
  for file in "$@"; do
    options+=(-r "$ROOT/$file")
  done
  echo "Installing $* into $venv (one to three minutes if it is new)"
  if is_ours "$venv"; then
    echo incomplete >"$venv/.requirements"
  fi
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-input "${options[@]}" ||
    fail "pip could not install $*; its message is above"
  if is_ours "$venv"; then
    checksums "$@" >"$venv/.requirements"
  fi
}

# ensure_venv VENV FILE...: makes, completes or reuses VENV so that it has the requirement files.
ensure_venv() {
  local venv=$1
  shift
  has_wanted_python "$venv" && is_complete "$venv" || make_venv "$venv"
  is_installed "$venv" "$@" || install_requirements "$venv" "$@"
}

# ensure_jax VENV KIND: what jax needs for accelerators of a kind, as tpu or cuda13; none: nothing.
ensure_jax() {
  [ -z "${2:-}" ] || "$1/bin/python" -m pip install --quiet --disable-pip-version-check --no-input "jax[$2]" ||
    fail "pip could not install jax[$2]; its message is above"
}

# prepare_to_run: everything that `run` needs; a signal from then on ends what is running first.
prepare_to_run() {
  ensure_venv "$ROOT/.venv" requirements.txt
  # The caller's folder stays the current one, so that relative paths in flags mean what they say;
  # it must not hide our packages either.
  export PYTHONPATH="$ROOT${PYTHONPATH:+:$PYTHONPATH}" PYTHONSAFEPATH=1
  child=
  trap 'stop 130' INT
  trap 'stop 143' TERM
}

# run MODULE FLAG...: a training that is told to end saves first. In the background, as a shell that
# waits for a foreground process would answer a signal only after that has ended.
run() {
  "$ROOT/.venv/bin/python" -m "$@" &
  child=$!
  wait "$child"
}

# stop STATUS: ends what is running, then the script.
stop() {
  trap - INT TERM
  if [ -n "$child" ]; then
    kill -TERM "$child" 2>/dev/null || true
    wait "$child" || true
  fi
  exit "$1"
}

bad_flags() {
  echo "error: $*" >&2
  exit 2
}

# quoted WORD...: prints a command as a shell reads it; words that need no quotes have none.
quoted() {
  local word line=
  for word in "$@"; do
    case "$word" in
      '' | *[!A-Za-z0-9_=.,:/@%+-]*) word="'${word//\'/\'\\\'\'}'" ;;
    esac
    line+="$word "
  done
  echo "${line% }"
}

# check_task TASK FLAG...: what a cluster is to train.
check_task() {
  local argument
  case "${1:-}" in
    language | image | video) ;;
    '') bad_flags "the task is missing: language, image or video, and then its flags" ;;
    *) bad_flags "no task is named $1: language, image or video" ;;
  esac
  for argument in "$@"; do
    case "$argument" in --workdir | --workdir=?*) return ;; esac
  done
  bad_flags "--workdir=DIR is missing: a folder that all processes share"
}

# read_flags FLAG...: sets `workdir` if it is among them, and `flags` to the rest. Those named in
# `own` are the script's to set; `usage` is printed where help is asked for.
flags=() own=
read_flags() {
  flags=()
  while [ $# -gt 0 ]; do
    case "$1" in
      -h | --help | --helpshort) usage && exit ;;
      --workdir=*) workdir=${1#*=} ;;
      --workdir)
        [ $# -gt 1 ] || bad_flags "--workdir needs a folder: --workdir=DIR"
        workdir=$2
        shift
        ;;
      *)
        case " $own " in *" ${1%%=*} "*)
          bad_flags "${1%%=*} is set by this script; to choose it, run python -m train.TASK"
          ;;
        esac
        flags+=("$1")
        ;;
    esac
    shift
  done
  [ -n "$workdir" ] || bad_flags "--workdir is empty; give a folder: --workdir=DIR"
}
