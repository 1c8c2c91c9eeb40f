"""What is done to pixels before a model sees them: crops, the scale of values, hidden patches."""

import math
from typing import NamedTuple

import numpy as np
from PIL import Image

# Mean and standard deviation of ImageNet's pixels by channel, for values in [0, 1].
MEAN = np.array([0.485, 0.456, 0.406], np.float32)
DEVIATION = np.array([0.229, 0.224, 0.225], np.float32)
AREA = (0.2, 1.0)  # of a random crop, in shares of the image's
RATIO = (3 / 4, 4 / 3)  # of its width to its height
TRIES = 10

Pixels = np.ndarray  # [height, width, 3] uint8


class View(NamedTuple):
  """Which part of an image is seen, and how.

  Attributes:
    box: left, top, right and bottom edge, in pixels.
    flip: whether left and right change places.
  """

  box: tuple[int, int, int, int]
  flip: bool = False


def random_view(height: int, width: int, rng: np.random.Generator) -> View:
  """A random part of an image, turned left to right half of the time.

  Its area is uniform in `AREA`, its ratio log-uniform in `RATIO`; where no such part fits, which a
  very long image can cause, the middle is taken.

  Args:
    height: of the image, in pixels.
    width: likewise.
    rng: source of the randomness.

  Returns:
    The part.
  """
  box = middle_view(height, width).box
  for _ in range(TRIES):
    area = rng.uniform(*AREA) * height * width
    ratio = math.exp(rng.uniform(math.log(RATIO[0]), math.log(RATIO[1])))
    w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
    if 0 < w <= width and 0 < h <= height:
      left, top = rng.integers(width - w + 1), rng.integers(height - h + 1)
      box = (left, top, left + w, top + h)
      break
  return View(box, rng.uniform() < 0.5)


def middle_view(height: int, width: int) -> View:
  """The largest square in the middle of an image."""
  edge = min(height, width)
  left, top = (width - edge) // 2, (height - edge) // 2
  return View((left, top, left + edge, top + edge))


def part_of(pixels: Pixels, view: View, size: int) -> Pixels:
  """A part of an image, resized to a square.

  Args:
    pixels: [height, width, 3] uint8.
    view: the part.
    size: pixels along an edge of the result.

  Returns:
    [size, size, 3] uint8.
  """
  part = Image.fromarray(pixels).crop(view.box)  # first, so that nothing around it is mixed in
  part = np.asarray(part.resize((size, size), Image.Resampling.BICUBIC))
  return part[:, ::-1] if view.flip else part


def normalised(pixels: Pixels) -> np.ndarray:
  """Float32 values as models see them: [0, 255] becomes [0, 1], then mean 0 and deviation 1."""
  return (pixels.astype(np.float32) / 255 - MEAN) / DEVIATION


def visible_patches(
  patches: int, mask_ratio: float, rng: np.random.Generator, in_order: bool = True
) -> np.ndarray:
  """Which patches of an image stay visible.

  Args:
    patches: how many there are.
    mask_ratio: share of them that is hidden, in (0, 1); at least one stays visible.
    rng: source of the randomness.
    in_order: whether they come row by row; otherwise in random order.

  Returns:
    [visible] int32, all different.

  Raises:
    ValueError: if nothing would be hidden.
  """
  count = max(1, round(patches * (1 - mask_ratio)))
  if count >= patches:
    raise ValueError(f"mask_ratio: {mask_ratio} of {patches} patches hides none")
  chosen = rng.permutation(patches)[:count].astype(np.int32)
  return np.sort(chosen) if in_order else chosen
