"""What the loop needs to know about a task."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import jax
import numpy as np
from flax import nnx

from train.losses import Carried, LossFn

GATE = "gate_"  # what names of fusion gates begin with in metrics.jsonl
WARNING = "warning"  # a line of text in a record of metrics.jsonl, which the terminal shows, too
HostBatch = Mapping[str, np.ndarray | jax.Array]


class TrainBatches(Iterator[HostBatch], Protocol):
  """An endless iterator over this host's rows of each batch, whose position can be saved."""

  def get_state(self) -> Any:
    """Returns the position as a JSON value."""

  def set_state(self, state: Any) -> None:
    """Continues from a position."""


def fusion_gates(model: nnx.Module) -> dict[str, float]:
  """How far each block's memory is let through, by "gate_block_<index>"."""
  return {f"{GATE}{block}": value for block, value in model.fusion_gates().items()}


@dataclasses.dataclass(frozen=True)
class Task:
  """A task as functions. `train.loop` runs it; it knows nothing else about it.

  Attributes:
    name: "language", ...
    item: what throughput counts, in the plural: "tokens".
    count_items: items of a global batch.
    splits: evaluated splits; the first chooses the best checkpoint.
    protocol: name of the evaluation protocol, for the result.
    build: makes the model from random streams; all its variables are `nnx.Param`.
    loss_fn: `loss_fn(model, batch, key)` returns sums over the batch, with "loss" and "weight"
      among them. Or one whose batches go on where the last ones stopped.
    eval_loss_fn: likewise, of evaluations: `key` is None there, and what else is summed is
      measured.
    train_batches: makes the iterator over training batches, from the first.
    eval_batches: `eval_batches(split, limit)`: the split's batches, of about `limit` tokens or
      examples unless it is 0.
    metrics: `metrics(means, split)`: what is reported of `train.metrics.weighted_means`, "loss"
      among it.
    shown: metrics that the terminal shows while training.
    describe: facts about a trained model for the result.
    export: `export(folder, model)` writes the model where other programs find it, or None.
    figures: `figures(folder, model)` draws what a trained model does, or None.
    watch: numbers about a model that are logged with every evaluation, by name; a line of text
      under `WARNING` if something is wrong.
  """

  name: str
  item: str
  count_items: Callable[[HostBatch], int]
  splits: tuple[str, ...]
  protocol: str
  build: Callable[[nnx.Rngs], nnx.Module]
  loss_fn: LossFn | Carried
  eval_loss_fn: LossFn | Carried
  train_batches: Callable[[], TrainBatches]
  eval_batches: Callable[[str, int], Iterable[HostBatch]]
  metrics: Callable[[dict[str, float], str], dict[str, float]]
  shown: tuple[str, ...]
  describe: Callable[[nnx.Module], dict[str, Any]]
  export: Callable[[Path, nnx.Module], None] | None
  figures: Callable[[Path, nnx.Module], None] | None = None
  watch: Callable[[nnx.Module], dict[str, Any]] = fusion_gates
