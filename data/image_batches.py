"""Batches of images with hidden patches: seeded, exactly resumable, one share per host."""

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import grain
import numpy as np

from data.errors import DatasetError
from data.image_crops import Pixels, middle_crop, normalised, random_crop, visible_patches
from data.image_file import read_image
from data.loader import check_at_least, check_host

_log = logging.getLogger(__name__)

# Decoding and resizing run outside of Python's lock: threads do it while the model steps.
READ_AHEAD = grain.ReadOptions(num_threads=2, prefetch_buffer_size=4)
ORDERS = ("raster", "random")
MASK_SEED = 20_260_527  # of evaluations, the same for every model


class Masking(NamedTuple):
  """How images become what a masked autoencoder sees.

  Attributes:
    image_size: pixels along an edge.
    patch_size: pixels along an edge of a patch.
    mask_ratio: share of the patches that is hidden.
    order: in which the visible ones come: "raster", row by row, or "random".
  """

  image_size: int
  patch_size: int
  mask_ratio: float
  order: str = "raster"

  def visible(self, rng: np.random.Generator) -> np.ndarray:
    """Which patches of one image stay visible, int32."""
    patches = (self.image_size // self.patch_size) ** 2
    return visible_patches(patches, self.mask_ratio, rng, self.order == "raster")


class ImageFiles(Sequence[Pixels]):
  """The pixels of image files, read anew each time.

  Args:
    paths: the files, all of them readable (see `readable`).
  """

  def __init__(self, paths: Sequence[Path]):
    self.paths = tuple(paths)

  def __len__(self) -> int:
    return len(self.paths)

  def __getitem__(self, index: int) -> Pixels:
    path = self.paths[index]
    return read_image(path.read_bytes(), str(path))


def readable(paths: Sequence[Path]) -> ImageFiles:
  """The images that can be read; a warning counts the others and names the first.

  Raises:
    DatasetError: if none can.
  """
  kept, refused = [], []
  for path in paths:
    try:
      read_image(path.read_bytes(), str(path))
    except (DatasetError, OSError) as error:
      refused.append(" ".join(str(error).split()))
    else:
      kept.append(path)
  if refused and not kept:
    raise DatasetError(f"none of {len(refused)} images can be read; the first: {refused[0]}")
  if refused:
    _log.warning("skipped %d of %d images; the first: %s", len(refused), len(paths), refused[0])
  return ImageFiles(kept)


def train_batches(
  images: Sequence[Pixels],
  masking: Masking,
  batch_size: int,
  seed: int = 0,
  host_index: int = 0,
  host_count: int = 1,
) -> grain.DatasetIterator:
  """Iterates over random crops of shuffled images, without end.

  Crop, flip and mask follow from the seed and from the place in the sequence alone, so the global
  batch does not depend on the number of hosts.

  Args:
    images: of any sizes, at least one.
    masking: sizes and masks.
    batch_size: rows of the global batch, over all hosts.
    seed: in [0, 2**32).
    host_index: which share of each global batch, in [0, host_count).
    host_count: number of hosts; it divides `batch_size`.

  Returns:
    An iterator over `{"images", "visible"}`: float32 [rows, image_size, image_size, 3], normalised,
    and int32 [rows, visible]. `get_state()` is JSON-able; `set_state` of it continues exactly.

  Raises:
    ValueError: if an argument is out of its range.
  """
  check_at_least("images", len(images), 1)
  check_at_least("batch_size", batch_size, 1)
  rows = check_host(batch_size, host_index, host_count)
  share = np.arange(host_index * rows, (host_index + 1) * rows)
  order = grain.MapDataset.range(len(images)).shuffle(seed=seed).repeat()

  def batch(index: int) -> dict[str, np.ndarray]:
    places = index * batch_size + share
    pairs = [_training_pair(images[order[int(p)]], masking, (seed, int(p))) for p in places]
    return _stacked(pairs)

  dataset = grain.MapDataset.range(1).repeat().map_with_index(lambda index, _: batch(index))
  return iter(dataset.to_iter_dataset(READ_AHEAD))


def eval_batches(
  images: Sequence[Pixels], masking: Masking, batch_size: int
) -> Iterable[dict[str, np.ndarray]]:
  """The middle of every image once, in order, with masks that are the same for every model.

  Args:
    images: of any sizes, at least one.
    masking: sizes and masks.
    batch_size: rows of a batch.

  Returns:
    What can be iterated over as often as needed, giving what `train_batches` gives, and "mask",
    bool [rows], False on rows that fill up the last batch.
  """
  check_at_least("images", len(images), 1)
  check_at_least("batch_size", batch_size, 1)

  def batch(index: int) -> dict[str, np.ndarray]:
    places = index * batch_size + np.arange(batch_size)
    exists = places < len(images)
    pairs = [_test_pair(images, int(p), masking) for p in np.where(exists, places, 0)]
    return _stacked(pairs) | {"mask": exists}

  batches = -(-len(images) // batch_size)
  return grain.MapDataset.range(batches).map(batch).to_iter_dataset(READ_AHEAD)


def _training_pair(pixels: Pixels, masking: Masking, seed: tuple[int, int]):
  rng = np.random.default_rng(seed)
  return random_crop(pixels, masking.image_size, rng), masking.visible(rng)


def _test_pair(images: Sequence[Pixels], index: int, masking: Masking):
  rng = np.random.default_rng((MASK_SEED, index))
  return middle_crop(images[index], masking.image_size), masking.visible(rng)


def _stacked(pairs: list[tuple[Pixels, np.ndarray]]) -> dict[str, np.ndarray]:
  pixels, visible = zip(*pairs, strict=True)
  return {"images": normalised(np.stack(pixels)), "visible": np.stack(visible)}
