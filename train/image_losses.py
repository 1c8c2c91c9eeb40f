"""Masked reconstruction: the loss in training, and how good an image looks afterwards."""

from typing import NamedTuple

import dm_pix
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from data.image_crops import DEVIATION, MEAN
from tmem.patches import patchify, unpatchify
from tmem.rows import put_rows
from train.losses import Batch, Sums


def reconstruction_loss(model: nnx.Module, batch: Batch, key: jax.Array | None) -> Sums:
  """Squared error of the hidden patches, each with mean 0 and variance 1 of its own.

  Args:
    model: a `tmem.masked_autoencoder.MaskedAutoencoder`.
    batch: "images" [batch, height, width, 3] as of `data.image_crops.normalised`; "visible"
      [batch, n] int32, the patches that the model sees; optionally "mask" [batch] bool, False on
      rows that are none.
    key: dropout key, or None for evaluation.

  Returns:
    "loss": the error's mean over the pixels of a patch, summed over hidden patches; "weight": how
    many those are.

  Reference: arXiv 2111.06377, reconstruction target.
  """
  return _reconstructed(model, batch, key)[0]


def reconstruction_quality(model: nnx.Module, batch: Batch, key: jax.Array | None) -> Sums:
  """The loss, and how far the image with its hidden patches filled in is from the true one.

  Images are compared in [0, 1]. A told patch gets the mean and the variance that the true one has,
  since the model is asked for the rest of it.

  Args:
    model: as in `reconstruction_loss`.
    batch: as in `reconstruction_loss`.
    key: None.

  Returns:
    As `reconstruction_loss`, and, weighted likewise, "mse", "psnr" in decibels and "ssim" of whole
    images, and the same of their hidden pixels as "masked_mse", "masked_psnr" and "masked_ssim".
  """
  sums, told, hidden = _reconstructed(model, batch, key)
  truth, filled, where = _composite(model, batch, told, hidden)
  shape = truth.shape[1:3]
  error = jnp.mean(jnp.square(filled - truth), axis=-1, keepdims=True)
  similar = dm_pix.ssim(filled, truth, return_map=True)
  similar = jnp.mean(similar, axis=-1, keepdims=True)
  of_image = {"mse": _mean(error), "ssim": _mean(similar)}
  # At the border, where the filter does not fit, a pixel has what the nearest one has.
  edges = [((n - m) // 2,) * 2 for n, m in zip(shape, similar.shape[1:3], strict=True)]
  everywhere = jnp.pad(similar, [(0, 0), *edges, (0, 0)], mode="edge")
  of_image |= {"masked_mse": _mean(error, where), "masked_ssim": _mean(everywhere, where)}
  for name in ("mse", "masked_mse"):
    of_image[name.replace("mse", "psnr")] = -10 * jnp.log10(jnp.maximum(of_image[name], 1e-10))
  weights = jnp.sum(hidden & _exists(batch)[:, None], axis=1)
  return sums | {name: jnp.sum(value * weights) for name, value in of_image.items()}


class Reconstructions(NamedTuple):
  """Images in [0, 1].

  Attributes:
    truth: [batch, height, width, 3].
    filled: the same, with hidden patches as they are told.
    hidden: [batch, height, width, 1] bool.
  """

  truth: jax.Array
  filled: jax.Array
  hidden: jax.Array


def reconstructions(model: nnx.Module, batch: Batch) -> Reconstructions:
  """What `reconstruction_quality` compares, for a look at it."""
  _, told, hidden = _reconstructed(model, batch, None)
  return _composite(model, batch, told, hidden)


def _composite(
  model: nnx.Module, batch: Batch, told: jax.Array, hidden: jax.Array
) -> Reconstructions:
  """Images from patches: as they are told, [batch, patches, pixels], where [batch, patches]."""
  truth = _in_unit_range(batch["images"])
  size, shape = model.config.patch_size, truth.shape[1:3]
  shown = _in_unit_range(unpatchify(told, size, shape))
  where = jnp.broadcast_to(hidden[..., None], (*hidden.shape, size * size))
  where = unpatchify(where, size, shape)
  return Reconstructions(truth, jnp.where(where, shown, truth), where)


def _reconstructed(model: nnx.Module, batch: Batch, key: jax.Array | None):
  """`(sums, patches as they are told, [batch, patches] bool which are hidden)`."""
  patches = patchify(batch["images"], model.config.patch_size)
  mean = jnp.mean(patches, axis=-1, keepdims=True)
  deviation = jnp.sqrt(jnp.var(patches, axis=-1, keepdims=True) + 1e-6)
  told = model(patches, batch["visible"], key=key).astype(patches.dtype)
  error = jnp.mean(jnp.square(told - (patches - mean) / deviation), axis=-1)
  seen = jnp.zeros((*error.shape, 1), bool)
  hidden = ~put_rows(seen, batch["visible"], jnp.ones((*batch["visible"].shape, 1), bool))[..., 0]
  counts = hidden & _exists(batch)[:, None]
  sums = {
    "loss": jnp.where(counts, error, 0.0).sum(),
    "weight": counts.sum(dtype=jnp.float32),
  }
  return sums, told * deviation + mean, hidden


def _exists(batch: Batch) -> jax.Array:
  return batch.get("mask", jnp.ones(len(batch["images"]), bool))


def _in_unit_range(images: jax.Array) -> jax.Array:
  return jnp.clip(images * DEVIATION + MEAN, 0.0, 1.0)


def _mean(values: jax.Array, where: jax.Array | None = None) -> jax.Array:
  """Mean of each image [batch, height, width, 1], over all pixels or some."""
  axes = tuple(np.arange(1, values.ndim))
  if where is None:
    return jnp.mean(values, axis=axes)
  count = jnp.maximum(jnp.sum(where, axis=axes), 1)
  return jnp.sum(jnp.where(where, values, 0.0), axis=axes) / count
