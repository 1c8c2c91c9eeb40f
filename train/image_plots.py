"""Pictures of what a masked autoencoder makes of images, and where its memory writes and reads."""

import itertools
from collections.abc import Mapping
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from matplotlib.figure import Figure

from tmem.masked_autoencoder import MaskedAutoencoder
from tmem.patches import patchify
from tmem.places import Places, by_block
from tmem.typing import Tokens
from train.image_losses import reconstructions
from train.inference import compiled
from train.pictures import SHARED, TOLD, draw_rows, write_rows
from train.plots import save
from train.task import HostBatch

IMAGES = 6


def draw_reconstructions(model: nnx.Module, batch: HostBatch, path: Path) -> None:
  """Draws originals, what the model sees of them, and the hidden patches filled in.

  Their pixels are written beside the figure, to be compared with those of other runs.

  Args:
    model: a `tmem.masked_autoencoder.MaskedAutoencoder`.
    batch: as of an evaluation; its first images are drawn.
    path: the PNG file; that of the pixels has the same name with `.npz`.
  """
  shown = {name: rows[batch["mask"]][:IMAGES] for name, rows in batch.items()}
  found = jax.device_get(compiled(model, reconstructions)(shown))
  images = (found.truth, np.where(found.hidden, 0.5, found.truth), found.filled)
  rows = {
    kind: np.round(255 * pixels).astype(np.uint8)
    for kind, pixels in zip((*SHARED, TOLD), images, strict=True)
  }
  draw_rows(rows, path)
  write_rows(rows, path.with_suffix(".npz"))


def encode_visible(model: MaskedAutoencoder, batch: Mapping[str, jax.Array]) -> Tokens:
  """What the encoder makes of the visible patches of a batch."""
  patches = patchify(batch["images"], model.config.patch_size)
  seen = jnp.take_along_axis(patches, batch["visible"][..., None], axis=1)
  return model.encode_patches(seen, batch["visible"])[1]


def draw_places(model: nnx.Module, batch: HostBatch, path: Path) -> None:
  """Draws where each block's memory writes (dots) and reads (crosses), seen along every axis.

  A place has the colour of the first patch in its chunk: the further down the redder, the further
  right the bluer.

  Args:
    model: a `tmem.masked_autoencoder.MaskedAutoencoder` with a memory.
    batch: as of an evaluation.
    path: the PNG file; written atomically.
  """
  batch = {name: rows[batch["mask"]] for name, rows in batch.items()}
  config, visible = model.config, batch["visible"]

  def places(model, batch):
    return by_block(model, lambda model: encode_visible(model, batch), "places")

  found = jax.device_get(compiled(model, places)(batch))
  edge = config.image_size // config.patch_size
  at = np.stack([visible // edge, visible % edge], axis=-1) / max(edge - 1, 1)
  axes_of_grid = len(config.memory.grid)
  pairs = list(itertools.combinations(range(axes_of_grid), 2)) or [(0, 0)]
  columns = len(pairs) + (axes_of_grid >= 3)
  figure = Figure(figsize=(3.2 * columns, 3.2 * len(found)), layout="constrained")
  for row, (block, places) in enumerate(found.items()):
    writes, reads, colours = _of_patches(places, at, model)
    for column, (a, b) in enumerate(pairs):
      axes = figure.add_subplot(len(found), columns, row * columns + column + 1)
      axes.scatter(writes[:, a], writes[:, b], c=colours[0], s=9)
      axes.scatter(reads[:, a], reads[:, b], c=colours[1], s=12, marker="x", linewidths=0.6)
      axes.set(xlim=(-1.05, 1.05), ylim=(-1.05, 1.05), xlabel=f"axis {a}", ylabel=f"axis {b}")
      axes.set_title(f"block {block}")
    if axes_of_grid >= 3:
      axes = figure.add_subplot(len(found), columns, (row + 1) * columns, projection="3d")
      axes.scatter(*writes[:, :3].T, c=colours[0], s=9)
      axes.scatter(*reads[:, :3].T, c=colours[1], s=12, marker="x", linewidths=0.6)
      axes.set(xlim=(-1, 1), ylim=(-1, 1), zlim=(-1, 1))
  save(figure, path)


def _of_patches(
  places: Places, at: np.ndarray, model: nnx.Module
) -> tuple[np.ndarray, np.ndarray, tuple[np.ndarray, np.ndarray]]:
  """Coordinates of writes and of reads, [n, axes] each, and the colours of both, [n, 3]."""
  config = model.config
  front = 1 + (config.num_registers if config.method == "registers" else 0)
  size = config.memory.chunk_size
  tokens = front + at.shape[1]
  first = np.maximum(np.arange(0, tokens, size) - front, 0)  # patch of a chunk's first token

  def flat(coordinates: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    batch, axes = coordinates.shape[0], coordinates.shape[-1]
    by_chunk = np.asarray(coordinates).reshape(batch, len(first), -1, axes)
    colours = np.stack([at[:, first, 0], np.zeros_like(at[:, first, 0]), at[:, first, 1]], -1)
    colours = np.broadcast_to(colours[:, :, None], (*by_chunk.shape[:3], 3))
    return by_chunk.reshape(-1, axes), colours.reshape(-1, 3)

  writes, of_writes = flat(places.write_at)
  reads, of_reads = flat(places.read_at)
  return writes, reads, (of_writes, of_reads)
