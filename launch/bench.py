"""Measures speed, temporaries and compile time; figures to compare are ratios within one run.

  python launch/bench.py memory|variants|step|video|drift [--json] [--repeats=N] [--cores=N]

`memory`: one memory layer with its heads, forward and forward + backward, the fast scan
against the plain one, and how compile time grows with the number of chunks. `variants`: the
dynamics and the windowed update against the published dynamics, all with their fast scans, and
what a step costs on larger and larger grids. `step`: a training step of a language model with
memory against one without, optimizer included. `video`: the methods of `train.video`, how their
compile time grows with the number of frames, and what a frame costs early and late in a stream.
`drift`: how far a float32 state is from a float64
one after 10,000 steps in bfloat16. Contestants run in turn in one process; each figure is the least
process-CPU time over the repeats, so other load on the machine matters little. By
default the process keeps to one core.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import bench_functions  # beside this file
from bench_functions import Shape

PUBLISHED = Shape("published", 8, 512, 384, 32, (8, 8, 8), 16)
MEMORY_SHAPES = (
  PUBLISHED,
  Shape("small grid", 8, 256, 128, 32, (3, 3, 3), 1),
  Shape("small batch", 4, 256, 128, 32, (8, 8, 8), 16),
)
VARIANT_SHAPES = (PUBLISHED, PUBLISHED._replace(name="fine chunks", chunk_size=2))
# By name, how a contestant's memory differs; the first is what the others are compared with.
IMPLEMENTATIONS = {"plain": {"implementation": "plain"}, "fast": {"implementation": "fast"}}
VARIANTS = {
  "convlstm": {},
  "parallel": {"dynamics": "parallel"},
  "selective": {"dynamics": "selective"},
  "convlstm, window": {"update": "window"},
  "selective, window": {"dynamics": "selective", "update": "window"},
}
# A training step with memory against "local". At the second shape the authors' code takes 4.6
# times its own "local".
STEPS = {
  "local": {"method": "local"},
  "selective": {"method": "tensor_local", "dynamics": "selective"},
  "convlstm": {"method": "tensor_local", "dynamics": "convlstm"},
  "convlstm, window": {"method": "tensor_local", "dynamics": "convlstm", "memory_update": "window"},
}
STEP_SHAPES = {
  "cpu preset": {"preset": "cpu"},
  "four blocks": {
    "preset": "cpu", "num_layers": 4, "features": 128, "num_heads": 4, "batch_size": 4,
    "max_length": 256, "window": 64, "memory_channels": 32, "grid": (8, 8, 8), "chunk_size": 16,
    "read_heads": 1, "memory_every_n_layers": 1,
  },
}  # fmt: skip
VOCABULARY = {"cpu preset": 256, "four blocks": 2000}
WINDOWED_GRIDS = (8, 16, 32)
DRIFT_STEPS = 10_000
COMPILED_CHUNKS = (16, 1024)
VIDEOS, COMPILED_FRAMES, STREAMED = 32, (8, 64), (100, 10_000)


def main() -> None:
  """Parses the command line, measures, prints a table or JSON."""
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=_Formatter)
  parser.add_argument("benchmark", choices=list(BENCHMARKS), help="what to measure")
  parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
  parser.add_argument("--repeats", type=_positive, default=9, help="runs of each function")
  parser.add_argument("--cores", type=_positive, default=1, help="cores the process may use")
  options = parser.parse_args()
  _keep_to_cores(options.cores)
  import jax  # after the flags above

  report = {
    "benchmark": options.benchmark,
    "jax": jax.__version__,
    "device": jax.devices()[0].device_kind,
    "repeats": options.repeats,
    "cores": options.cores,
    **BENCHMARKS[options.benchmark](options.repeats),
  }
  print(json.dumps(report, indent=2) if options.json else _table(report))


class _Formatter(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
  pass


def _positive(text: str) -> int:
  value = int(text)
  if value < 1:
    raise argparse.ArgumentTypeError(f"{text}: expected an integer of at least 1")
  return value


def _keep_to_cores(cores: int) -> None:
  """Limits this process, and the threads XLA is about to start, to some cores."""
  if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
  if cores == 1:
    flags = os.environ.get("XLA_FLAGS", "")
    os.environ["XLA_FLAGS"] = f"--xla_cpu_multi_thread_eigen=false {flags}"


def measure_memory(repeats: int) -> dict:
  """The fast scan against the plain one, and the growth of compile time, as JSON values."""
  shapes = [_memory_shape(shape, IMPLEMENTATIONS, repeats) for shape in MEMORY_SHAPES]
  seconds = [compile_seconds(chunks) for chunks in COMPILED_CHUNKS]
  growth = {f"seconds_{c}_chunks": s for c, s in zip(COMPILED_CHUNKS, seconds, strict=True)}
  return {
    "shapes": shapes,
    "compile_growth": {**growth, "ratio": seconds[1] / seconds[0]},
  }


def measure_variants(repeats: int) -> dict:
  """Dynamics and windows against the published dynamics, and windows by grid, as JSON values."""
  from tmem.diagonal import sequential_depth

  shapes = [_memory_shape(shape, VARIANTS, repeats) for shape in VARIANT_SHAPES]
  depths = {
    f"{chunks}_chunks": sequential_depth(chunks)
    for chunks in (shape.tokens // shape.chunk_size for shape in VARIANT_SHAPES)
  }
  return {
    "shapes": shapes,
    "sequential_depth_selective": depths,
    "windowed_step_milliseconds": windowed_steps(repeats),
  }


def windowed_steps(repeats: int) -> dict:
  """Milliseconds of a windowed step, forward + backward, by cells per axis of the grid.

  The difference between twice as many tokens and once as many, so that what is done once for all
  steps, zeros for the state of a large grid above all, is not in it.
  """
  runs = {}
  for cells in WINDOWED_GRIDS:
    for times in (1, 2):
      tokens = times * PUBLISHED.tokens
      shape = PUBLISHED._replace(grid=(cells,) * 3, tokens=tokens)
      lowered, arguments = bench_functions.memory_layer(shape, VARIANTS["convlstm, window"])[
        "forward_backward"
      ]
      runs[cells, times] = (lowered.compile(), arguments)
  seconds = _least_cpu_seconds(runs, repeats)
  steps = PUBLISHED.tokens // PUBLISHED.chunk_size
  found = {
    f"grid_{cells}": 1e3 * (seconds[cells, 2] - seconds[cells, 1]) / steps
    for cells in WINDOWED_GRIDS
  }
  first, *_, last = found.values()
  return {**found, "ratio": last / first}


def measure_step(repeats: int) -> dict:
  """A training step with memory against one without, as JSON values."""
  return {
    "shapes": [
      measure(
        {"name": name} | flags,
        {
          method: bench_functions.training_step(flags | more, VOCABULARY[name])
          for method, more in STEPS.items()
          if "memory_update" not in more or "grid" in flags  # a grid larger than a window
        },
        repeats,
      )
      for name, flags in STEP_SHAPES.items()
    ]
  }


def measure_video(repeats: int) -> dict:
  """The methods of `train.video` at its preset cpu, as JSON values."""
  from tmem.video_models import METHODS

  def runs(method: str, frames: int) -> dict:
    return bench_functions.video_loss(method, frames, VIDEOS)

  facts = {"name": "cpu preset", "frames": COMPILED_FRAMES[0], "batch_size": VIDEOS}
  report = {"shapes": [measure(facts, {m: runs(m, COMPILED_FRAMES[0]) for m in METHODS}, repeats)]}
  for method in METHODS:
    seconds = []
    for frames in COMPILED_FRAMES:
      lowered, _ = runs(method, frames)["forward_backward"]
      start = time.process_time()
      lowered.compile()
      seconds.append(time.process_time() - start)
    report[f"compile_ratio_64_to_8_frames_{method}"] = {"ratio": seconds[1] / seconds[0]}
    report[f"frame_milliseconds_{method}"] = _streamed_milliseconds(method)
  return report


def _streamed_milliseconds(method: str) -> dict:
  """Least CPU milliseconds of a frame, of the 100 before each of `STREAMED`."""
  step, frame, stream = bench_functions.video_stream(method)
  found = {}
  for count in range(1, STREAMED[-1] + 1):
    start = time.process_time()
    logits, stream = step(frame, stream)
    logits.block_until_ready()
    spent = 1e3 * (time.process_time() - start)
    end = next(end for end in STREAMED if count <= end)
    if count > end - STREAMED[0]:
      found[f"at_{end}"] = min(spent, found.get(f"at_{end}", spent))
  first, *_, last = found.values()
  return {**found, "ratio": last / first}


def measure_drift(repeats: int) -> dict:
  """Largest difference of a float32 state from a float64 one, over its largest entry, by dynamics.

  Both compute in bfloat16 from the same tokens.
  """
  del repeats  # the same every time
  import jax
  import jax.numpy as jnp
  import numpy as np
  from flax import nnx

  import tmem
  from tmem.config import DYNAMICS

  jax.config.update("jax_enable_x64", True)
  x = jax.random.normal(jax.random.key(0), (1, DRIFT_STEPS, 32), jnp.bfloat16)
  found = {}
  for dynamics in DYNAMICS:
    cells = []
    for state_dtype in ("float32", "float64"):
      config = tmem.MemoryConfig(
        channels=8, grid=(4, 4, 4), chunk_size=1, forget_bias=3.0, dynamics=dynamics,
        dtype="bfloat16", param_dtype="float32", state_dtype=state_dtype,
      )  # fmt: skip
      memory = tmem.TensorMemory(config, 32, rngs=nnx.Rngs(0))
      state = jax.jit(lambda x, memory=memory: memory(x, memory.init_state(1))[1])(x)
      cells.append(np.asarray(state.cell, np.float64))
    found[dynamics] = float(np.abs(cells[0] - cells[1]).max() / np.abs(cells[1]).max())
  return {f"state_drift_after_{DRIFT_STEPS}_steps": found}


def _memory_shape(shape: Shape, contestants: dict[str, dict], repeats: int) -> dict:
  lowered = {
    name: bench_functions.memory_layer(shape, changes) for name, changes in contestants.items()
  }
  return measure(shape._asdict(), lowered, repeats)


def measure(facts: dict, contestants: dict[str, dict], repeats: int) -> dict:
  """Times, compile seconds and temporary bytes of each contestant, and ratios to the first.

  Args:
    facts: what all have in common.
    contestants: by name, by kind of function, `(lowered, arguments)`.
    repeats: runs of each function.
  """
  found = {name: {} for name in contestants}
  runs = {}
  for name, kinds in contestants.items():
    for kind, lowered in kinds.items():
      start = time.process_time()
      compiled = lowered[0].compile()
      found[name][f"{kind}_compile_seconds"] = time.process_time() - start
      memory = compiled.memory_analysis()
      found[name][f"{kind}_temporary_bytes"] = memory.temp_size_in_bytes
      runs[name, kind] = (compiled, lowered[1])
  for (name, kind), seconds in _least_cpu_seconds(runs, repeats).items():
    found[name][f"{kind}_milliseconds"] = 1e3 * seconds
  baseline, *others = found
  ratios = {
    name: {key: value / found[baseline][key] for key, value in found[name].items()}
    for name in others
  }
  return {"shape": facts, "measured": found, f"ratio_to_{baseline}": ratios}


def _least_cpu_seconds(runs: dict, repeats: int) -> dict:
  """Least process-CPU seconds of each function, all run in turn."""
  import jax

  least = dict.fromkeys(runs, float("inf"))
  for _ in range(repeats + 1):  # the first round warms up and counts as any other
    for key, (function, arguments) in runs.items():
      start = time.process_time()
      jax.block_until_ready(function(*arguments))
      least[key] = min(least[key], time.process_time() - start)
  return least


def compile_seconds(chunks: int) -> float:
  """Least CPU seconds, of three, to compile forward + backward over so many chunks."""
  import jax

  shape = Shape("compile", 2, 16 * chunks, 32, 16, (4, 4, 4), 16)
  seconds = []
  for _ in range(3):
    jax.clear_caches()
    start = time.process_time()
    bench_functions.memory_layer(shape, {})["forward_backward"][0].compile()
    seconds.append(time.process_time() - start)
  return min(seconds)


BENCHMARKS = {
  "memory": measure_memory,
  "variants": measure_variants,
  "step": measure_step,
  "video": measure_video,
  "drift": measure_drift,
}


def _table(report: dict) -> str:
  lines = [f"jax {report['jax']} on {report['device']}, {report['cores']} core(s)", ""]
  head = f"{'':<26}{'fwd ms':>9}{'fwd+bwd ms':>12}{'temp MB':>9}{'compile s':>11}"
  for entry in report.get("shapes", ()):
    facts = ", ".join(f"{key} {value}" for key, value in entry["shape"].items())
    lines += [facts, head]
    lines += [_row(name, values, 1e-6) for name, values in entry["measured"].items()]
    (title, ratios), *_ = ((k, v) for k, v in entry.items() if k.startswith("ratio_to_"))
    lines.append(title.replace("_", " "))
    lines += [_row(name, values, 1.0) for name, values in ratios.items()]
    lines.append("")
  for name, figures in report.items():
    if isinstance(figures, dict):
      facts = ", ".join(f"{key} {value:.3g}" for key, value in figures.items())
      lines.append(f"{name}: {facts}".replace("_", " "))
  return "\n".join(lines)


def _row(name: str, values: dict, bytes_scale: float) -> str:
  return (
    f"  {name:<24}{values['forward_milliseconds']:>9.2f}"
    f"{values['forward_backward_milliseconds']:>12.2f}"
    f"{values['forward_backward_temporary_bytes'] * bytes_scale:>9.2f}"
    f"{values['forward_backward_compile_seconds']:>11.2f}"
  )


if __name__ == "__main__":
  main()
