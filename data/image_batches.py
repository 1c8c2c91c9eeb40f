"""Images with hidden patches, as examples for `data.example_batches`."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from data.errors import DatasetError
from data.example_batches import Example, MakeExample
from data.files import warn_of_skipped
from data.image_crops import (
  Pixels,
  View,
  middle_view,
  normalised,
  part_of,
  random_view,
  visible_patches,
)
from data.image_file import EncodedImage, read_image

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


class Images(Sequence[Pixels]):
  """The pixels of image files, read anew each time.

  Args:
    files: all of them readable (see `readable`).
  """

  def __init__(self, files: Sequence[EncodedImage]):
    self.files = tuple(files)

  def __len__(self) -> int:
    return len(self.files)

  def __getitem__(self, index: int) -> Pixels:
    return _pixels(self.files[index])


def readable(files: Sequence[EncodedImage]) -> Images:
  """The images that can be read; a warning counts the others and names the first.

  Raises:
    DatasetError: if none can.
  """
  with ThreadPoolExecutor(os.cpu_count()) as pool:
    found = list(pool.map(_problem, files))
  problems = {index: problem for index, problem in enumerate(found) if problem is not None}
  warn_of_skipped("images", problems, len(files))
  return Images([file for index, file in enumerate(files) if index not in problems])


def _pixels(file: EncodedImage) -> Pixels:
  return read_image(file.read(), file.name)


def _problem(file: EncodedImage) -> str | None:
  """Why a file cannot be read, or None."""
  try:
    _pixels(file)
  except (DatasetError, OSError) as error:
    return " ".join(str(error).split())
  return None


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
      "images": normalised(part_of(pixels, view, masking.image_size)),
      "visible": masking.visible(rng),
    }

  return make
