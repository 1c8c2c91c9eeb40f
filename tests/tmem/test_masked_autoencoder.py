"""Masked autoencoders: what is hidden has no influence, what is seen has."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tmem import MemoryConfig
from tmem.image_models import METHODS
from tmem.masked_autoencoder import AutoencoderConfig, MaskedAutoencoder

SMALL = {
  "image_size": 12,
  "patch_size": 4,
  "features": 16,
  "num_layers": 2,
  "decoder_features": 8,
  "decoder_heads": 2,
  "memory": MemoryConfig(grid=(2, 2, 2), channels=4, chunk_size=2, read_heads=1),
}


@pytest.fixture(scope="module", params=METHODS)
def run(request, randomised):
  config = AutoencoderConfig(method=request.param, **SMALL)
  graphdef, params = nnx.split(randomised(lambda: MaskedAutoencoder(config, rngs=nnx.Rngs(0))))
  return jax.jit(lambda *args: nnx.merge(graphdef, params)(*args))


def test_hidden_patches_have_no_influence_and_seen_ones_have(run):
  rng = np.random.default_rng(0)
  patches = jnp.asarray(rng.normal(size=(2, 9, 48)), jnp.float32)
  visible = jnp.asarray([[1, 4, 6], [0, 5, 8]])
  plain = run(patches, visible)
  assert plain.shape == patches.shape
  hidden = run(patches.at[:, 2].add(jnp.nan), visible)
  np.testing.assert_array_equal(hidden, plain)
  seen = np.abs(run(patches.at[0, 4].add(1.0), visible) - plain)
  assert (seen[0].max(-1) > 1e-4).all()  # of every patch, that of a seen one, too
  assert not seen[1].any()


def test_patches_are_told_apart_by_their_places(run):
  """The same pixels seen elsewhere make another image."""
  patches = jnp.broadcast_to(jnp.ones((1, 1, 48)), (1, 9, 48))
  here, there = (run(patches, jnp.asarray([[a, b]])) for a, b in ((0, 1), (4, 8)))
  assert np.abs(here - there).max() > 1e-2
  masked = np.asarray(here[0, 2:]).round(4)
  assert len(np.unique(masked, axis=0)) == 7  # mask tokens differ by their positions


def test_it_learns_an_image(randomised):
  """A few steps on one image, the same half of it hidden: the hidden half is learnt by heart."""
  config = AutoencoderConfig(method="tensor", **SMALL)
  graphdef, params = nnx.split(MaskedAutoencoder(config, rngs=nnx.Rngs(0)))
  rng = np.random.default_rng(0)
  patches = jnp.asarray(rng.normal(size=(1, 9, 48)), jnp.float32)
  visible, hidden = jnp.asarray([[0, 2, 4, 6, 8]]), np.array([1, 3, 5, 7])

  @jax.jit
  def step(params):
    def loss(params):
      told = nnx.merge(graphdef, params)(patches, visible)
      return jnp.mean(jnp.square(told - patches)[:, hidden])

    value, grads = jax.value_and_grad(loss)(params)
    return value, jax.tree.map(lambda p, g: p - 0.3 * g, params, grads)

  losses = []
  for _ in range(60):
    value, params = step(params)
    losses.append(float(value))
  assert losses[-1] < 0.7 * losses[0]


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"decoder_layers": 0}, "decoder_layers: got 0"),
    ({"decoder_features": 9}, "decoder_features: 9 is not a multiple of decoder_heads 2"),
  ],
)
def test_bad_configurations_name_the_field(changes, message):
  with pytest.raises(ValueError, match=message):
    AutoencoderConfig(**SMALL | changes)


def test_shapes_that_do_not_fit_are_refused(run):
  patches = jnp.zeros((2, 9, 48))
  with pytest.raises(ValueError, match=r"patches: got shape \(2, 8, 48\)"):
    run(patches[:, 1:], jnp.zeros((2, 3), jnp.int32))
  for shape in ((2, 0), (1, 3), (2,)):
    with pytest.raises(ValueError, match=r"visible: got shape"):
      run(patches, jnp.zeros(shape, jnp.int32))
