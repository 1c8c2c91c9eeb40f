"""Runs the cells of a suite, each where it stopped the last time."""

import contextlib
import dataclasses
import json
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from train import loop, outputs, result
from train.cell_task import make_task
from train.cells import Cell
from train.config import RunConfig
from train.errors import Interrupted, RunError
from train.workers import claimed

EVALUATIONS = 10  # of a cell while it is trained
ERROR, ERROR_LENGTH = "error.json", 300
NEEDED = ("ceilings", "causal", "state_bytes", "fusion_gates")  # of a result, for the report


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


def run_cells(cells: Sequence[Cell], workdir: Path, preset: str, *, debug: bool = False) -> None:
  """Trains and tests every cell that has no result yet and that no other process is at.

  A cell that fails is noted in its folder and the rest goes on; the next time it is tried again.

  Args:
    cells: the cells.
    workdir: folder of the suite.
    preset: name of the preset, for the results.
    debug: whether to show the stack trace of a failure.

  Raises:
    Interrupted: on SIGTERM or Ctrl-C, when the cell under way has been saved.
  """
  if (
    jax.config.jax_compilation_cache_dir is None
  ):  # cells that differ by their seed are one program
    jax.config.update("jax_compilation_cache_dir", str(workdir.absolute() / "compiled"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
  for number, cell in enumerate(cells, start=1):
    _try(cell, f"[{number}/{len(cells)}]", workdir, preset, debug)


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
    folder = workdir / cell.folder
    if _is_finished(cell, folder):
      outcomes.append(Outcome(cell, folder, _result(folder)))
    else:
      outcomes.append(Outcome(cell, folder, None, _why_not(folder)))
  return outcomes


def _result(folder: Path) -> dict[str, Any] | None:
  """The result of a cell, None if there is none; raises RunError if it is broken."""
  found = result.read(folder)
  for name in NEEDED if found is not None else ():
    if name not in found:
      raise result.broken(folder, f"has no {name!r}")
  return found


def _is_finished(cell: Cell, folder: Path) -> bool:
  """Whether the folder has a result that needs no second look."""
  try:
    return _result(folder) is not None and _is_of(cell, folder)
  except (RunError, OSError):
    return False


def _why_not(folder: Path) -> str:
  """Why a cell has no result."""
  if folder.exists() and not folder.is_dir():
    return f"{folder}: is a file, expected a folder"
  try:
    noted = outputs.read_json(folder / ERROR) or {}
  except RunError as error:
    return str(error)
  return str(noted.get("error", "not finished; another process may be at it"))


def _is_of(cell: Cell, folder: Path) -> bool:
  """Whether what the folder holds, if anything, was made by this cell."""
  record = outputs.read_json(folder / outputs.CONFIG)
  return record is None or record.get("cell") == json.loads(json.dumps(cell.to_dict()))


def _try(cell: Cell, number: str, workdir: Path, preset: str, debug: bool) -> None:
  """Runs a cell if it is to be run; a failure is printed and noted in its folder."""
  folder, began = workdir / cell.folder, time.monotonic()
  try:
    with claimed(folder) as is_ours:
      if not is_ours or _is_finished(cell, folder):
        return
      print(f"{number} {cell.experiment} {cell.name}", flush=True)
      (folder / ERROR).unlink(missing_ok=True)
      _run(cell, folder, preset)
  except Interrupted as stopped:
    message = f"stopped; the same command with --workdir={workdir} goes on from here"
    raise Interrupted(message, stopped.exit_status - 128) from stopped
  except Exception as error:  # whatever it is, the other cells are worth having
    if debug:
      traceback.print_exc()
    message = f"{type(error).__name__}: {' '.join(str(error).split())}"[:ERROR_LENGTH]
    with contextlib.suppress(OSError, RunError):  # it may be the folder that is wrong
      outputs.write_json(folder / ERROR, {"error": message})
    print(f"  FAILED: {message}", flush=True)
  else:
    print(f"  {time.monotonic() - began:.0f} s", flush=True)


def _run(cell: Cell, folder: Path, preset: str) -> None:
  if not _is_of(cell, folder):
    raise RunError(f"{folder}: made with other settings; delete it or use another --workdir")
  _result(folder)  # a broken one is not to be written over
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
    init_from=None if cell.init_from is None else Path(cell.init_from) / cell.folder,
  )
  record = {"task": "diagnostics", "cell": cell.to_dict(), "versions": result.versions()}
  loop.train(make_task(cell), run, cell.optim, record)
