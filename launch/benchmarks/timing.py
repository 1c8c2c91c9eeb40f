"""Times of compiled functions that run in turn, and how much of a device's peak they reach."""

import time
from typing import Any

import jax
import jax.numpy as jnp

from train.flops import matrix_flops

# Multiply-adds count twice; bfloat16, dense, per chip, from the vendors' data sheets, by the
# beginning of what JAX calls the device; longer names first.
PEAKS = {
  "TPU v6": 918e12,
  "TPU v5 lite": 197e12,
  "TPU v5e": 197e12,
  "TPU v5": 459e12,
  "TPU v4": 275e12,
  "NVIDIA H200": 989e12,
  "NVIDIA H100": 989e12,
  "NVIDIA A100": 312e12,
}
SIDE = 1024  # of the matrices whose product measures the peak of a CPU
BACKWARD = 3  # a training step has three times the products of the forward pass


def on_cpu() -> bool:
  """Whether the default device is the host's processor."""
  return jax.default_backend() == "cpu"


def clock() -> float:
  """Seconds of this process's processor time, which other load hardly changes.

  Of the wall where an accelerator works and the processor waits.
  """
  return time.process_time() if on_cpu() else time.perf_counter()


def least_seconds(runs: dict, repeats: int) -> dict:
  """Least seconds of each function, all run in turn: key -> (function, arguments)."""
  least = dict.fromkeys(runs, float("inf"))
  for _ in range(repeats // 2 + 1):  # the first round warms up and counts as any other
    for key, (function, arguments) in runs.items():
      for _ in range(2):  # the first call may pay for what the contestant before it has left
        start = clock()
        jax.block_until_ready(function(*arguments))
        least[key] = min(least[key], clock() - start)
  return least


def peak_flops(given: float | None) -> dict[str, Any]:
  """Floating-point operations per second that the device can do, and who says so.

  Args:
    given: what the user says; None: the data sheet of a known accelerator, else measured.

  Returns:
    "peak_flops", and as "peak_source" "given", "data sheet" or "measured".
  """
  if given is not None:
    return {"peak_flops": given, "peak_source": "given"}
  kind = jax.devices()[0].device_kind
  for name, peak in PEAKS.items():
    if kind.startswith(name):
      return {"peak_flops": peak, "peak_source": "data sheet"}
  matrix = jnp.ones((SIDE, SIDE))
  seconds = least_seconds({0: (jax.jit(jnp.matmul), (matrix, matrix))}, 5)[0]
  return {"peak_flops": 2 * SIDE**3 / seconds, "peak_source": "measured"}


def program_bytes(compiled: jax.stages.Compiled) -> int:
  """Bytes a program needs while it runs: arguments, results and temporaries."""
  memory = compiled.memory_analysis()
  shared = memory.alias_size_in_bytes
  sizes = memory.argument_size_in_bytes, memory.output_size_in_bytes, memory.temp_size_in_bytes
  return sum(sizes) - shared


def measure(facts: dict, contestants: dict[str, dict], repeats: int) -> dict:
  """Times, compile seconds and bytes of each contestant, and ratios to the first.

  Args:
    facts: what all have in common.
    contestants: by name, by kind of function, `(traced, arguments)`.
    repeats: runs of each function.
  """
  found = {name: {} for name in contestants}
  runs = {}
  for name, kinds in contestants.items():
    for kind, (traced, arguments) in kinds.items():
      start = time.process_time()
      compiled = traced.lower().compile()
      found[name][f"{kind}_compile_seconds"] = time.process_time() - start
      memory = compiled.memory_analysis()
      found[name][f"{kind}_temporary_bytes"] = memory.temp_size_in_bytes
      found[name][f"{kind}_bytes"] = program_bytes(compiled)
      runs[name, kind] = (compiled, arguments)
  for (name, kind), seconds in least_seconds(runs, repeats).items():
    found[name][f"{kind}_milliseconds"] = 1e3 * seconds
  return {"shape": facts, "measured": found, **ratios(found)}


def rates(values: dict, forward: jax.stages.Traced, items: int, peak: float) -> dict:
  """Throughput of a training step that `measure` has timed.

  Args:
    values: its entry of "measured".
    forward: the loss alone.
    items: tokens of a step.
    peak: of the device.

  Returns:
    "tokens_per_second"; "model_flops", those of the matrix products of a step, the backward pass
    counted as twice the forward one and nothing computed again; "flops_utilisation", their rate
    over the peak.
  """
  seconds = 1e-3 * values["forward_backward_milliseconds"]
  flops = BACKWARD * matrix_flops(forward.jaxpr)
  return {
    "tokens_per_second": items / seconds,
    "model_flops": flops,
    "flops_utilisation": flops / seconds / peak,
  }


def ratios(found: dict[str, dict]) -> dict[str, dict]:
  """Every figure of each contestant over the first one's, as "ratio_to_FIRST"."""
  baseline, *others = found
  return {
    f"ratio_to_{baseline}": {
      name: {key: value / found[baseline][key] for key, value in found[name].items()}
      for name in others
    }
  }
