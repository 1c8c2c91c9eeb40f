#!/usr/bin/env bash
# Trains every method of a task, and the controls of the memory, under one budget; compares them.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

usage() {
  cat <<'EOF'
Usage: bash launch/compare.sh [--workdir=DIR] TASK [FLAG...]

Trains the runs below with the preset cpu, on the same data for the same number of steps, each in a
folder of its own, and prints a table. Run again, it resumes what was interrupted and leaves alone
what is finished; RUNS allows to train some of them here, and others there.

  --workdir=DIR   where everything is written (default: runs/compare_TASK in the repository)
  TASK            language (measured in one pass over the text with the state carried, protocol
                  stream), image or video
  FLAG            passed to every training, as --dataset=wikitext2 --data_dir=DIR; what makes a run
                  what it is (below) counts more

Environment:
  RUNS            names of the runs to train, all others are left out of the table too
  PYTHON          the interpreter to make .venv from (default: python3)

Runs (local_wide has as many parameters as tensor_local, local_longer trains for as long a time, the states of
one_cell_256 and grid_256 have as many numbers):
EOF
  local task
  for task in language image video; do
    echo " $task"
    "runs_of_$task" | sed 's/^/  /'
  done
}

# A run on each line: its name, then the flags that make it what it is.
runs_of_language() {
  cat <<'EOF'
local_0              --method=local
tensor_local_0       --method=tensor_local
local_1              --method=local --seed=1
tensor_local_1       --method=tensor_local --seed=1
local_2              --method=local --seed=2
tensor_local_2       --method=tensor_local --seed=2
one_cell             --method=tensor_local --grid=1,1,1
one_cell_256         --method=tensor_local --grid=1,1,1 --memory_channels=256 --read_heads=1
grid_256             --method=tensor_local --memory_channels=32
published_gates      --method=tensor_local --dynamics=convlstm --grid=3,3,3 --memory_channels=32 --read_heads=1
local_wide           --method=local --mlp_features=728
local_longer         --method=local --steps=1700
local_window_64      --method=local --window=64
base                 --method=base
base_sln             --method=base_sln
local_rope           --method=local_rope
tensor_local_rope    --method=tensor_local_rope
xl                   --method=xl --carry_state
linear               --method=linear
gated_delta          --method=gated_delta
slots_local          --method=slots_local
tensor               --method=tensor
tensor_sln           --method=tensor_sln
EOF
}

runs_of_image() {
  seeds "" "" base local registers tensor
  cat <<'EOF'
tensor_random        --method=tensor --order=random
tensor_layer         --method=tensor --state_scope=layer
tensor_one_cell      --method=tensor --grid=1,1,1
EOF
}

runs_of_video() {
  seeds "" "" joint registers tensor
  seeds _whole --blank_frames=0 joint registers tensor
  cat <<'EOF'
tensor_one_cell      --method=tensor --grid=1,1,1
EOF
}

# seeds SUFFIX FLAG METHOD...: three runs of each.
seeds() {
  local suffix=$1 flag=$2 seed method
  shift 2
  for seed in 0 1 2; do
    for method in "$@"; do
      printf '%-20s --method=%s --seed=%s%s\n' "$method${suffix}_$seed" "$method" "$seed" "${flag:+ $flag}"
    done
  done
}

workdir=- own="--method --mode --preset --protocol --seed"
read_flags "$@"
tasks=()
for flag in ${flags[@]+"${flags[@]}"}; do
  case "$flag" in -*) ;; *) tasks+=("$flag") ;; esac
done
[ "${#tasks[@]}" -eq 1 ] || bad_flags "give one task: language, image or video (--help shows more)"
task=${tasks[0]}
case "$task" in
  language) shared=(--preset=cpu --protocol=stream) ;;
  image | video) shared=(--preset=cpu) ;;
  *) bad_flags "no task is named $task: language, image or video (--help shows more)" ;;
esac
for flag in "${flags[@]}"; do
  case "$flag" in -*) shared+=("$flag") ;; esac
done
[ "$workdir" != - ] || workdir=$ROOT/runs/compare_$task

for name in ${RUNS:-}; do
  grep "^$name " >/dev/null < <("runs_of_$task") ||
    bad_flags "RUNS: no run of $task is named $name (--help shows them)"
done
prepare_to_run

folders=
while read -r name options; do
  case " ${RUNS:-$name} " in *" $name "*) ;; *) continue ;; esac
  echo
  echo "== $name: $options"
  # shellcheck disable=SC2086  # the options are words
  run "train.$task" "${shared[@]}" $options --workdir="$workdir/$name" </dev/null
  folders=$folders,$workdir/$name
done < <("runs_of_$task")

echo
echo "== comparison"
run train.report --workdirs="${folders#,}" --output="$workdir"
