"""Checkpoints: written atomically, restored exactly, never into another model.

One folder per checkpoint, `checkpoints/<step>/`, with the items `params`, `optimizer`, `carry`
(where batches go on from the last ones) and `progress` (JSON: where the run is, and the path, type
and shape of every array). A checkpoint is written beside its place and renamed into it, so what a
killed save leaves behind never looks like a checkpoint. The newest checkpoints are kept, and the
best one of each of them.
"""

import contextlib
import functools
import re
import shutil
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import absl.logging
import jax
import numpy as np
import orbax.checkpoint as ocp

from train import outputs, processes
from train.errors import RunError
from train.state import TrainState

_NAME = outputs.CHECKPOINT_NAME
_START_AGAIN = "; remove that folder to start again, or choose another --workdir"
_UNFINISHED = "unfinished."
_PATIENCE = 5.0  # seconds for a thread of Orbax's to end after an error
# Ours, and what Orbax makes of them while it writes.
_UNFINISHED_NAME = re.compile(rf"unfinished\.{_NAME.pattern}(?:\.orbax-checkpoint-tmp.*)?")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
  """Keeps off the terminal what Orbax's threads say of an error that it raises as well."""
  verbosity, known = absl.logging.get_verbosity(), threading.enumerate()
  hooks = sys.unraisablehook, threading.excepthook
  absl.logging.set_verbosity(absl.logging.FATAL)
  sys.unraisablehook = threading.excepthook = lambda *_: None
  try:
    yield
  except Exception:
    for thread in set(threading.enumerate()).difference(known):  # those that have yet to notice
      threading.Thread.join(thread, _PATIENCE)  # Orbax's own raises the thread's error
    raise
  finally:
    sys.unraisablehook, threading.excepthook = hooks
    absl.logging.set_verbosity(verbosity)


def _or_told(save: Any) -> Any:
  """Has `Checkpoints.save` say in one line that there is no room, and leave no half checkpoint."""

  @functools.wraps(save)
  def told(self: "Checkpoints", state: TrainState, progress: dict[str, Any]) -> Path:
    try:
      with _quiet():
        return save(self, state, progress)
    except Exception as error:  # Orbax quotes the system in errors of several kinds
      reason = outputs.refusal(error)
      if reason is None:
        raise
      if jax.process_index() == 0:
        self._remove_unfinished()
      raise outputs.cannot_write(self.directory, reason) from error

  return told


