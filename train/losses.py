"""Losses. Each returns sums, not means, so that batches of any size add up exactly."""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from data.repeats import REPEATS

Sums = dict[str, jax.Array]
Batch = Mapping[str, jax.Array]
LossFn = Callable[[nnx.Module, Batch, jax.Array | None], Sums]


class Carried(NamedTuple):
  """A loss whose batches go on where the last ones stopped.

  Attributes:
    loss: `loss(model, carry, batch, key) -> (sums, carry)`; every array of the carry has a row for
      each of the batch.
    init: `init(model, rows) -> carry`, before the first batch.
  """

  loss: Callable[[nnx.Module, Any, Batch, jax.Array | None], tuple[Sums, Any]]
  init: Callable[[nnx.Module, int], Any]


def as_carried(loss: LossFn | Carried) -> Carried:
  """A loss that hands nothing on as one that does."""
  if isinstance(loss, Carried):
    return loss
  return Carried(
    loss=lambda model, carry, batch, key: (loss(model, batch, key), carry),
    init=lambda model, rows: (),
  )


def token_nats(logits: jax.Array, targets: jax.Array) -> jax.Array:
  """Cross-entropy of every token.

  Args:
    logits: [..., vocab], any float type; computed in float32.
    targets: int [...].

  Returns:
    float32 [...], nats.
  """
  logits = logits.astype(jnp.float32)
  chosen = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
  return jax.nn.logsumexp(logits, axis=-1) - chosen


def language_loss(model: nnx.Module, batch: Batch, key: jax.Array | None) -> Sums:
  """Next-token prediction, every row from an empty memory.

  Args:
    model: called as `model(tokens, key=key)`, and with `reset=` if there is one in the batch;
      returns logits [batch, tokens, vocab].
    batch: see `language_sums`, and "inputs" int32 [batch, tokens], optionally "reset" bool of that
      shape: True on the first token of a document.
    key: dropout key, or None for evaluation.

  Returns:
    As `language_sums`.
  """
  borders = {"reset": batch["reset"]} if "reset" in batch else {}
  return language_sums(model(batch["inputs"], key=key, **borders), batch)


def _stream_loss(model: nnx.Module, stream: Any, batch: Batch, key: jax.Array | None):
  """`language_loss`, each row going on from its stream, or anew where "restart" [batch] is True."""
  if "restart" in batch:
    fresh = model.init_stream(len(batch["restart"]))
    stream = jax.tree.map(functools.partial(_where_rows, batch["restart"]), fresh, stream)
  mask = batch.get("mask")  # False behind the end of a stream alone
  count = None if mask is None else mask.sum(axis=1, dtype=jnp.int32)
  logits, stream = model.onward(batch["inputs"], stream, count, reset=batch.get("reset"), key=key)
  return language_sums(logits, batch), stream


stream_loss = Carried(_stream_loss, lambda model, rows: model.init_stream(rows))


def language_sums(logits: jax.Array, batch: Batch) -> Sums:
  """Sums over the targets that count.

  Args:
    logits: [batch, tokens, vocab].
    batch: "targets" int32 [batch, tokens], optionally "mask" bool: True where a target counts.
      Optionally "repeat" int32: where a target was seen before, an index into `REPEATS`.

  Returns:
    "loss": nats summed over the targets that count; "weight": how many they are. With "repeat", the
    same of each kind, as "near_loss" and "near".
  """
  nats = token_nats(logits, batch["targets"])
  mask = batch.get("mask", jnp.ones(nats.shape, bool))
  sums = {"loss": _sum(nats, mask), "weight": mask.sum(dtype=jnp.float32)}
  if "repeat" in batch:
    for index, name in enumerate(REPEATS):
      of_kind = mask & (batch["repeat"] == index)
      sums[f"{name}_loss"] = _sum(nats, of_kind)
      sums[name] = of_kind.sum(dtype=jnp.float32)
  return sums


def _where_rows(rows: jax.Array, new: jax.Array, old: jax.Array) -> jax.Array:
  return jnp.where(rows.reshape(-1, *(1,) * (new.ndim - 1)), new, old)


def _sum(values: jax.Array, mask: jax.Array) -> jax.Array:
  return jnp.where(mask, values, 0.0).sum()


def classification_loss(model: nnx.Module, batch: Batch, key: jax.Array | None) -> Sums:
  """Classes of the tokens that ask for one.

  Args:
    model: called as `model(inputs, key=key)`, returns logits [batch, tokens, classes].
    batch: see `classification_sums`, and "inputs" [batch, tokens, features].
    key: dropout key, or None for evaluation.

  Returns:
    As `classification_sums`.
  """
  return classification_sums(model(batch["inputs"], key=key), batch)


def classification_sums(logits: jax.Array, batch: Batch) -> Sums:
  """Sums over the targets that count.

  Args:
    logits: [batch, tokens, classes].
    batch: "targets" int32 and "mask" bool [batch, tokens]: True where a target counts; optionally
      "observed" bool of that shape, True on targets that could be known.

  Returns:
    "loss" in nats, "accuracy" (right answers) and "weight" (targets); with "observed", the same of
    those alone as "observed" (targets) and "observed_accuracy" (right answers).
  """
  mask, targets = batch["mask"], batch["targets"]
  right = (jnp.argmax(logits, axis=-1) == targets) & mask
  sums = {
    "loss": jnp.where(mask, token_nats(logits, targets), 0.0).sum(),
    "accuracy": right.sum(dtype=jnp.float32),
    "weight": mask.sum(dtype=jnp.float32),
  }
  if "observed" in batch:
    observed = batch["observed"] & mask
    sums["observed"] = observed.sum(dtype=jnp.float32)
    sums["observed_accuracy"] = (right & observed).sum(dtype=jnp.float32)
  return sums
