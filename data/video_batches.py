"""Clips with missing observations, as examples for `data.example_batches`."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from data.example_batches import Example, MakeExample
from data.image_crops import middle_view, normalised, random_view, shown


class Missing(NamedTuple):
  """What of a clip is not observed: there a model sees the mean colour, 0.

  Attributes:
    frames: share of the frames of which nothing is seen, in [0, 1]; which ones is random.
    area: share of every frame that a rectangle covers, in [0, 1]; where and how wide is random, the
      same in all frames.
  """

  frames: float = 0.0
  area: float = 0.0

  def hide(self, clip: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A clip without them.

    Args:
      clip: [frames, height, width, channels], normalised.
      rng: source of the randomness.

    Returns:
      A new array like `clip`.
    """
    clip = clip.copy()
    count, height, width = clip.shape[:3]
    clip[rng.permutation(count)[: round(self.frames * count)]] = 0
    if self.area:
      h = rng.uniform(self.area, 1) if self.area < 1 else 1.0
      h, w = math.ceil(h * height), math.ceil(self.area / h * width)
      top, left = rng.integers(height - h + 1), rng.integers(width - w + 1)
      clip[:, top : top + h, left : left + w] = 0
    return clip


NOTHING = Missing()


def clip_examples(
  clips: Sequence[np.ndarray],
  labels: Sequence[int],
  size: int,
  augment: bool,
  missing: Missing = NOTHING,
) -> MakeExample:
  """Clips and their classes.

  Args:
    clips: [frames, height, width, 3] uint8.
    labels: of each clip.
    size: pixels along an edge of the frames that a model sees.
    augment: whether a random part of each clip is shown, and the middle otherwise.
    missing: what of it is not observed.

  Returns:
    Makes `{"frames", "label"}`: float32 [frames, size, size, 3], normalised, and int32 [].
  """

  def make(index: int, rng: np.random.Generator) -> Example:
    clip = clips[index]
    view = random_view(*clip.shape[1:3], rng) if augment else middle_view(*clip.shape[1:3])
    seen = normalised(np.stack([shown(frame, view, size) for frame in clip]))
    return {"frames": missing.hide(seen, rng), "label": np.int32(labels[index])}

  return make


def feature_examples(
  clips: Sequence[np.ndarray], labels: Sequence[int], missing: Missing = NOTHING
) -> MakeExample:
  """Clips that are features already, and their classes.

  Args:
    clips: [frames, patches, features].
    labels: of each clip.
    missing: frames that are not observed; of an area there is no more to be hidden.

  Returns:
    Makes `{"frames", "label"}`: float32 [frames, patches, features] and int32 [].
  """

  def make(index: int, rng: np.random.Generator) -> Example:
    clip = clips[index].astype(np.float32)
    return {
      "frames": missing._replace(area=0).hide(clip, rng),
      "label": np.int32(labels[index]),
    }

  return make
