"""Measures speed, memory and compile time; figures to compare are ratios within one run.

  python launch/bench.py BENCHMARK [--json] [--repeats=N] [--cores=N] [--peak_flops=N]

BENCHMARK is one of
  step         a training step of a language model with memory against one without: tokens/s, share
               of the device's peak, bytes, and the time a batch takes
  decode       the next token of a stream after --contexts tokens, with memory and without
  data         batches of each task, alone and beside the step that they are for
  scaling      a step over 1, 2, 4 and 8 devices, with as many rows on each
  temporaries  bytes of a compiled step by --lengths and by what is computed again; runs nothing
  memory       one memory layer with its heads, the fast scan against the plain one, and how compile
               time grows with the number of chunks
  variants     the dynamics and the windowed update against the published dynamics
  video        the methods of train.video, compile time by frames, a frame early and late
  drift        how far a float32 state is from a float64 one after 10,000 steps in bfloat16

Contestants run in turn in one process; each figure is the least over the repeats, on a CPU of
process time, so other load on the machine matters little. By default the process keeps to one core.
docs/measuring.md explains every key of the JSON object.
"""

import argparse
import importlib
import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

# By name: where it is, and how often it runs each function if nothing is said.
BENCHMARKS = {
  "step": ("steps.measure_step", 3),
  "decode": ("decode.measure_decode", 5),
  "data": ("data.measure_data", 3),
  "scaling": ("steps.measure_scaling", 2),
  "temporaries": ("temporaries.measure_temporaries", 1),
  "memory": ("layers.measure_memory", 9),
  "variants": ("layers.measure_variants", 9),
  "video": ("video.measure_video", 9),
  "drift": ("layers.measure_drift", 1),
}


def main() -> None:
  """Parses the command line, measures, prints a table or JSON."""
  options = _parse(sys.argv[1:])
  _keep_to_cores(options.cores)
  if options.benchmark == "scaling":
    _add_xla_flag(f"--xla_force_host_platform_device_count={max(options.devices)}")
  if options.benchmark == "temporaries":  # what never runs need not be fast
    _add_xla_flag("--xla_backend_optimization_level=0")
  import jax  # after the flags above
  from benchmarks import timing

  from train.result import peak_memory_bytes

  peak = timing.peak_flops(options.peak_flops)
  options.peak = peak["peak_flops"]
  module, function = options.run.split(".")
  measure = getattr(importlib.import_module(f"benchmarks.{module}"), function)
  report = {
    "benchmark": options.benchmark,
    "jax": jax.__version__,
    "device": jax.devices()[0].device_kind,
    "repeats": options.repeats,
    "cores": options.cores,
    **peak,
    **measure(options),
    "peak_memory_bytes": peak_memory_bytes(),
  }
  print(json.dumps(report, indent=2) if options.json else _table(report))


def _parse(arguments: list[str]) -> argparse.Namespace:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  add = parser.add_argument
  add("benchmark", choices=list(BENCHMARKS), help="what to measure")
  add("--json", action="store_true", help="print one JSON object instead of a table")
  add("--repeats", type=_positive, help="runs of each function")
  add("--cores", type=_positive, default=1, help="cores the process may use (1)")
  add("--peak_flops", type=float, help="operations per second of the device, in place of its own")
  add("--contexts", type=_integers, default=[1024, 16_384], help="of decode (1024,16384)")
  add("--devices", type=_integers, default=[1, 2, 4, 8], help="of scaling (1,2,4,8)")
  add("--lengths", type=_integers, default=[512, 1024, 2048, 4096], help="of temporaries")
  add("--preset", default="cpu", help="of decode, data, scaling and temporaries (cpu)")
  add("--policy", help="of temporaries: only that one, as 'blocks'")
  add("--flags", type=json.loads, default={"batch_size": 1}, help="of temporaries, as JSON")
  options = parser.parse_args(arguments)
  options.run, repeats = BENCHMARKS[options.benchmark]
  options.repeats = options.repeats or repeats
  return options


def _positive(text: str) -> int:
  value = int(text)
  if value < 1:
    raise argparse.ArgumentTypeError(f"{text}: expected an integer of at least 1")
  return value


def _integers(text: str) -> list[int]:
  return [_positive(part) for part in text.split(",")]


def _keep_to_cores(cores: int) -> None:
  """Limits this process, and the threads XLA is about to start, to some cores."""
  if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
  if cores == 1:
    _add_xla_flag("--xla_cpu_multi_thread_eigen=false")


def _add_xla_flag(flag: str) -> None:
  os.environ["XLA_FLAGS"] = f"{flag} {os.environ.get('XLA_FLAGS', '')}"


def _table(report: dict) -> str:
  lines = [f"jax {report['jax']} on {report['device']}, {report['cores']} core(s)", ""]
  head = f"{'':<26}{'fwd ms':>9}{'fwd+bwd ms':>12}{'temp MB':>9}{'compile s':>11}"
  for entry in report.get("shapes", ()):
    facts = ", ".join(f"{key} {value}" for key, value in entry["shape"].items())
    lines += [facts, head]
    lines += [_row(name, values, 1e-6) for name, values in entry["measured"].items()]
    lines += [_rate(name, v) for name, v in entry["measured"].items() if "flops_utilisation" in v]
    (title, ratios), *_ = ((k, v) for k, v in entry.items() if k.startswith("ratio_to_"))
    lines.append(title.replace("_", " "))
    lines += [_row(name, values, 1.0) for name, values in ratios.items()]
    lines.append("")
  for name, figures in report.items():
    if isinstance(figures, dict):
      lines += _lines(name.replace("_", " "), figures)
  return "\n".join(lines)


def _lines(title: str, figures: dict) -> list[str]:
  """One line of figures; of groups of figures, one for each."""
  groups = {key: value for key, value in figures.items() if isinstance(value, dict)}
  if groups:
    return [line for key, value in groups.items() for line in _lines(f"{title}, {key}", value)]
  numbers = [
    f"{key} {value:.4g}" if isinstance(value, (int, float)) else f"{key} {value}"
    for key, value in figures.items()
  ]
  return [f"{title}: {', '.join(numbers)}".replace("_", " ")]


def _rate(name: str, values: dict) -> str:
  return (
    f"  {name:<24}{values['tokens_per_second']:>9,.0f} tokens/s"
    f"{values['flops_utilisation']:>8.1%} of the peak"
  )


def _row(name: str, values: dict, bytes_scale: float) -> str:
  return (
    f"  {name:<24}{values['forward_milliseconds']:>9.2f}"
    f"{values['forward_backward_milliseconds']:>12.2f}"
    f"{values['forward_backward_temporary_bytes'] * bytes_scale:>9.2f}"
    f"{values['forward_backward_compile_seconds']:>11.2f}"
  )


if __name__ == "__main__":
  main()
