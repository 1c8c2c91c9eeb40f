"""Batches of images: what they hold, that they go on exactly, that broken files are counted."""

import logging

import numpy as np
import pytest
from PIL import Image

from data import example_batches
from data.errors import DatasetError
from data.image_batches import Images, Masking, masked_examples, readable
from data.image_crops import DEVIATION, MEAN
from data.image_file import EncodedImage

MASKING = Masking(image_size=8, patch_size=2, mask_ratio=0.75)
# Every image has a colour of its own, which no crop changes.
IMAGES = [np.full((20 + 3 * i, 30, 3), 20 * i, np.uint8) for i in range(7)]


def train_batches(images, masking, batch_size, *more, **named):
  make = masked_examples(images, masking, augment=True)
  return example_batches.train_batches(make, len(images), batch_size, *more, **named)


def eval_batches(images, masking, batch_size):
  make = masked_examples(images, masking, augment=False)
  return example_batches.eval_batches(make, len(images), batch_size)


def colours(batch):
  values = batch["images"] * DEVIATION + MEAN
  return np.round(values[:, 0, 0, 0] * 255 / 20).astype(int).tolist()


def take(batches, count):
  return [next(batches) for _ in range(count)]


def test_an_epoch_has_every_image_once():
  batches = take(train_batches(IMAGES, MASKING, 7), 3)
  orders = [colours(batch) for batch in batches]
  assert all(sorted(order) == list(range(7)) for order in orders)
  assert orders[0] != orders[1]
  for batch in batches:
    assert batch["images"].shape == (7, 8, 8, 3)
    assert batch["visible"].shape == (7, 4)
    assert (np.diff(batch["visible"]) > 0).all()
  assert len({tuple(row) for batch in batches for row in batch["visible"]}) > 15


def test_batches_follow_from_the_seed_and_go_on_exactly():
  batches = train_batches(IMAGES, MASKING, 3, seed=5)
  take(batches, 2)
  state, expected = batches.get_state(), take(batches, 3)
  again = train_batches(IMAGES, MASKING, 3, seed=5)
  again.set_state(state)
  other = take(train_batches(IMAGES, MASKING, 3, seed=6), 5)[2:]
  for ours, theirs, others in zip(take(again, 3), expected, other, strict=True):
    for key in theirs:
      np.testing.assert_array_equal(ours[key], theirs[key])
    assert (others["visible"] != theirs["visible"]).any()


def test_hosts_share_the_global_batch():
  whole = take(train_batches(IMAGES, MASKING, 4, seed=2), 3)
  parts = [take(train_batches(IMAGES, MASKING, 4, 2, host, 2), 3) for host in range(2)]
  for batch, *shares in zip(whole, *parts, strict=True):
    for key, value in batch.items():
      np.testing.assert_array_equal(np.concatenate([share[key] for share in shares]), value)


def test_evaluations_have_every_image_once_and_the_same_masks():
  batches = eval_batches(IMAGES, MASKING, 3)
  first, again = list(batches), list(batches)
  assert [colours(b) for b in first] == [[0, 1, 2], [3, 4, 5], [6, 0, 0]]
  assert [b["mask"].tolist() for b in first][-1] == [True, False, False]
  for ours, theirs in zip(first, again, strict=True):
    np.testing.assert_array_equal(ours["visible"], theirs["visible"])
  alone = next(iter(eval_batches(IMAGES, MASKING, 7)))  # whatever the batches are
  np.testing.assert_array_equal(alone["visible"][3:6], first[1]["visible"])


def test_a_part_of_an_evaluation_is_spread_over_all():
  make = masked_examples(IMAGES, MASKING, augment=False)
  (batch,) = example_batches.eval_batches(make, 7, 4, limit=3)
  assert colours(batch)[:3] == [0, 2, 4]
  assert batch["mask"].tolist() == [True, True, True, False]
  whole = next(iter(eval_batches(IMAGES, MASKING, 7)))  # hidden is what always is
  np.testing.assert_array_equal(batch["visible"][:3], whole["visible"][[0, 2, 4]])


def test_patches_can_come_in_random_order():
  masking = MASKING._replace(order="random")
  shuffled = next(iter(eval_batches(IMAGES, masking, 7)))["visible"]
  raster = next(iter(eval_batches(IMAGES, MASKING, 7)))["visible"]
  assert (shuffled != raster).any()
  np.testing.assert_array_equal(np.sort(shuffled), raster)


def test_files_that_cannot_be_read_are_counted(tmp_path, caplog):
  for index in range(3):
    Image.fromarray(IMAGES[index]).save(tmp_path / f"{index}.png")
  (tmp_path / "1.png").write_bytes((tmp_path / "1.png").read_bytes()[:60])
  paths = [EncodedImage.at(tmp_path / f"{name}.png") for name in (0, 1, 2, "absent")]
  with caplog.at_level(logging.WARNING):
    images = readable(paths)
  assert [image[0, 0, 0] for image in images] == [0, 40]
  assert len(caplog.messages) == 1
  assert caplog.messages[0].startswith("skipped 2 of 4 images; the first: ")
  assert "1.png: not an image" in caplog.messages[0]
  with pytest.raises(DatasetError, match=r"none of 2 images can be read; the first: .*1\.png"):
    readable(paths[1::2])
  assert len(Images(paths)) == 4


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    (([], MASKING, 2), "count: got 0, expected at least 1"),
    ((IMAGES, MASKING, 0), "batch_size: got 0"),
    ((IMAGES, MASKING, 3, 0, 0, 2), "batch_size: got 3, expected a multiple of host_count"),
  ],
)
def test_arguments_out_of_range_are_named(arguments, message):
  with pytest.raises(ValueError, match=message):
    train_batches(*arguments)
