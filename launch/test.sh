#!/usr/bin/env bash
# Lint and all tests. Makes .venv on first use, reuses it afterwards.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

usage() {
  cat <<'EOF'
Usage: bash launch/test.sh [--all-pythons] [PYTEST_ARGUMENT...]

Makes or reuses .venv, installs the test requirements if they changed, then runs ruff, shellcheck
and pytest.

  --all-pythons   do so on each of Python 3.11, 3.12 and 3.13 found on PATH or in pyenv,
                  each in its own .venv-3.x, and end with one line per version
  PYTEST_ARGUMENT passed to pytest; paths are relative to the repository
                  (bash launch/test.sh -x tests/tmem); -n0 for one process, as --pdb needs

Environment:
  PYTHON          the interpreter to make .venv from (default: python3)
  TMEM_DATA_DIR   folder with the real data sets; tests that need them are skipped without it
EOF
}

# check VENV [PYTEST_ARGUMENT...]
check() {
  local venv=$1
  shift
  ensure_venv "$venv" requirements.txt requirements-dev.txt
  "$venv/bin/python" -m ruff check --extend-exclude '.venv*' .
  "$venv/bin/python" -m ruff format --check --extend-exclude '.venv*' .
  "$venv/bin/shellcheck" launch/*.sh launch/*.sbatch .ci/run
  # Most of the time is compilation, which uses one core. A file stays in one process for the
  # fixtures its tests share.
  "$venv/bin/python" -m pytest -n logical --maxprocesses 4 --dist loadfile "$@"
}

# find_python MINOR: prints a Python 3.MINOR that runs; a pyenv shim may exist and not run.
find_python() {
  local candidate
  for candidate in "python3.$1" "${PYENV_ROOT:-${HOME:-}/.pyenv}/versions/3.$1."*/bin/python; do
    case "$(python_version "$candidate")" in
      "3.$1."*) echo "$candidate" && return ;;
    esac
  done
  return 1
}

check_all_pythons() {
  local minor python status start failed=0 found=0 summary=()
  for minor in 11 12 13; do
    if ! python=$(find_python "$minor"); then
      summary+=("Python 3.$minor: not found")
      continue
    fi
    found=1 status=0 start=$SECONDS
    echo "== Python 3.$minor"
    # A process of its own: `set -e` has no effect inside a function whose status is asked for.
    PYTHON=$python TMEM_TEST_VENV=.venv-3.$minor bash launch/test.sh "$@" || status=$?
    if [ "$status" -eq 0 ]; then
      summary+=("Python 3.$minor: passed in $((SECONDS - start)) s")
    else
      summary+=("Python 3.$minor: FAILED with exit status $status after $((SECONDS - start)) s")
      failed=1
    fi
  done
  printf '%s\n' "${summary[@]}"
  [ "$found" -eq 1 ] || fail "no Python 3.11, 3.12 or 3.13 on PATH or in pyenv"
  return "$failed"
}

all_pythons=0
arguments=()
for argument in "$@"; do
  case "$argument" in
    --all-pythons) all_pythons=1 ;;
    -h | --help) usage && exit ;;
    *) arguments+=("$argument") ;;
  esac
done

cd "$ROOT"
export JAX_PLATFORMS=${JAX_PLATFORMS:-cpu}
# "${arguments[@]+...}": an empty array is an unset variable to the bash of macOS.
if [ "$all_pythons" -eq 1 ]; then
  check_all_pythons ${arguments[@]+"${arguments[@]}"}
else
  check "${TMEM_TEST_VENV:-.venv}" ${arguments[@]+"${arguments[@]}"}
fi
