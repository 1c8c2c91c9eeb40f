"""The result of a finished run: what it measured and what it was measured with."""

import contextlib
import importlib.metadata
import platform
import resource
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from train import outputs
from train.config import RunConfig
from train.errors import RunError
from train.progress import Progress
from train.task import Task

PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "grain")


def versions() -> dict[str, str]:
  """Versions of Python and of the packages a result depends on."""
  found = {"python": platform.python_version()}
  for package in PACKAGES:
    try:
      found[package] = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
      continue
  return found


def forget_peak_memory() -> None:
  """Makes `peak_memory_bytes` count from here, where the system can: one process, several runs."""
  with contextlib.suppress(OSError):
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # Linux


def peak_memory_bytes() -> int:
  """Largest memory of any device so far; of the process where devices do not count it."""
  peaks = [(device.memory_stats() or {}).get("peak_bytes_in_use") for device in jax.local_devices()]
  peaks = [peak for peak in peaks if peak is not None]
  if peaks:
    return max(peaks)
  unit = 1 if sys.platform == "darwin" else 1024
  return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def count(params: Any) -> int:
  """Number of parameters."""
  return sum(leaf.size for leaf in jax.tree.leaves(params))


def make(
  task: Task,
  run: RunConfig,
  progress: Progress,
  *,
  params: Any,
  best_step: int,
  facts: Mapping[str, Any],
  metrics: Mapping[str, float],
  wall_seconds: float,
) -> dict[str, Any]:
  """Puts together the result of a run that has ended.

  Args:
    task: what was trained.
    run: how the run proceeded.
    progress: where it ended.
    params: the best parameters.
    best_step: their step.
    facts: what `task.describe` says about the model with them.
    metrics: what was measured of it, as `<split>_<metric>`.
    wall_seconds: time spent in all.

  Returns:
    Content of `result.json`.
  """
  return {
    "task": task.name,
    "preset": run.preset,
    "seed": run.seed,
    "steps": progress.step,
    "best_step": best_step,
    "stopped_early": progress.step < run.steps,
    "skipped_steps": progress.skipped,
    "params": count(params),
    f"{task.item}_per_second": progress.items_per_second(),
    "data_wait": progress.data_wait(),
    "peak_memory_bytes": peak_memory_bytes(),
    "wall_seconds": wall_seconds,
    "versions": versions(),
    "protocol": task.protocol,
    **({} if run.init_from is None else {"init_from": str(run.init_from)}),
    **facts,
    **metrics,
  }


def read(workdir: Path) -> dict[str, Any] | None:
  """Reads the result of a run.

  Args:
    workdir: folder of the run.

  Returns:
    Content of `result.json`, or None if there is none.

  Raises:
    RunError: if the file is broken.
  """
  found = outputs.read_json(workdir / outputs.RESULT)
  for name, kind in {"task": str, "steps": int, "best_step": int, "params": int}.items():
    if found is not None and not isinstance(found.get(name), kind):
      problem = f"{name} is {found[name]!r}" if name in found else f"has no {name!r}"
      raise broken(workdir, problem)
  return found


def broken(workdir: Path, problem: str) -> RunError:
  """The error of a result that cannot be used."""
  path = workdir / outputs.RESULT
  return RunError(
    f"{path}: broken ({problem}); restore it, or delete it and train again to remake it"
  )


def is_finished(workdir: Path, splits: tuple[str, ...]) -> bool:
  """Whether a run is finished; if so, says it and what came out.

  Args:
    workdir: folder of the run.
    splits: as in `summary`.

  Raises:
    RunError: if the result is broken.
  """
  found = read(workdir)
  if found is not None:
    print(f"{workdir} is finished; nothing to do.\n{summary(found, splits)}")
  return found is not None


def summary(result: Mapping[str, Any], splits: tuple[str, ...]) -> str:
  """One line per split, for the terminal.

  Args:
    result: the result of a run.
    splits: splits whose metrics are in it as `<split>_<metric>`.

  Returns:
    Lines of text.
  """
  found = [
    f"{result['task']}, {result.get('method')}, {result.get('dataset')}: {result['steps']} steps,"
    f" {result['params']:,} parameters, best at step {result['best_step']}"
  ]
  if result.get("data_wait") is not None:
    found.append(f"  waiting for data: {result['data_wait']:.1%} of the training time")
  for split in splits:
    finer = tuple(f"{other}_" for other in splits if other.startswith(f"{split}_"))
    measured = {
      name.removeprefix(f"{split}_"): value
      for name, value in result.items()
      if name.startswith(f"{split}_") and not name.startswith(finer) and isinstance(value, float)
    }
    found.append(f"  {split}: " + ", ".join(line.replace(":", "") for line in lines(measured)))
  return "\n".join(found)


COUNTS = ("tokens", "hidden_patches", "clips")


def lines(metrics: Mapping[str, float]) -> list[str]:
  """Metrics for the terminal: "name: value"; numbers of things are whole."""
  return [
    f"{name.replace('_', ' ')}: {value:,.0f}"
    if name in COUNTS
    else f"{name.replace('_', ' ')}: {value:.4f}"
    for name, value in metrics.items()
  ]
