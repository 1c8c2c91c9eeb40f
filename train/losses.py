"""Losses. Each returns sums, not means, so that batches of any size add up exactly."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from flax import nnx

Sums = dict[str, jax.Array]


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


def language_loss(model: nnx.Module, batch: Mapping[str, jax.Array], key: jax.Array | None) -> Sums:
  """Next-token prediction.

  Args:
    model: called as `model(tokens, key=key)`, returns logits [batch, tokens, vocab].
    batch: "inputs" and "targets" int32 [batch, tokens], optionally "mask" bool: True where a
      target counts.
    key: dropout key, or None for evaluation.

  Returns:
    "loss": nats summed over the targets that count; "weight": how many they are.
  """
  nats = token_nats(model(batch["inputs"], key=key), batch["targets"])
  mask = batch.get("mask")
  if mask is None:
    return {"loss": nats.sum(), "weight": jnp.float32(nats.size)}
  return {"loss": jnp.where(mask, nats, 0.0).sum(), "weight": mask.sum(dtype=jnp.float32)}


def classification_loss(
  model: nnx.Module, batch: Mapping[str, jax.Array], key: jax.Array | None
) -> Sums:
  """Classes of the tokens that ask for one.

  Args:
    model: called as `model(inputs, key=key)`, returns logits [batch, tokens, classes].
    batch: see `classification_sums`, and "inputs" [batch, tokens, features].
    key: dropout key, or None for evaluation.

  Returns:
    As `classification_sums`.
  """
  return classification_sums(model(batch["inputs"], key=key), batch)


def classification_sums(logits: jax.Array, batch: Mapping[str, jax.Array]) -> Sums:
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
