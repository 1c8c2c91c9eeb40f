"""Encoders of images: patches, what they see, in which order they come; training's randomness."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tmem import MemoryConfig
from tmem.image_models import (
  METHODS,
  ImageClassifier,
  ImageClassifierConfig,
  ImageConfig,
  PatchEncoder,
)
from tmem.patches import patchify, unpatchify

SMALL = {
  "image_size": 12,
  "patch_size": 4,
  "features": 16,
  "num_layers": 2,
  "memory": MemoryConfig(grid=(2, 2, 2), channels=4, chunk_size=2, read_heads=1),
}


def encoder(randomised, **changes):
  config = ImageConfig(**SMALL | changes)
  return randomised(lambda: PatchEncoder(config, rngs=nnx.Rngs(0)))


def test_patches_go_row_by_row_and_back():
  images = np.arange(2 * 4 * 6 * 3).reshape(2, 4, 6, 3)
  patches = patchify(images, 2)
  assert patches.shape == (2, 6, 12)
  np.testing.assert_array_equal(patches[0, 1].reshape(2, 2, 3), images[0, :2, 2:4])
  np.testing.assert_array_equal(patches[1, 5].reshape(2, 2, 3), images[1, 2:, 4:])
  np.testing.assert_array_equal(unpatchify(patches, 2, (4, 6)), images)


@pytest.mark.parametrize(
  ("call", "message"),
  [
    (lambda: patchify(np.zeros((1, 5, 4, 3)), 2), r"images: got shape \(1, 5, 4, 3\)"),
    (lambda: patchify(np.zeros((4, 4, 3)), 2), r"images: got shape \(4, 4, 3\)"),
    (lambda: unpatchify(np.zeros((1, 5, 12)), 2, (4, 6)), r"expected \[batch, 6, features\]"),
    (lambda: ImageConfig(image_size=10, patch_size=4), "image_size: 10 is not a multiple"),
    (lambda: ImageConfig(method="tensor_local"), "method: got 'tensor_local', expected one of"),
    (lambda: ImageConfig(reach=0), "reach: got 0, expected an integer of at least 1"),
    (lambda: ImageConfig(drop_path=1.0), r"drop_path: got 1.0, expected a rate in \[0, 1\)"),
    (lambda: ImageClassifierConfig(classes=0), "classes: got 0"),
  ],
)
def test_what_does_not_fit_is_refused(call, message):
  with pytest.raises(ValueError, match=message):
    call()


def test_images_of_another_size_are_refused(randomised):
  config = ImageClassifierConfig(classes=3, **SMALL)
  model = randomised(lambda: ImageClassifier(config, rngs=nnx.Rngs(0)))
  with pytest.raises(ValueError, match=r"images: got shape \(1, 12, 8, 3\)"):
    model(jnp.zeros((1, 12, 8, 3)))
  assert ImageClassifierConfig.from_dict(config.to_dict()) == config


@pytest.mark.parametrize("method", METHODS)
def test_some_patches_in_their_places_are_what_all_are_where_nothing_else_is_seen(
  method, randomised, compiled
):
  """Given by their places, all patches of an image are the image; fewer are something else."""
  model = encoder(randomised, method=method)
  rng = np.random.default_rng(0)
  patches = jnp.asarray(rng.normal(size=(2, 9, 48)), jnp.float32)
  places = jnp.broadcast_to(jnp.arange(9), (2, 9))
  graphdef, params = nnx.split(model)
  run = jax.jit(lambda *args: nnx.merge(graphdef, params).encode_patches(*args))
  whole, placed, some = run(patches), run(patches, places), run(patches[:, 2:], places[:, 2:])
  for ours, theirs in zip(whole, placed, strict=True):
    np.testing.assert_allclose(ours, theirs, atol=1e-6)
  assert np.abs(whole[1][:, 2:] - some[1]).max() > 1e-2


@pytest.mark.parametrize("method", ["base", "registers", "tensor"])
def test_only_a_memory_cares_for_the_order_of_patches(method, randomised):
  model = encoder(randomised, method=method)
  rng = np.random.default_rng(0)
  patches = jnp.asarray(rng.normal(size=(2, 6, 48)), jnp.float32)
  places = jnp.asarray([[0, 2, 3, 5, 7, 8], [1, 2, 4, 5, 6, 7]])
  order = np.array([3, 0, 5, 1, 4, 2])
  summary, tokens = model.encode_patches(patches, places)
  shuffled, moved = model.encode_patches(patches[:, order], places[:, order])
  differs = max(np.abs(summary - shuffled).max(), np.abs(tokens[:, order] - moved).max())
  assert (differs > 1e-3) if method == "tensor" else (differs < 1e-5)


def test_local_patches_see_their_neighbours_and_the_class_token(randomised):
  """With one block, a patch two columns away changes nothing."""
  model = encoder(randomised, method="local", num_layers=1)
  x = jnp.asarray(np.random.default_rng(0).normal(size=(1, 9, 48)), jnp.float32)
  grads = jax.jacobian(lambda x: model.encode_patches(x)[1][0, 0].sum())(x)
  seen = np.abs(grads[0]).max(-1) > 0
  assert seen.reshape(3, 3).tolist() == [[1, 1, 0], [1, 1, 0], [0, 0, 0]]
  summary = jax.jacobian(lambda x: model.encode_patches(x)[0].sum())(x)
  assert (np.abs(summary[0]).max(-1) > 0).all()


def test_paths_are_dropped_for_whole_rows_and_keep_their_mean(randomised):
  model = encoder(randomised, method="base", drop_path=0.4)
  patches = jnp.broadcast_to(jnp.ones((1, 9, 48)), (64, 9, 48))
  plain, _ = model.encode_patches(patches)
  first, _ = model.encode_patches(patches, key=jax.random.key(0))
  again, _ = model.encode_patches(patches, key=jax.random.key(1))
  assert len(np.unique(np.asarray(plain).round(4), axis=0)) == 1
  # Of the second of two blocks, each branch is kept or not: four results.
  kinds = [len(np.unique(np.asarray(a).round(4), axis=0)) for a in (first, again)]
  assert kinds == [4, 4]
  assert np.abs(first - again).max() > 1e-3
