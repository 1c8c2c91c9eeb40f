#!/usr/bin/env bash
# Trains every language method, and the controls of the memory, under one budget; compares them.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

usage() {
  cat <<'EOF'
Usage: bash launch/compare_language.sh [--workdir=DIR] [FLAG...]

Trains the runs below with the preset cpu, on the same text for the same number of steps, each in a
folder of its own, measures all of them in one pass over the text with the state carried (protocol
stream), and prints a table. Run again, it resumes what was interrupted and leaves alone what is
finished; RUNS allows to train some of them here, and others there.

  --workdir=DIR   where everything is written (default: runs/compare_language in the repository)
  FLAG            passed to every training, as --dataset=wikitext2 --data_dir=DIR; what makes a run
                  what it is (below) counts more

Environment:
  RUNS            names of the runs to train, all others are left out of the table too
  PYTHON          the interpreter to make .venv from (default: python3)

Runs (local_wide has as many parameters as tensor_local, local_longer trains for as long a time):
EOF
  runs | sed 's/^/  /'
}

# A run on each line: its name, then the flags that make it what it is.
runs() {
  cat <<'EOF'
local_0              --method=local
tensor_local_0       --method=tensor_local
local_1              --method=local --seed=1
tensor_local_1       --method=tensor_local --seed=1
local_2              --method=local --seed=2
tensor_local_2       --method=tensor_local --seed=2
one_cell             --method=tensor_local --grid=1,1,1
one_cell_256         --method=tensor_local --grid=1,1,1 --memory_channels=256 --read_heads=1
published_gates      --method=tensor_local --dynamics=convlstm --grid=3,3,3 --memory_channels=32 --read_heads=1
local_wide           --method=local --mlp_features=728
local_longer         --method=local --steps=1700
local_window_64      --method=local --window=64
base                 --method=base
base_sln             --method=base_sln
local_rope           --method=local_rope
xl                   --method=xl --carry_state
linear               --method=linear
gated_delta          --method=gated_delta
slots_local          --method=slots_local
tensor               --method=tensor
tensor_sln           --method=tensor_sln
EOF
}

workdir=$ROOT/runs/compare_language own="--method --mode --preset --protocol --seed"
read_flags "$@"

for name in ${RUNS:-}; do
  grep "^$name " >/dev/null < <(runs) || bad_flags "RUNS: no run is named $name (--help shows them)"
done
prepare_to_run

folders=
while read -r name options; do
  case " ${RUNS:-$name} " in *" $name "*) ;; *) continue ;; esac
  echo
  echo "== $name: $options"
  # shellcheck disable=SC2086  # the options are words
  run train.language --preset=cpu --protocol=stream ${flags[@]+"${flags[@]}"} $options \
    --workdir="$workdir/$name" </dev/null
  folders=$folders,$workdir/$name
done < <(runs)

echo
echo "== comparison"
run train.report --workdirs="${folders#,}" --output="$workdir"