class Checkpoints:
  """The checkpoints of one run.

  Attributes:
    directory: where they lie; other files in it are left alone.
    keep: how many of the newest to keep, besides the best.
  """

  def __init__(self, directory: Path, keep: int = 2):
    self.directory = Path(directory).absolute()
    self.keep = keep
    self._orbax = ocp.Checkpointer(ocp.CompositeCheckpointHandler())
    self._json = ocp.JsonCheckpointHandler()  # one process reads alone: no waiting for the others

  @_or_told
  def save(self, state: TrainState, progress: dict[str, Any]) -> Path:
    """Writes a checkpoint and removes those that are no longer needed.

    Args:
      state: the training state.
      progress: JSON values; "best_step" names the step of the best checkpoint so far.

    Returns:
      The folder of the checkpoint.

    Raises:
      RunError: if it cannot be written; the checkpoints before it stay.
    """
    items = _items(state)
    meta = {"progress": progress, "arrays": {name: _shapes(flat) for name, flat in items.items()}}
    is_first, step = jax.process_index() == 0, int(state.step)
    final = self.directory / processes.peers().first_says(self._free_name(step) if is_first else "")
    unfinished = self.directory / f"{_UNFINISHED}{final.name}"
    if is_first:
      self.directory.mkdir(parents=True, exist_ok=True)
      _remove(unfinished)
    self._orbax.save(
      unfinished,
      args=ocp.args.Composite(
        progress=ocp.args.JsonSave(meta),
        **{name: ocp.args.StandardSave(_with_elements(flat)) for name, flat in items.items()},
      ),
    )
    if is_first:
      unfinished.rename(final)
      self._remove_unneeded(final)
    processes.peers().first_says(None)  # nobody goes on, or ends, before it has its name
    return final

  def restore(self, abstract: TrainState) -> tuple[TrainState, dict[str, Any]] | None:
    """Restores the newest checkpoint that can be read.

    Args:
      abstract: TrainState of shapes, types and shardings; the mesh need not be the one that the
        checkpoint was written on.

    Returns:
      (state, progress), or None if there are no checkpoints.

    Raises:
      RunError: if the checkpoint is of another model, or if none can be read.
    """
    found = self._restore_newest(self._agreed_paths(), _items(abstract), _START_AGAIN)
    if found is None:
      return None
    arrays, progress, step = found
    leaves = [leaf for item in arrays.values() for leaf in item.values()]
    tree = jax.tree.structure((abstract.params, abstract.opt_state, abstract.carry))
    params, opt_state, carry = jax.tree.unflatten(tree, leaves)
    counters = [
      jax.device_put(np.int32(value), like.sharding)
      for value, like in ((step, abstract.step), (progress["skipped"], abstract.skipped))
    ]
    return TrainState(counters[0], params, opt_state, counters[1], carry), progress

  def restore_params(
    self, abstract_params: Any, chosen: Path | None = None
  ) -> tuple[Any, int] | None:
    """Restores the parameters of a checkpoint.

    Args:
      abstract_params: nested dict of shapes, types and shardings.
      chosen: its folder; None: the best checkpoint, or the newest while none is best.

    Returns:
      (params, step), or None if there is no such checkpoint, or none at all.

    Raises:
      RunError: if the checkpoint is of another model, or if none can be read.
    """
    paths = self._agreed_paths()
    if chosen is None:
      best = processes.peers().first_says(self._known_best(paths))
      preferred = [path for path in paths if _step(path) == best] + paths
    else:
      preferred = [path for path in paths if path.name == chosen.name]
    found = self._restore_newest(preferred, {"params": _flat(abstract_params)})
    if found is None:
      return None
    arrays, _, step = found
    tree = jax.tree.structure(abstract_params)
    return jax.tree.unflatten(tree, arrays["params"].values()), step

  def _restore_newest(self, paths: list[Path], items: dict[str, Any], remedy: str = ""):
    failure = None
    for path in paths:
      meta, problem = processes.peers().first_says(self._try_meta(path))
      if problem:
        failure = failure or (path, problem)
        continue
      saved = meta["arrays"]
      for name, flat in items.items():
        _check_same_arrays(path, name, saved.get(name, {}), _shapes(flat))
      try:
        restored = self._orbax.restore(
          path,
          args=ocp.args.Composite(
            **{name: ocp.args.StandardRestore(_with_elements(flat)) for name, flat in items.items()}
          ),
        )
        problem = None
      except Exception as error:
        problem = _first_line(error)
      if problem := processes.peers().first_problem(problem):
        failure = failure or (path, problem)
        continue
      if failure:
        _warn(f"{failure[0]} cannot be read; going back to {path.name}")
      arrays = {
        name: {
          key: restored[name][key] if leaf.size else _nothing(leaf) for key, leaf in flat.items()
        }
        for name, flat in items.items()
      }
      return arrays, meta["progress"], _step(path)
    if failure:
      raise RunError(
        f"{self.directory}: no checkpoint can be read ({failure[0].name}: {failure[1]})" + remedy
      )
    return None

  def _read_meta(self, path: Path) -> dict[str, Any]:
    meta = dict(self._json.restore(path / "progress"))
    if not isinstance(meta["arrays"], dict):
      raise ValueError("its list of arrays is none")
    return meta

  def _try_meta(self, path: Path) -> tuple[dict[str, Any] | None, str | None]:
    """What `_read_meta` reads and None, or None and the problem with it."""
    try:
      return self._read_meta(path), None
    except Exception as error:  # whatever a broken file makes the libraries raise
      return None, _first_line(error)

  def _known_best(self, paths: list[Path]) -> int | None:
    known = (step for path in paths if (step := self._best_step(path)) is not None)
    return next(known, None)

  def _best_step(self, path: Path) -> int | None:
    try:
      return self._read_meta(path)["progress"].get("best_step")
    except Exception:
      return None

  def _paths(self) -> list[Path]:
    """Checkpoints, newest first."""
    if not self.directory.is_dir():
      return []
    paths = [p for p in self.directory.iterdir() if p.is_dir() and _NAME.fullmatch(p.name)]
    return sorted(paths, key=_order, reverse=True)

  def _agreed_paths(self) -> list[Path]:
    """Checkpoints as process 0 sees them, newest first."""
    names = processes.peers().first_says([path.name for path in self._paths()])
    return [self.directory / name for name in names]

  def _free_name(self, step: int) -> str:
    """A step that is saved again gets the next number: nothing is ever replaced in place."""
    named = [p for p in self.directory.glob(f"{step:08d}*") if _NAME.fullmatch(p.name)]
    taken = [_order(path)[1] for path in named if _step(path) == step]  # by files, too
    suffix = f".{max(taken) + 1}" if taken else ""
    return f"{step:08d}{suffix}"

  def _remove_unneeded(self, saved: Path) -> None:
    # What is newer than the one just saved could not be read, and the run went back behind it: such
    # a checkpoint is left alone, and must not count as one of those to keep.
    paths = [path for path in self._paths() if _order(path) <= _order(saved)]
    newest = paths[: self.keep]
    best = {self._best_step(path) for path in newest}
    needed = {
      path
      for path in paths
      if path in newest
      or (_step(path) in best and path == next(p for p in paths if _step(p) == _step(path)))
    }
    for path in paths:
      if path not in needed:
        # Renamed first: a removal that is cut short must not leave half a checkpoint.
        _remove(path.rename(self.directory / f"{_UNFINISHED}{path.name}"))
    self._remove_unfinished()

  def _remove_unfinished(self) -> None:
    for path in self.directory.glob(f"{_UNFINISHED}*"):
      if _UNFINISHED_NAME.fullmatch(path.name) and path.is_dir():
        shutil.rmtree(path, ignore_errors=True)


