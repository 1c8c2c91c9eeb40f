"""A cell of the diagnostic suite as a task of the loop: samples in, loss over the answers out."""

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from data import synthetic
from tmem import interop
from tmem.chunks import in_blocks
from tmem.memory import TensorMemory
from tmem.models import SequenceModel
from tmem.places import axes_penalty, recorded
from train.cells import VALID, Cell
from train.losses import Sums, classification_loss, classification_sums
from train.task import Task
from train.truncated import truncated_sums

GATE = "gate_block_"
EVAL_TOKENS = 2**17  # in a batch of an evaluation


def make_task(cell: Cell) -> Task:
  """Describes a cell to the loop.

  Args:
    cell: the cell.

  Returns:
    The task; its splits are the tests of the cell.
  """

  def train_batches():
    return synthetic.batches(
      cell.training, cell.batch_size, cell.seed, jax.process_index(), jax.process_count()
    )

  def eval_batches(split: str, limit: int) -> Iterable[synthetic.Batch]:
    task = cell.tests[split]
    rows = max(1, min(cell.eval_samples, EVAL_TOKENS // task.length))
    rows = -(-rows // jax.device_count()) * jax.device_count()
    # What chooses the checkpoint must not be what measures it.
    stream = 0 if split == VALID else 1
    return synthetic.eval_batches(task, limit or cell.eval_samples, rows, cell.seed, stream)

  return Task(
    name="diagnostics",
    item="tokens",
    count_items=lambda batch: batch["targets"].size,
    splits=tuple(cell.tests),
    protocol=f"{cell.eval_samples} samples",
    build=lambda rngs: SequenceModel(cell.model, rngs=rngs),
    loss_fn=make_loss(cell),
    eval_loss_fn=_with_gates(make_loss(cell)),
    train_batches=train_batches,
    eval_batches=eval_batches,
    metrics=classification_metrics,
    shown=("accuracy", "loss"),
    describe=lambda model: describe(cell, model),
    export=interop.save_model,
  )


def classification_metrics(means: dict[str, float], split: str) -> dict[str, float]:
  """What is reported of the means over the targets of a test; accuracies are in [0, 1]."""
  metrics = {
    name: value
    for name, value in means.items()
    # The gates are the same in every test, and all tests have the same number of samples.
    if name != "weight" and (split == VALID or not name.startswith(GATE))
  }
  observed = metrics.pop("observed", 1.0)
  if not observed:
    metrics.pop("observed_accuracy")
  elif "observed_accuracy" in metrics:
    metrics["observed_accuracy"] /= observed
  return metrics


def describe(cell: Cell, model: SequenceModel) -> dict[str, Any]:
  """Facts about a cell and its trained model for the result."""
  return {
    "dataset": cell.experiment,
    "variant": cell.variant,
    "method": cell.method,
    "attention_window": cell.window,
    "causal": model.causal,
    "state_bytes": model.state_bytes(),
    "fusion_gates": model.fusion_gates(),
    "gate_start": float(jax.nn.sigmoid(cell.model.gate_init)),
    "ceilings": {name: task.ceiling() for name, task in cell.tests.items()},
  }


def _with_gates(loss_fn):
  """Adds the fusion gates to what a loss sums, so that evaluations log them."""

  def with_gates(model: SequenceModel, batch: dict[str, jax.Array], key: jax.Array | None) -> Sums:
    sums = loss_fn(model, batch, key)
    gates = {f"{GATE}{layer}": gate for layer, gate in model.gates().items()}
    return sums | {name: gate * sums["weight"] for name, gate in gates.items()}

  return with_gates


def make_loss(cell: Cell):
  """The loss of a cell: `loss_fn(model, batch, key)` as of a task.

  In training, where there is a key, it has the axes penalty of what the memory writes. Long streams
  are fed in segments, and their gradients stop at the borders; there is no dropout then.
  """

  def loss_fn(model: SequenceModel, batch: dict[str, jax.Array], key: jax.Array | None) -> Sums:
    weight = 0.0 if key is None else cell.axes_weight
    if cell.segment is not None:
      return segmented_sums(model, batch, cell.segment, weight)
    return _penalised(model, weight, lambda: (classification_loss(model, batch, key), None))[0]

  return loss_fn


def _penalised(model: SequenceModel, weight: float, call) -> tuple[Sums, Any]:
  """What `call() -> (sums, state)`, which calls `model`, returns, its loss with the axes penalty.

  The penalty counts `weight` times for each target that counts.
  """
  if not weight or not isinstance(model.memory, TensorMemory):
    return call()
  with recorded(model) as places:
    sums, state = call()
  penalty = sum(axes_penalty(own.write_at, own.write) for own in places)
  return sums | {"loss": sums["loss"] + weight * penalty * sums["weight"]}, state


def segmented_sums(
  model: SequenceModel, batch: dict[str, jax.Array], segment: int, axes_weight: float = 0.0
) -> Sums:
  """Sums over streams fed in segments, whose gradients stop at the borders between them.

  Attention sees its own segment only; the memories are all that is handed on.

  Args:
    model: the model.
    batch: as of `train.losses.classification_loss`.
    segment: tokens of a segment; the last one is padded.
    axes_weight: weight of the axes penalty.

  Returns:
    As `train.losses.classification_sums`.
  """
  graphdef, params = nnx.split(model)

  def segment_sums(params, states, part):
    model = nnx.merge(graphdef, params)

    def call():
      logits, after = model.advance(part["inputs"], states, mask=part.get("real"))
      return classification_sums(logits, part), after

    return _penalised(model, axes_weight, call)

  rows, length = batch["targets"].shape
  parts = dict(batch)
  if length % segment:
    parts["real"] = jnp.ones((rows, length), bool)
  segments = jax.tree.map(lambda a: jnp.moveaxis(in_blocks(a, segment), 1, 0), parts)
  return truncated_sums(segment_sums, params, model.init_states(rows), segments)
