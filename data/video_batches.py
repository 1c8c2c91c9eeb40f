"""Clips with missing observations, as examples for `data.example_batches`."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from data.example_batches import Example, MakeExample
from data.image_crops import middle_view, normalised, part_of, random_view


class ClipSet(NamedTuple):
  """The clips of a split.

  Attributes:
    clips: [frames, height, width, 3] uint8 each.
    labels: index of each one's class.
    keys: of each, a JSON object that changes when it does, with its "name".
  """

  clips: Sequence[np.ndarray]
  labels: Sequence[int]
  keys: Sequence[dict[str, Any]]


class Missing(NamedTuple):
  """What of a clip is not observed.

  Attributes:
    frames: share of the frames of which nothing is seen, in [0, 1]; which ones is random.
    area: share of every frame that a rectangle covers, in [0, 1]; where and how wide is random, the
      same in all frames.
  """

  frames: float = 0.0
  area: float = 0.0

  def count(self, frames: int) -> int:
    """How many of so many frames are not seen: not all of them, unless the share is 1."""
    count = math.floor(self.frames * frames + 0.5)
    return count if self.frames == 1 else min(count, frames - 1)

  def hide(
    self, clip: np.ndarray, rng: np.random.Generator, empty: np.ndarray | float = 0.0
  ) -> np.ndarray:
    """A clip without them.

    Args:
      clip: [frames, height, width, channels].
      rng: source of the randomness.
      empty: in place of what is not observed; normalised pixels of the mean colour are 0.

    Returns:
      A new array like `clip`.
    """
    clip = clip.copy()
    count, height, width = clip.shape[:3]
    clip[rng.permutation(count)[: self.count(count)]] = empty
    if self.area:
      h = rng.uniform(self.area, 1) if self.area < 1 else 1.0
      h, w = math.ceil(h * height), math.ceil(self.area / h * width)
      top, left = rng.integers(height - h + 1), rng.integers(width - w + 1)
      clip[:, top : top + h, left : left + w] = empty
    return clip


NOTHING = Missing()


def clip_examples(
  shown: ClipSet, size: int, augment: bool, missing: Missing = NOTHING
) -> MakeExample:
  """Clips and their classes.

  Args:
    shown: the clips.
    size: pixels along an edge of the frames that a model sees.
    augment: whether a random part of each clip is shown, and the middle otherwise.
    missing: what of it is not observed.

  Returns:
    Makes `{"frames", "label"}`: float32 [frames, size, size, 3], normalised, and int32 [].
  """

  def make(index: int, rng: np.random.Generator) -> Example:
    clip = shown.clips[index]
    view = random_view(*clip.shape[1:3], rng) if augment else middle_view(*clip.shape[1:3])
    seen = normalised(np.stack([part_of(frame, view, size) for frame in clip]))
    return {"frames": missing.hide(seen, rng), "label": np.int32(shown.labels[index])}

  return make


def feature_examples(
  clips: Sequence[np.ndarray],
  labels: Sequence[int],
  empty: np.ndarray,
  missing: Missing = NOTHING,
) -> MakeExample:
  """Clips that are features already, and their classes.

  Args:
    clips: [frames, patches, features].
    labels: of each clip.
    empty: [patches, features], of a frame on which nothing is seen.
    missing: frames that are not observed; of an area there is no more to be hidden.

  Returns:
    Makes `{"frames", "label"}`: float32 [frames, patches, features] and int32 [].
  """

  def make(index: int, rng: np.random.Generator) -> Example:
    clip = clips[index].astype(np.float32)
    return {
      "frames": missing._replace(area=0).hide(clip, rng, empty),
      "label": np.int32(labels[index]),
    }

  return make
