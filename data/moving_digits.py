"""Handwritten digits that move: videos whose class is the motion, with nothing to download."""

import functools
import math
from collections.abc import Sequence

import numpy as np
from sklearn.datasets import load_digits

# Steps down and right of the eight directions; then the two ways around the middle.
DIRECTIONS = {
  "up": (-1, 0),
  "up_right": (-1, 1),
  "right": (0, 1),
  "down_right": (1, 1),
  "down": (1, 0),
  "down_left": (1, -1),
  "left": (0, -1),
  "up_left": (-1, -1),
}
CLASSES = (*DIRECTIONS, "clockwise", "counterclockwise")
SPLITS = {"train": 10_000, "valid": 500, "test": 1000}
SPEED = (0.06, 0.12)  # of an edge, from frame to frame
TURN = (math.pi / 8, math.pi / 4)  # from frame to frame
VERSION = 1  # of how they are drawn
_SEED = 20_260_527


class MovingDigits(Sequence[np.ndarray]):
  """Videos of one digit each, drawn when asked for; the same index is always the same video.

  The digit begins anywhere, leaves on one side and comes back on the other, or goes around the
  middle. Its speed is drawn too, so that only where it goes tells the class. Each split has digits
  of its own.

  Args:
    split: of `SPLITS`.
    frames: of a video.
    size: pixels along an edge.
  """

  def __init__(self, split: str, frames: int, size: int):
    self._split, self._frames, self._size = list(SPLITS).index(split), frames, size
    self.labels = np.arange(SPLITS[split]) % len(CLASSES)
    self.keys = [
      {"name": f"digits {split} {index}", "version": VERSION, "frames": frames, "edge": size}
      for index in range(SPLITS[split])
    ]

  def __len__(self) -> int:
    return len(self.labels)

  def __getitem__(self, index: int) -> np.ndarray:
    """[frames, size, size, 3] uint8, white on black."""
    rng = np.random.default_rng((_SEED, self._split, index))
    own = _digits()[self._split]
    scale = max(1, self._size // 16)
    digit = np.kron(own[rng.integers(len(own))], np.ones((scale, scale), np.uint8))
    video = np.zeros((self._frames, self._size, self._size), np.uint8)
    rows, columns = np.arange(digit.shape[0]), np.arange(digit.shape[1])
    places = self._places(CLASSES[self.labels[index]], rng)
    for frame, (down, right) in zip(video, places, strict=True):
      top, left = (round(place - len(digit) / 2) for place in (down, right))
      frame[np.ix_((top + rows) % self._size, (left + columns) % self._size)] = digit
    return np.repeat(video[..., None], 3, axis=-1)

  def _places(self, motion: str, rng: np.random.Generator) -> np.ndarray:
    """Where the digit's middle is: [frames, 2], pixels from the top and from the left."""
    time = np.arange(self._frames)[:, None]
    if motion in DIRECTIONS:
      step = np.array(DIRECTIONS[motion]) / math.hypot(*DIRECTIONS[motion])
      return self._size * (rng.uniform(size=2) + time * step * rng.uniform(*SPEED))
    turn = rng.uniform(*TURN) * (1 if motion == "clockwise" else -1)
    angle = rng.uniform(0, 2 * math.pi) + time * turn
    circle = np.concatenate([np.sin(angle), np.cos(angle)], axis=1)
    return self._size * (0.5 + 0.25 * circle)


@functools.cache
def _digits() -> list[np.ndarray]:
  """The digits of each split: [digits, 8, 8] uint8."""
  images = np.round(load_digits().images * (255 / 16)).astype(np.uint8)
  borders = [len(images) * tenths // 10 for tenths in (6, 8)]
  return np.split(images, borders)
