"""Whether a model uses its memory: numbers for the log, and a warning when it has collapsed."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from flax import nnx

from tmem.activity import Activity
from tmem.memory import TensorMemory
from tmem.places import by_block
from train.task import WARNING, HostBatch, fusion_gates

ROWS = 4  # of a batch of the validation split that are looked at
GATES = ("input", "forget", "output")
NOWHERE = 0.05  # deviation of coordinates over the distance of two cells: all writes in one place
NEARLY_ALL = 0.95  # share of writes that is as good as all
SHUT = 0.01  # sigmoid(γ) of a block whose memory is not let through


class Health:
  """Looks at the memory of a model on the first rows of a batch, always the same.

  Args:
    batch: makes the batch.
    call: `call(model, inputs)` runs the model, each of its blocks once and none of them inside a
      scan.
    prepare: `prepare(model, batch)` makes those inputs; None: they are the batch.
  """

  def __init__(
    self,
    batch: Callable[[], HostBatch],
    call: Callable[[nnx.Module, Any], Any],
    prepare: Callable[[nnx.Module, dict[str, jax.Array]], Any] | None = None,
  ):
    self._make, self._call, self._prepare, self._batch = batch, call, prepare, None
    self._look = jax.jit(self._activity, static_argnums=0)

  def __call__(self, model: nnx.Module) -> dict[str, Any]:
    """What is logged of a model: its fusion gates and, of a Tensor Memory, what it does.

    Returns:
      Numbers by name, and under `WARNING` a line if the memory has collapsed.
    """
    gates = fusion_gates(model)
    if not isinstance(getattr(model, "memory", None), TensorMemory):
      return gates
    if self._batch is None:
      self._batch = {name: np.asarray(rows)[:ROWS] for name, rows in self._make().items()}
    found = jax.device_get(self._look(*nnx.split(model), self._batch))
    problems = _problems(found, model.config.memory.grid, gates)
    numbers = {**gates, **_numbers(found), "memory_collapsed": float(bool(problems))}
    if problems:
      numbers[WARNING] = f"the memory has collapsed: {'; '.join(problems)}"
    return numbers

  def _activity(self, graphdef, params, batch) -> dict[int, Activity]:
    model = nnx.merge(graphdef, params)
    inputs = batch if self._prepare is None else self._prepare(model, batch)
    return by_block(model, lambda model: self._call(model, inputs), "activity")


def _numbers(found: dict[int, Activity]) -> dict[str, float]:
  """One number of each kind over all blocks: the extreme, or the mean of shares."""
  blocks = Activity(*(np.stack(values) for values in zip(*found.values(), strict=True)))
  shares = {
    f"memory_{gate}_{name}": values[:, index].mean()
    for name, values in (("shut", blocks.shut), ("open", blocks.open))
    for index, gate in enumerate(GATES)
  }
  numbers = {
    "memory_cell_max": blocks.cell_max.max(),
    **shares,
    "memory_sigma_min": blocks.sigma[:, 0].min(),
    "memory_sigma_mean": blocks.sigma[:, 1].mean(),
    "memory_sigma_max": blocks.sigma[:, 2].max(),
    "memory_write_spread": blocks.spread.max(axis=1).min(),
    "memory_writes_lost": blocks.lost.mean(),
    "memory_writes_alike": blocks.alike.mean(),
  }
  return {name: float(value) for name, value in numbers.items()}


def _problems(
  found: dict[int, Activity], grid: tuple[int, ...], gates: dict[str, float]
) -> list[str]:
  """What is wrong, in words; one cell is always one place, and all cells alike."""
  problems = []
  if gates and max(gates.values()) < SHUT:
    problems.append(f"no block lets more than {SHUT:.0%} of it through (sigmoid of γ)")
  distances = np.array([2 / (size - 1) for size in grid[::-1] if size > 1])
  axes = [axis for axis, size in enumerate(grid[::-1]) if size > 1]
  several = bool(axes)

  def blocks(happens: Callable[[Activity], Any]) -> str:
    wrong = [str(block) for block, activity in found.items() if happens(activity)]
    return f"in block {', '.join(wrong)}" if wrong else ""

  if several and (where := blocks(lambda a: np.all(a.spread[axes] < NOWHERE * distances))):
    problems.append(f"all writes go to one place {where}")
  if where := blocks(lambda a: a.lost > NEARLY_ALL):
    problems.append(f"writes are so narrow that they reach no cell {where} (see --sigma_min)")
  if several and (where := blocks(lambda a: a.alike > NEARLY_ALL)):
    problems.append(f"writes are so wide that all cells get the same {where} (see --sigma_max)")
  return problems
