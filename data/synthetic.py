"""Synthetic tasks that ask one thing of a memory each, drawn in JAX from a key.

Of each the best possible accuracy is known exactly: `ceiling()`. Nothing is read from disk.
"""

from __future__ import annotations

from collections.abc import Mapping

from data.synthetic_batches import Curriculum, TrainBatches, batches, eval_batches
from data.synthetic_binding import CoordinateBinding, LongRecall
from data.synthetic_map import MapBuilding
from data.synthetic_no_harm import NoHarm
from data.synthetic_occlusion import Occlusion
from data.synthetic_task import Batch, SyntheticTask

__all__ = [
  "TASKS",
  "Batch",
  "CoordinateBinding",
  "Curriculum",
  "LongRecall",
  "MapBuilding",
  "NoHarm",
  "Occlusion",
  "SyntheticTask",
  "TrainBatches",
  "batches",
  "eval_batches",
]

# Every task by its name.
TASKS: Mapping[str, type[SyntheticTask]] = {
  task.name: task for task in (CoordinateBinding, LongRecall, MapBuilding, Occlusion, NoHarm)
}
