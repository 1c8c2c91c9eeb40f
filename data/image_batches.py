"""Images with hidden patches, as examples for `data.example_batches`."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from data.errors import DatasetError
from data.example_batches import Example, MakeExample
from data.image_crops import (
  Pixels,
  View,
  middle_view,
  normalised,
  random_view,
  shown,
  visible_patches,
)
from data.image_file import read_image

_log = logging.getLogger(__name__)

ORDERS = ("raster", "random")


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


def masked_examples(images: Sequence[Pixels], masking: Masking, augment: bool) -> MakeExample:
  """Images with hidden patches.

  Args:
    images: of any sizes.
    masking: sizes and masks.
    augment: whether a random part of each is shown, and the middle otherwise.

  Returns:
    Makes `{"images", "visible"}`: float32 [image_size, image_size, 3], normalised, and int32
    [visible].
  """

  def make(index: int, rng: np.random.Generator) -> Example:
    pixels = images[index]
    view: View = random_view(*pixels.shape[:2], rng) if augment else middle_view(*pixels.shape[:2])
    return {
      "images": normalised(shown(pixels, view, masking.image_size)),
      "visible": masking.visible(rng),
    }

  return make
