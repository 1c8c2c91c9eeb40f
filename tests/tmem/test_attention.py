"""Windowed attention against full attention under a band, in numpy."""

import functools

import jax
import numpy as np
import pytest
from flax import nnx

from tmem.attention import SelfAttention, causal_attention, local_attention
from tmem.layout import Layout

HEADS, SIZE, WINDOW = 2, 3, 4


@pytest.fixture(scope="module")
def full():
  return jax.jit(causal_attention)


@pytest.fixture(scope="module")
def local():
  return jax.jit(local_attention, static_argnums=3)


def random_qkv(length, batch=2):
  return np.random.default_rng(length).normal(size=(3, batch, length, HEADS, SIZE)).astype("f")


def dense(q, k, v, window=None, mask=None):
  """Softmax over an explicit [tokens, tokens] table of what is visible."""
  position = np.arange(q.shape[1])
  distance = position[:, None] - position[None]
  visible = (distance >= 0) & (distance < (window or len(position)))
  if mask is not None:  # a token that does not exist is seen by itself alone
    visible = visible & (mask[:, None, None, :] | (distance == 0))
  scores = np.einsum("bqhd,bkhd->bhqk", q, k, dtype=np.float64) / np.sqrt(q.shape[-1])
  weights = np.exp(np.where(visible, scores, -np.inf))
  return np.einsum("bhqk,bkhd->bqhd", weights / weights.sum(-1, keepdims=True), v)


@pytest.mark.parametrize("masked", [False, True])
def test_full_attention_matches_numpy(masked, full):
  q, k, v = random_qkv(7)
  mask = np.random.default_rng(1).uniform(size=(2, 7)) < 0.6 if masked else None
  np.testing.assert_allclose(full(q, k, v, mask), dense(q, k, v, mask=mask), atol=1e-6)


@pytest.mark.parametrize(
  ("length", "window"), [(1, 4), (3, 4), (4, 4), (5, 4), (8, 4), (9, 4), (5, 1), (6, 2), (3, 50)]
)
def test_windowed_attention_is_full_attention_under_a_band(length, window, local):
  q, k, v = random_qkv(length)
  out = local(q, k, v, window, None)
  np.testing.assert_allclose(out, dense(q, k, v, window), atol=1e-6)
  if window == 1:
    np.testing.assert_allclose(out, v, atol=1e-6)


@pytest.mark.parametrize("length", [3, 8, 10])
def test_masked_keys_are_not_seen(length, local):
  q, k, v = random_qkv(length)
  mask = np.random.default_rng(2).uniform(size=(2, length)) < 0.5
  mask[1] = False
  out = local(q, k, v, WINDOW, mask)
  np.testing.assert_allclose(out, dense(q, k, v, WINDOW, mask), atol=1e-6)
  np.testing.assert_allclose(out[1], v[1], atol=1e-6)  # nothing but themselves


@pytest.mark.parametrize("masked", [False, True])
def test_keys_out_of_the_window_have_exactly_no_influence(masked, local):
  length = 11
  q, k, v = random_qkv(length)
  mask = np.ones((2, length), bool) if masked else None
  before = np.asarray(local(q, k, v, WINDOW, mask))
  for position in range(length):
    other_k, other_v = k.copy(), v.copy()
    other_k[:, position] += 3.0
    other_v[:, position] -= 9.0
    changed = np.any(local(q, other_k, other_v, WINDOW, mask) != before, axis=(0, 2, 3))
    expected = [position <= query < position + WINDOW for query in range(length)]
    assert changed.tolist() == expected


def test_work_grows_with_the_window_and_not_with_the_square():
  length, window = 64, 8
  q = jax.ShapeDtypeStruct((1, length, 1, 2), np.float32)

  def largest(attend):
    jaxpr = jax.make_jaxpr(attend)(q, q, q).jaxpr
    return max(v.aval.size for equation in jaxpr.eqns for v in equation.outvars)

  full = functools.partial(causal_attention, mask=None)
  local = functools.partial(local_attention, window=window, mask=None)
  assert largest(full) == length * length
  assert largest(local) == length * 2 * window


@pytest.mark.parametrize("window", [None, 3])
def test_module_projects_attends_and_projects_back(window, randomised, compiled):
  types = {"dtype": np.float32, "param_dtype": np.float32}
  kind = "full" if window is None else "window"
  module = randomised(
    lambda: SelfAttention(HEADS * SIZE, HEADS, kind, window, **types, rngs=nnx.Rngs(0))
  )
  x = np.random.default_rng(0).normal(size=(2, 7, HEADS * SIZE)).astype(np.float32)
  mask = np.random.default_rng(1).uniform(size=(2, 7)) < 0.6
  arrays = nnx.to_pure_dict(nnx.state(module))
  qkv = x @ np.asarray(arrays["qkv"]["kernel"]) + arrays["qkv"]["bias"]
  q, k, v = (part.reshape(2, 7, HEADS, SIZE) for part in np.split(np.asarray(qkv), 3, axis=-1))
  attended = dense(q, k, v, window, mask).reshape(x.shape)
  expected = attended @ np.asarray(arrays["out"]["kernel"]) + arrays["out"]["bias"]
  np.testing.assert_allclose(compiled(module)(x, Layout(mask))[0], expected, atol=1e-5)
