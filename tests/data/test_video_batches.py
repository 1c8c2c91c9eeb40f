"""Clips as examples: one crop for all frames, and what of them is missing."""

import numpy as np
import pytest

from data import example_batches
from data.video_batches import ClipSet, Missing, clip_examples, feature_examples


def rng(seed=0):
  return np.random.default_rng(seed)


CLIPS = [np.full((8, 20, 30, 3), 40 * i + 10, np.uint8) for i in range(5)]


def test_every_frame_of_a_clip_shows_the_same_part():
  still = rng().integers(0, 256, size=(1, 40, 60, 3), dtype=np.uint8)
  make = clip_examples(ClipSet([np.repeat(still, 4, axis=0)], [3], []), 16, augment=True)
  first, again, other = (make(0, rng(seed)) for seed in (1, 1, 2))
  assert first["frames"].shape == (4, 16, 16, 3)
  assert first["label"] == 3
  for frame in first["frames"]:
    np.testing.assert_array_equal(frame, first["frames"][0])
  np.testing.assert_array_equal(first["frames"], again["frames"])
  assert (first["frames"] != other["frames"]).any()
  middle = clip_examples(ClipSet([still], [3], []), 40, augment=False)(0, rng())["frames"]
  assert middle.shape == (1, 40, 40, 3)


@pytest.mark.parametrize(("share", "count"), [(0.0, 0), (0.25, 2), (0.5, 4), (0.75, 6), (1.0, 8)])
def test_frames_are_blanked_as_many_as_asked_for(share, count):
  clip = np.ones((8, 4, 4, 3), np.float32)
  gone = [
    Missing(frames=share).hide(clip, rng(seed)).sum(axis=(1, 2, 3)) == 0 for seed in range(40)
  ]
  assert {int(g.sum()) for g in gone} == {count}
  if 0 < share < 1:  # every frame, the last one too
    assert np.any(gone, axis=0).all()
    assert not np.all(gone, axis=0).any()
  assert (clip == 1).all()


@pytest.mark.parametrize("share", [0.25, 0.5, 0.75, 1.0])
def test_a_rectangle_covers_the_share_of_every_frame(share):
  clip = np.ones((3, 64, 64, 1), np.float32)
  for seed in range(20):
    hidden = Missing(area=share).hide(clip, rng(seed))[..., 0] == 0
    np.testing.assert_array_equal(hidden[0], hidden[2])
    rows, columns = hidden[0].any(axis=1), hidden[0].any(axis=0)
    np.testing.assert_array_equal(hidden[0], np.outer(rows, columns))
    assert (np.diff(np.flatnonzero(rows)) == 1).all()
    assert (np.diff(np.flatnonzero(columns)) == 1).all()
    assert share <= hidden[0].mean() < share + 0.06


def test_evaluations_hide_the_same_of_every_clip_whatever_the_batches_are():
  make = clip_examples(ClipSet(CLIPS, range(5), []), 16, False, Missing(frames=0.5))
  whole = next(iter(example_batches.eval_batches(make, 5, 5)))
  parts = list(example_batches.eval_batches(make, 5, 2))
  assert [part["mask"].tolist() for part in parts] == [[True, True], [True, True], [True, False]]
  frames = np.concatenate([part["frames"] for part in parts])[:5]
  np.testing.assert_array_equal(frames, whole["frames"])
  assert whole["label"].tolist() == list(range(5))
  assert (whole["frames"][:, :, 0, 0, 0] == 0).sum(axis=1).tolist() == [4] * 5


def test_training_hides_anew_each_epoch_and_goes_on_exactly():
  make = clip_examples(ClipSet(CLIPS, range(5), []), 16, True, Missing(frames=0.5))
  batches = example_batches.train_batches(make, 5, 5, seed=3)
  first, second = next(batches), next(batches)
  assert sorted(first["label"].tolist()) == list(range(5))
  assert first["label"].tolist() != second["label"].tolist()
  again = example_batches.train_batches(make, 5, 5, seed=3)
  next(again)
  state = again.get_state()
  fresh = example_batches.train_batches(make, 5, 5, seed=3)
  fresh.set_state(state)
  for key, value in next(fresh).items():
    np.testing.assert_array_equal(value, second[key])


@pytest.mark.parametrize(
  ("share", "frames", "count"),
  [(0.25, 2, 1), (0.5, 3, 2), (0.25, 6, 2), (0.75, 2, 1), (0.9, 1, 0), (1.0, 2, 2)],
)
def test_half_a_frame_is_a_frame_and_one_stays_unless_all_are_meant(share, frames, count):
  assert Missing(frames=share).count(frames) == count


def test_features_of_what_is_not_seen_are_those_of_an_empty_frame():
  clips, empty = [np.ones((4, 2, 3), np.float16)], np.full((2, 3), 7, np.float32)
  example = feature_examples(clips, [1], empty, Missing(frames=0.5, area=0.5))(0, rng())
  assert example["frames"].dtype == np.float32
  assert sorted(example["frames"][:, 0, 0].tolist()) == [1, 1, 7, 7]
  assert example["label"] == 1
