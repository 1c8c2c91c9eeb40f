"""Rotary positions against turning complex numbers, in numpy."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tmem.decoder_config import METHODS
from tmem.models import LanguageConfig, LanguageModel
from tmem.rotary import rotate


def test_pairs_turn_as_complex_numbers():
  x = np.random.default_rng(0).normal(size=(2, 5, 3, 8))
  position = np.array([0, 1, 2, 7, 1000])
  speed = 10_000.0 ** -np.array([0.0, 0.25, 0.5, 0.75])
  turned = (x[..., :4] + 1j * x[..., 4:]) * np.exp(1j * position[:, None, None] * speed)
  expected = np.concatenate([turned.real, turned.imag], axis=-1)
  np.testing.assert_allclose(rotate(jnp.asarray(x), jnp.asarray(position)), expected, atol=2e-4)


def test_products_depend_on_the_distance_alone():
  q, k = np.random.default_rng(1).normal(size=(2, 1, 6, 1, 4)).astype(np.float32)
  q, k = np.broadcast_to(q[:, :1], q.shape), np.broadcast_to(k[:, :1], k.shape)
  position = jnp.arange(6)
  products = np.einsum("bqhd,bkhd->qk", rotate(q, position), rotate(k, position))
  for distance in range(-5, 6):
    diagonal = np.diagonal(products, distance)
    np.testing.assert_allclose(diagonal, diagonal[0], atol=1e-5)
  assert np.ptp(products) > 0.1


def test_bfloat16_is_turned_in_float32():
  """At position 4001, 4000 in bfloat16, a turn of bfloat16 angles is off by a whole radian."""
  x = jnp.ones((1, 1, 1, 2), jnp.bfloat16)
  turned = np.asarray(rotate(x, jnp.array([4001])), np.float32)
  expected = np.cos(4001) - np.sin(4001), np.sin(4001) + np.cos(4001)
  np.testing.assert_allclose(turned[0, 0, 0], expected, rtol=1e-2)


def test_a_model_with_rotary_positions_takes_streams_of_any_length(randomised):
  config = LanguageConfig(
    vocab_size=7, features=8, num_heads=2, num_layers=1, max_length=4, method="local_rope", window=3
  )
  model = randomised(lambda: LanguageModel(config, rngs=nnx.Rngs(0)))
  assert model.positions is None
  tokens = jnp.array([[1, 2, 3, 1, 2, 3, 1, 2, 3]])
  logits = model(tokens)
  np.testing.assert_allclose(logits[:, 3:6], logits[:, 6:9], atol=1e-5)  # wherever it stands
  assert np.abs(logits[:, 2] - logits[:, 5]).max() < 1e-5
  assert np.abs(logits[:, 1] - logits[:, 4]).max() > 1e-3  # token 1 sees one token less


@pytest.mark.parametrize("method", [name for name, m in METHODS.items() if m.positions == "rotary"])
def test_heads_of_an_odd_size_are_refused(method):
  with pytest.raises(ValueError, match=r"features: .* got 6 in 2 heads"):
    LanguageConfig(vocab_size=7, features=6, num_heads=2, method=method)
