"""Measures speed, temporaries and compile time; figures to compare are ratios within one run.

  python launch/bench.py memory [--json] [--repeats=N] [--cores=N]

`memory`: one memory layer with its heads, forward and forward + backward, the fast scan
against the plain one. The two run in turn in one process; each figure is the least
process-CPU time over the repeats, so other load on the machine matters little. By default the
process keeps to one core.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))


class Shape(NamedTuple):
  """One memory layer to measure."""

  name: str
  batch: int
  tokens: int
  features: int
  channels: int
  grid: tuple[int, ...]
  chunk_size: int


MEMORY_SHAPES = (
  Shape("published", 8, 512, 384, 32, (8, 8, 8), 16),
  Shape("quickstart", 8, 256, 128, 32, (3, 3, 3), 1),
  Shape("small batch", 4, 256, 128, 32, (8, 8, 8), 16),
)
IMPLEMENTATIONS = ("plain", "fast")
COMPILED_CHUNKS = (16, 1024)


def main() -> None:
  """Parses the command line, measures, prints a table or JSON."""
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=_Formatter)
  parser.add_argument("benchmark", choices=["memory"], help="what to measure")
  parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
  parser.add_argument("--repeats", type=_positive, default=9, help="runs of each function")
  parser.add_argument("--cores", type=_positive, default=1, help="cores the process may use")
  options = parser.parse_args()
  _keep_to_cores(options.cores)
  report = measure_memory(options.repeats) | {"cores": options.cores}
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
  """The report of `bench.py memory` as JSON values."""
  import jax  # after the flags above

  shapes = [measure_shape(shape, repeats) for shape in MEMORY_SHAPES]
  seconds = [compile_seconds(chunks) for chunks in COMPILED_CHUNKS]
  growth = {f"seconds_{c}_chunks": s for c, s in zip(COMPILED_CHUNKS, seconds, strict=True)}
  return {
    "benchmark": "memory",
    "jax": jax.__version__,
    "device": jax.devices()[0].device_kind,
    "repeats": repeats,
    "shapes": shapes,
    "compile_growth": {**growth, "ratio": seconds[1] / seconds[0]},
  }


def measure_shape(shape: Shape, repeats: int) -> dict:
  """Times, compile seconds and temporary bytes of both implementations, and their ratios."""
  found = {name: {} for name in IMPLEMENTATIONS}
  runs = {}
  for name in IMPLEMENTATIONS:
    for kind, lowered in _lowered(shape, name).items():
      start = time.process_time()
      compiled = lowered[0].compile()
      found[name][f"{kind}_compile_seconds"] = time.process_time() - start
      memory = compiled.memory_analysis()
      found[name][f"{kind}_temporary_bytes"] = memory.temp_size_in_bytes
      runs[name, kind] = (compiled, lowered[1])
  for (name, kind), seconds in _least_cpu_seconds(runs, repeats).items():
    found[name][f"{kind}_milliseconds"] = 1e3 * seconds
  ratios = {
    f"{key}_ratio": found["fast"][key] / found["plain"][key] for key in sorted(found["fast"])
  }
  return {"shape": shape._asdict(), **found, **ratios}


def _lowered(shape: Shape, implementation: str) -> dict:
  """Forward, and forward + backward, of one memory layer: kind -> (lowered, arguments)."""
  import jax
  import jax.numpy as jnp
  from flax import nnx

  import tmem

  config = tmem.MemoryConfig(
    channels=shape.channels,
    grid=shape.grid,
    chunk_size=shape.chunk_size,
    implementation=implementation,
  )
  graphdef, params = nnx.split(tmem.TensorMemory(config, shape.features, rngs=nnx.Rngs(0)))
  x = jax.random.normal(jax.random.key(0), (shape.batch, shape.tokens, shape.features))

  def loss(params, x):
    memory = nnx.merge(graphdef, params)
    y, _ = memory(x, memory.init_state(shape.batch))
    return jnp.sum(jnp.square(y))

  gradient = jax.value_and_grad(loss, argnums=(0, 1))
  functions = {"forward": loss, "forward_backward": gradient}
  return {kind: (jax.jit(f).lower(params, x), (params, x)) for kind, f in functions.items()}


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
    _lowered(shape, "fast")["forward_backward"][0].compile()
    seconds.append(time.process_time() - start)
  return min(seconds)


def _table(report: dict) -> str:
  lines = [f"jax {report['jax']} on {report['device']}, {report['cores']} core(s)", ""]
  head = f"{'shape':<14}{'':<7}{'fwd ms':>9}{'fwd+bwd ms':>12}{'temp MB':>9}{'compile s':>11}"
  for entry in report["shapes"]:
    shape = Shape(**entry["shape"])
    lines += [", ".join(f"{k} {v}" for k, v in shape._asdict().items() if k != "name"), head]
    for name in (*IMPLEMENTATIONS, "ratio"):
      values = entry.get(name) or {k: entry[f"{k}_ratio"] for k in entry["fast"]}
      scale = 1.0 if name == "ratio" else 1e-6
      lines.append(
        f"{shape.name:<14}{name:<7}{values['forward_milliseconds']:>9.2f}"
        f"{values['forward_backward_milliseconds']:>12.2f}"
        f"{values['forward_backward_temporary_bytes'] * scale:>9.2f}"
        f"{values['forward_backward_compile_seconds']:>11.2f}"
      )
    lines.append("")
  growth = ", ".join(f"{k} {v:.2f}" for k, v in report["compile_growth"].items())
  return "\n".join([*lines, f"compile time by chunks: {growth}"])


if __name__ == "__main__":
  main()
