"""Classes of videos: the loss in training, and how often the class is right."""

import jax
import jax.numpy as jnp
from flax import nnx

from train.losses import Batch, LossFn, Sums, token_nats

TOP = 5


def smoothed_loss(smoothing: float) -> LossFn:
  """The loss of training, with some of the target's weight on all classes alike.

  Args:
    smoothing: that weight, in [0, 1).

  Returns:
    `loss(model, batch, key)`, as `classification_quality`, "loss" and "weight" alone.

  Reference: Szegedy et al. (2016), arXiv 1512.00567, section 7.
  """

  def loss(model: nnx.Module, batch: Batch, key: jax.Array | None) -> Sums:
    logits = model(batch["frames"], key=key)
    nats = token_nats(logits, batch["label"])
    every = jax.nn.logsumexp(logits, axis=-1) - jnp.mean(logits, axis=-1)  # mean over classes
    return _sums(batch, loss=(1 - smoothing) * nats + smoothing * every)

  return loss


def classification_quality(model: nnx.Module, batch: Batch, key: jax.Array | None) -> Sums:
  """How well the class of each clip is told after its last frame.

  Args:
    model: a `tmem.video_models.VideoClassifier`.
    batch: "frames" [batch, frames, height, width, channels]; "label" [batch] int32; optionally
      "mask" [batch] bool, False on rows that are none.
    key: None.

  Returns:
    Sums over clips: "loss" in nats, "top1" and "top5", how many have their class among the so many
    likeliest, and "weight", the clips.
  """
  logits = model(batch["frames"], key=key)
  own = jnp.take_along_axis(logits, batch["label"][:, None], axis=-1)
  # Of equals the first counts as likelier, as for argmax.
  before = jnp.arange(logits.shape[-1]) < batch["label"][:, None]
  rank = jnp.sum(~(logits < own) & ((logits != own) | before), axis=-1)
  return _sums(batch, loss=token_nats(logits, batch["label"]), top1=rank < 1, top5=rank < TOP)


def _sums(batch: Batch, **values: jax.Array) -> Sums:
  exists = batch.get("mask", jnp.ones(len(batch["label"]), bool))
  sums = {
    name: jnp.where(exists, value, 0).sum(dtype=jnp.float32) for name, value in values.items()
  }
  return sums | {"weight": exists.sum(dtype=jnp.float32)}
