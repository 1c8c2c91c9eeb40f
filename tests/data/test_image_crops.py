"""Crops, values and masks: what they keep, and that their randomness is the generator's alone."""

import numpy as np
import pytest

from data.image_crops import (
  DEVIATION,
  MEAN,
  middle_view,
  normalised,
  part_of,
  random_view,
  visible_patches,
)


def generator(seed=0):
  return np.random.default_rng(seed)


def random_crop(pixels, size, rng):
  return part_of(pixels, random_view(*pixels.shape[:2], rng), size)


def middle_crop(pixels, size):
  return part_of(pixels, middle_view(*pixels.shape[:2]), size)


def test_the_middle_is_the_middle():
  pixels = np.zeros((40, 100, 3), np.uint8)
  pixels[:, 30:70] = 200
  assert (middle_crop(pixels, 20) == 200).all()
  assert (middle_crop(pixels.swapaxes(0, 1), 20) == 200).all()


def test_a_crop_is_a_part_of_the_image_of_the_right_area():
  """Pixels tell where they come from: their colours grow along both axes."""
  along = np.arange(200)
  pixels = np.stack(np.broadcast_arrays(along[:, None], along[None], 0), -1).astype(np.uint8)
  areas, turned = [], 0
  for seed in range(200):
    crop = random_crop(pixels, 16, generator(seed)).astype(float)
    height = (crop[-1, :, 0] - crop[0, :, 0]).mean() * 16 / 15
    width = (crop[:, -1, 1] - crop[:, 0, 1]).mean() * 16 / 15
    turned += width < 0
    areas.append(height * abs(width) / 200**2)
    assert 0.65 < abs(width) / height < 1.55
  assert 0.15 < min(areas) < 0.3
  assert 0.6 < max(areas) < 1.02
  assert 70 < turned < 130


def test_crops_are_the_generators():
  pixels = generator().integers(0, 256, size=(50, 60, 3), dtype=np.uint8)
  first, again, other = (random_crop(pixels, 8, generator(s)) for s in (1, 1, 2))
  np.testing.assert_array_equal(first, again)
  assert (first != other).any()


@pytest.mark.parametrize("shape", [(1, 1), (1, 500), (300, 2), (3, 4)])
def test_tiny_and_long_images_become_squares(shape):
  pixels = np.full((*shape, 3), 77, np.uint8)
  for seed in range(5):
    crop = random_crop(pixels, 16, generator(seed))
    assert crop.shape == (16, 16, 3)
    assert (crop == 77).all()


def test_values_are_those_that_models_of_imagenet_see():
  pixels = np.array([[[0, 128, 255]]], np.uint8)
  values = normalised(pixels)
  assert values.dtype == np.float32
  np.testing.assert_allclose(values * DEVIATION + MEAN, pixels / 255, atol=1e-6)
  np.testing.assert_allclose(values[0, 0, 0], -0.485 / 0.229, rtol=1e-6)


@pytest.mark.parametrize(("ratio", "count"), [(0.25, 12), (0.5, 8), (0.75, 4), (0.99, 1)])
def test_visible_patches_are_as_many_as_asked_for(ratio, count):
  drawn = [visible_patches(16, ratio, generator(seed)) for seed in range(50)]
  assert all(len(v) == count and (np.diff(v) > 0).all() for v in drawn)
  assert set(np.concatenate(drawn)) == set(range(16))  # none is always hidden
  shuffled = visible_patches(16, ratio, generator(0), in_order=False)
  assert sorted(shuffled) == drawn[0].tolist()


def test_a_mask_that_hides_nothing_is_refused():
  with pytest.raises(ValueError, match=r"mask_ratio: 0.01 of 16 patches hides none"):
    visible_patches(16, 0.01, generator())