def _items(state: TrainState) -> dict[str, dict[str, Any]]:
  items = {"params": _flat(state.params), "optimizer": _flat(state.opt_state)}
  carry = _flat(state.carry)
  return items | {"carry": carry} if carry else items


def _flat(tree: Any) -> dict[str, Any]:
  """Leaves by path, in the order of the tree."""
  leaves = jax.tree_util.tree_leaves_with_path(tree)
  return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


def _with_elements(flat: dict[str, Any]) -> dict[str, Any]:
  """Those that Orbax can write: arrays without elements are known from their shapes."""
  return {path: leaf for path, leaf in flat.items() if leaf.size}


def _nothing(like: jax.ShapeDtypeStruct) -> jax.Array:
  return jax.device_put(np.zeros(like.shape, like.dtype), like.sharding)


def _shapes(flat: dict[str, Any]) -> dict[str, str]:
  return {path: f"{leaf.dtype}{list(leaf.shape)}" for path, leaf in flat.items()}


def _check_same_arrays(path: Path, item: str, saved: dict[str, str], model: dict[str, str]) -> None:
  """Raises RunError naming the first array that differs."""
  for name in sorted(saved.keys() | model.keys()):
    if saved.get(name) != model.get(name):
      raise RunError(
        f"{path} is of another model: {item}/{name} is {saved.get(name, 'missing')} in the"
        f" checkpoint and {model.get(name, 'missing')} in this model"
      )


def _order(path: Path) -> tuple[int, int]:
  step, attempt = _NAME.fullmatch(path.name).groups()
  return int(step), int(attempt or 0)


def _step(path: Path) -> int:
  return _order(path)[0]


def _remove(path: Path) -> None:
  if path.exists():
    shutil.rmtree(path)


def _first_line(error: Exception) -> str:
  return (str(error).strip().splitlines() or [type(error).__name__])[0][:150]


def _warn(message: str) -> None:
  print(f"warning: {message}", file=sys.stderr, flush=True)
