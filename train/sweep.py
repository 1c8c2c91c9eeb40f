"""Runs the cells of a suite one after the other, each where it stopped the last time."""

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from train import loop, result
from train.cell_task import make_task
from train.config import RunConfig
from train.errors import Interrupted
from train.experiments import Cell

EVALUATIONS = 10  # of a cell while it is trained


@dataclasses.dataclass(frozen=True)
class Outcome:
  """What became of a cell.

  Attributes:
    cell: the cell.
    folder: folder of its run.
    result: its result, or None if it failed.
    error: why, in one line, if it failed.
  """

  cell: Cell
  folder: Path
  result: dict[str, Any] | None
  error: str | None = None


def run_cells(cells: Sequence[Cell], workdir: Path, preset: str) -> list[Outcome]:
  """Trains and tests every cell that has no result yet.

  A cell that fails is reported and the rest goes on; the same command tries it again.

  Args:
    cells: the cells.
    workdir: folder of the suite.
    preset: name of the preset, for the results.

  Returns:
    An outcome for each cell, in the same order.

  Raises:
    Interrupted: on SIGTERM or Ctrl-C, when the cell under way has been saved.
  """
  if (
    jax.config.jax_compilation_cache_dir is None
  ):  # cells that differ by their seed are one program
    jax.config.update("jax_compilation_cache_dir", str(workdir.absolute() / "compiled"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
  outcomes = []
  for number, cell in enumerate(cells, start=1):
    folder = workdir / "cells" / cell.experiment / cell.name
    print(f"[{number}/{len(cells)}] {cell.experiment} {cell.name}", flush=True)
    outcomes.append(_run(cell, folder, preset))
    if outcomes[-1].error is not None:
      print(f"  FAILED: {outcomes[-1].error}", flush=True)
  return outcomes


def _run(cell: Cell, folder: Path, preset: str) -> Outcome:
  finished = result.read(folder)
  if finished is not None:
    return Outcome(cell, folder, finished)
  every = max(1, cell.optim.steps // EVALUATIONS)
  run = RunConfig(
    workdir=folder,
    preset=preset,
    seed=cell.seed,
    batch_size=cell.batch_size,
    steps=cell.optim.steps,
    eval_every=every,
    log_every=every,
    checkpoint_every=every,
    keep=1,
  )
  record = {
    "task": "diagnostics",
    "experiment": cell.experiment,
    "cell": cell.name,
    "model": cell.model.to_dict(),
    "versions": result.versions(),
  }
  began = time.monotonic()
  try:
    found = loop.train(make_task(cell), run, cell.optim, record)
  except Interrupted:
    raise
  except Exception as error:  # whatever it is, the other cells are worth having
    return Outcome(cell, folder, None, f"{type(error).__name__}: {' '.join(str(error).split())}")
  print(f"  {time.monotonic() - began:.0f} s", flush=True)
  return Outcome(cell, folder, found)
