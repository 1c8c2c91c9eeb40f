"""Runs the cells of a suite, each where it stopped the last time."""

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from train import loop, outputs, result
from train.cell_task import make_task
from train.config import RunConfig
from train.errors import Interrupted
from train.experiments import Cell
from train.workers import claimed

EVALUATIONS = 10  # of a cell while it is trained
CELLS, ERROR = "cells", "error.json"


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


def run_cells(cells: Sequence[Cell], workdir: Path, preset: str) -> None:
  """Trains and tests every cell that has no result yet and that no other process is at.

  A cell that fails is noted in its folder and the rest goes on; the next time it is tried again.

  Args:
    cells: the cells.
    workdir: folder of the suite.
    preset: name of the preset, for the results.

  Raises:
    Interrupted: on SIGTERM or Ctrl-C, when the cell under way has been saved.
  """
  if (
    jax.config.jax_compilation_cache_dir is None
  ):  # cells that differ by their seed are one program
    jax.config.update("jax_compilation_cache_dir", str(workdir.absolute() / "compiled"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
  for number, cell in enumerate(cells, start=1):
    folder = _folder(workdir, cell)
    with claimed(folder) as is_ours:
      if is_ours and result.read(folder) is None:
        print(f"[{number}/{len(cells)}] {cell.experiment} {cell.name}", flush=True)
        _run(cell, folder, preset)


def collect(cells: Sequence[Cell], workdir: Path) -> list[Outcome]:
  """What became of every cell.

  Args:
    cells: the cells.
    workdir: folder of the suite.

  Returns:
    An outcome for each cell, in the same order.
  """
  outcomes = []
  for cell in cells:
    folder = _folder(workdir, cell)
    found, error = result.read(folder), None
    if found is None:
      error = (outputs.read_json(folder / ERROR) or {}).get("error", "ended without a result")
    outcomes.append(Outcome(cell, folder, found, error))
  return outcomes


def _folder(workdir: Path, cell: Cell) -> Path:
  return workdir / CELLS / cell.experiment / cell.name


def _run(cell: Cell, folder: Path, preset: str) -> None:
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
  (folder / ERROR).unlink(missing_ok=True)
  began = time.monotonic()
  try:
    loop.train(make_task(cell), run, cell.optim, record)
  except Interrupted:
    raise
  except Exception as error:  # whatever it is, the other cells are worth having
    message = f"{type(error).__name__}: {' '.join(str(error).split())}"
    outputs.write_json(folder / ERROR, {"error": message})
    print(f"  FAILED: {message}", flush=True)
  else:
    print(f"  {time.monotonic() - began:.0f} s", flush=True)
