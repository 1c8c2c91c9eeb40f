"""Moving digits: the motion is that of the class, and the same index is the same video."""

import math

import numpy as np
import pytest

from data.moving_digits import CLASSES, DIRECTIONS, SPEED, SPLITS, TURN, MovingDigits

SIZE = 64
FRAMES = 6


def middles(video):
  """Where the digit is, on a torus: [frames, 2] angles of the bright pixels' circular means."""
  weights = video[..., 0].astype(float)
  wheel = np.exp(2j * np.pi * (np.arange(SIZE) + 0.5) / SIZE)
  down = np.angle((weights.sum(axis=2) * wheel).sum(axis=1))
  right = np.angle((weights.sum(axis=1) * wheel).sum(axis=1))
  return np.stack([down, right], axis=1)


def steps(video):
  """Pixels down and right from frame to frame."""
  difference = np.diff(middles(video), axis=0)
  return (difference + np.pi) % (2 * np.pi) / (2 * np.pi) * SIZE - SIZE / 2


@pytest.mark.parametrize("label", range(len(CLASSES)))
def test_the_motion_is_that_of_the_class(label):
  videos = MovingDigits("test", FRAMES, SIZE)
  for index in range(label, 60, len(CLASSES)):
    assert videos.labels[index] == label
    moved = steps(videos[index])
    if CLASSES[label] in DIRECTIONS:
      direction = np.array(DIRECTIONS[CLASSES[label]]) / math.hypot(*DIRECTIONS[CLASSES[label]])
      along = moved @ direction
      np.testing.assert_allclose(moved, along[:, None] * direction, atol=1.5)  # whole pixels
      assert SPEED[0] * SIZE - 1.5 < along.min() <= along.max() < SPEED[1] * SIZE + 1.5
    else:
      # Rows grow downwards: an angle from the axis to the right that grows goes clockwise.
      places = (middles(videos[index]) / (2 * np.pi) % 1 - 0.5) * SIZE
      angle = np.unwrap(np.arctan2(places[:, 0], places[:, 1]))
      turned = np.diff(angle) * (1 if CLASSES[label] == "clockwise" else -1)
      assert TURN[0] - 0.1 < turned.min() <= turned.max() < TURN[1] + 0.1


def test_the_same_index_is_the_same_video_and_another_one_is_not():
  videos, again = MovingDigits("train", 3, 32), MovingDigits("train", 3, 32)
  np.testing.assert_array_equal(videos[5], again[5])
  assert (videos[5] != videos[15]).any()
  assert (videos[5] != MovingDigits("test", 3, 32)[5]).any()
  assert videos[5].shape == (3, 32, 32, 3)
  assert len(videos) == SPLITS["train"] == len(videos.labels)


def test_classes_are_as_frequent_as_each_other():
  for split, count in SPLITS.items():
    assert np.bincount(MovingDigits(split, 1, 16).labels).tolist() == [count // 10] * 10


def test_every_split_has_digits_of_its_own():
  def digits(split):
    videos = MovingDigits(split, 1, 16)
    return {np.sort(videos[i], axis=None).tobytes() for i in range(0, 400, 2)}

  assert not digits("train") & digits("test")
  assert not digits("train") & digits("valid")
  assert not digits("valid") & digits("test")
