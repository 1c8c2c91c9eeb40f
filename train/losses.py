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
