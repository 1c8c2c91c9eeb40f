"""Batches of synthetic tasks: seeded, exactly resumable, one share per host."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from data.synthetic_task import Batch, SyntheticTask, check_int

# Folded into a seed's key before anything else is; evaluations have all numbers from the second.
_TRAINING, _EVALUATION = 0, 1
_LARGEST = 2**32 - 1  # of what is folded into a key: seeds, indices of batches and of rows


@dataclasses.dataclass(frozen=True)
class Curriculum:
  """Tasks in stages, for training: easier ones first, say.

  Attributes:
    stages: (task, steps) pairs: each task gives that many batches, and the last one goes on
      without end, whatever its steps. Lengths may differ, features and classes may not.

  Raises:
    ValueError: naming the stage, what came and what is right.
  """

  stages: tuple[tuple[SyntheticTask, int], ...]

  def __post_init__(self):
    object.__setattr__(self, "stages", _checked_stages(self.stages))

  @property
  def input_features(self) -> int:
    """Features of a token, the same in all stages."""
    return self.stages[0][0].input_features

  @property
  def classes(self) -> int:
    """Number of answers to choose from, the same in all stages."""
    return self.stages[0][0].classes

  def task_at(self, batch: int) -> SyntheticTask:
    """The task that batch number `batch`, from 0, is drawn from."""
    for task, steps in self.stages[:-1]:
      if batch < steps:
        return task
      batch -= steps
    return self.stages[-1][0]


class TrainBatches(Iterator[Batch]):
  """What `batches` returns; its position can be saved."""

  def __init__(
    self, task: SyntheticTask | Curriculum, seed: int, first_row: int, rows: int
  ) -> None:
    self._task, self._seed = task, seed
    self._first_row, self._rows = first_row, rows
    self._next = 0

  def __next__(self) -> Batch:
    """The next batch."""
    task = self._task.task_at(self._next) if isinstance(self._task, Curriculum) else self._task
    position = np.array([self._seed, self._next, self._first_row], np.uint32)
    batch = _training_rows(task, position, self._rows)
    self._next += 1
    return batch

  def get_state(self) -> dict[str, int]:
    """Returns the position as a JSON value."""
    return {"next_batch": self._next}

  def set_state(self, state: Any) -> None:
    """Continues from a position.

    Args:
      state: what `get_state` gave, of an iterator over the same task with the same seed.

    Raises:
      ValueError: if it is no such value.
    """
    if not isinstance(state, dict) or set(state) != {"next_batch"}:
      raise ValueError(f"state: got {state!r}, expected {{'next_batch': number of the batch}}")
    check_int("next_batch", state["next_batch"], minimum=0, maximum=_LARGEST)
    self._next = int(state["next_batch"])


def batches(
  task: SyntheticTask | Curriculum,
  batch_size: int,
  seed: int = 0,
  host_index: int = 0,
  host_count: int = 1,
) -> TrainBatches:
  """Iterates over training batches, without end.

  Batch n depends on the task, the seed and n alone, so that resuming is exact. A host makes its
  contiguous rows of each global batch, and the global batch does not depend on the number of
  hosts. In a curriculum, batch n is batch n of the task whose stage n falls into. Each task of a
  curriculum is compiled once.

  Args:
    task: what to draw from: a task, or a curriculum of tasks.
    batch_size: rows of the global batch, over all hosts.
    seed: all samples follow from it, in [0, 2**32).
    host_index: which share of each global batch, in [0, host_count).
    host_count: number of hosts that share each global batch; it divides `batch_size`.

  Returns:
    An iterator over dicts as of `SyntheticTask.sample`, with batch_size // host_count rows.
    `get_state()` is JSON-able; `set_state` of it on an iterator made with the same arguments
    continues with exactly the batches that would have followed.

  Raises:
    ValueError: if an argument is out of its range.
  """
  if not isinstance(task, Curriculum):
    _check_task("task", task)
  check_int("batch_size", batch_size, maximum=_LARGEST)
  check_int("seed", seed, minimum=0, maximum=_LARGEST)
  check_int("host_count", host_count)
  check_int("host_index", host_index, minimum=0, maximum=host_count - 1)
  if batch_size % host_count:
    raise ValueError(
      f"batch_size: got {batch_size}, expected a multiple of host_count = {host_count}"
    )
  rows = batch_size // host_count
  return TrainBatches(task, seed, host_index * rows, rows)


@dataclasses.dataclass(frozen=True)
class _EvalBatches:
  task: SyntheticTask
  count: int
  batch_size: int
  seed: int
  stream: int

  def __iter__(self) -> Iterator[Batch]:
    for first in range(0, self.count, self.batch_size):
      stream = _EVALUATION + self.stream
      position = np.array([self.seed, stream, first, self.count], np.uint32)
      yield _evaluation_rows(self.task, position, self.batch_size)


def eval_batches(
  task: SyntheticTask, count: int, batch_size: int, seed: int = 0, stream: int = 0
) -> Iterable[Batch]:
  """Samples for evaluation, from keys that training uses with no seed.

  Sample i depends on the task, the seed and i alone. Where a task has few different samples, as
  `NoHarm` has, training meets equal ones all the same.

  Args:
    task: what to draw from.
    count: number of samples.
    batch_size: rows of a batch.
    seed: all samples follow from it, in [0, 2**32).
    stream: which of several independent evaluations, >= 0: one chooses a checkpoint, say, and
      another measures it.

  Returns:
    What can be iterated over as often as needed, giving dicts as of `SyntheticTask.sample`. The
    last batch is padded to full size with rows of zeros, whose "mask" is False.

  Raises:
    ValueError: if an argument is out of its range.
  """
  _check_task("task", task)
  check_int("count", count, maximum=_LARGEST)
  check_int("batch_size", batch_size, maximum=_LARGEST)
  check_int("seed", seed, minimum=0, maximum=_LARGEST)
  check_int("stream", stream, minimum=0, maximum=_LARGEST - _EVALUATION)
  return _EvalBatches(task, int(count), int(batch_size), int(seed), int(stream))


def _compiled(function: Callable[..., Batch]) -> Callable[..., Batch]:
  """Compiles a function of (task, position, rows) whose first and last argument are static."""

  @functools.cache
  def jitted() -> Callable[..., Batch]:
    # Random numbers compile slowly on a CPU, and run no faster for it at the higher levels. Asked
    # for late: the backend must not be chosen by an import.
    options = {"xla_backend_optimization_level": 1} if jax.default_backend() == "cpu" else None
    return jax.jit(function, static_argnums=(0, 2), compiler_options=options)

  return functools.wraps(function)(lambda *arguments: jitted()(*arguments))


@_compiled
def _training_rows(task: SyntheticTask, position: jax.Array, rows: int) -> Batch:
  seed, batch, first = position
  return task.sample_rows(jax.random.fold_in(_stream(seed, _TRAINING), batch), first, rows)


@_compiled
def _evaluation_rows(task: SyntheticTask, position: jax.Array, rows: int) -> Batch:
  seed, stream, first, count = position
  batch = task.sample_rows(_stream(seed, stream), first, rows)
  left = count - first
  is_sample = jnp.arange(rows, dtype=jnp.uint32) < left

  def padded(values: jax.Array) -> jax.Array:
    rest = (1,) * (values.ndim - 1)
    return jnp.where(is_sample.reshape(-1, *rest), values, jnp.zeros_like(values))

  return jax.tree.map(padded, batch)


def _stream(seed: jax.Array, stream: int | jax.Array) -> jax.Array:
  # The generator is named, for JAX's settings can change which one is the default.
  return jax.random.fold_in(jax.random.key(seed, impl="threefry2x32"), stream)


def _check_task(name: str, task: Any) -> None:
  if not isinstance(task, SyntheticTask):
    raise ValueError(f"{name}: got {task!r}, expected a task of data.synthetic")


def _checked_stages(stages: Any) -> tuple[tuple[SyntheticTask, int], ...]:
  stages = tuple(stages)
  if not stages:
    raise ValueError("stages: got none, expected at least one pair of a task and its steps")
  for index, stage in enumerate(stages):
    name = f"stages[{index}]"
    if not isinstance(stage, (tuple, list)) or len(stage) != 2:
      raise ValueError(f"{name}: got {stage!r}, expected a pair of a task and its steps")
    task, steps = stage
    _check_task(f"{name}, task", task)
    check_int(f"{name}, steps", steps)
    for field in ("input_features", "classes"):
      got, right = getattr(task, field), getattr(stages[0][0], field)
      if got != right:
        raise ValueError(
          f"{name}: got {field} = {got}, expected {right} as in the first stage: one model learns"
          " all stages"
        )
  return tuple((task, int(steps)) for task, steps in stages)
