"""Attention through a kernel, against its formula."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tmem import linear_attention as module

SHAPE = (2, 11, 3, 4)


def formula(q, k, v, mask):
  """One query at a time, in float64."""
  kernel = lambda x: np.where(x > 0, x + 1.0, np.exp(np.minimum(x, 0.0)))  # noqa: E731
  q, k = kernel(q), kernel(k) * mask[..., None, None]
  out = np.zeros_like(v)
  for t in range(v.shape[1]):
    weights = np.einsum("bhd,bshd->bsh", q[:, t], k[:, : t + 1])
    total = weights.sum(axis=1)[..., None] + 1e-6
    out[:, t] = np.einsum("bsh,bshd->bhd", weights, v[:, : t + 1]) / total
  return out


@pytest.mark.parametrize("block", [1, 4, 64])
@pytest.mark.parametrize("masked", [False, True])
def test_any_block_matches_the_formula(block, masked, monkeypatch):
  monkeypatch.setattr(module, "BLOCK", block)
  rng = np.random.default_rng(0)
  q, k, v = rng.normal(size=(3, *SHAPE))
  mask = rng.uniform(size=SHAPE[:2]) < 0.6 if masked else np.ones(SHAPE[:2], bool)
  with jax.enable_x64(True):
    run = jax.jit(lambda *a: module.linear_attention(*a, mask if masked else None)[0])
    np.testing.assert_allclose(run(q, k, v), formula(q, k, v, mask), rtol=1e-10, atol=1e-10)


def test_no_tensor_of_tokens_times_head_size_squared_is_made():
  q = jax.ShapeDtypeStruct((1, 4096, 1, 32), jnp.float32)
  jaxpr = jax.make_jaxpr(lambda q: module.linear_attention(q, q, q, None))(q).jaxpr
  largest = max(v.aval.size for equation in jaxpr.eqns for v in equation.outvars)
  assert largest <= 4096 * 33


def test_bfloat16_sums_in_float32():
  rng = np.random.default_rng(0)
  q, k, v = (jnp.asarray(a, jnp.bfloat16) for a in rng.normal(size=(3, 1, 2048, 1, 8)))
  out = jax.jit(lambda *a: module.linear_attention(*a, None)[0])(q, k, v)
  wide = formula(*(np.asarray(a, np.float64) for a in (q, k, v)), np.ones((1, 2048)))
  assert out.dtype == jnp.bfloat16
  np.testing.assert_allclose(np.asarray(out, np.float64), wide, atol=0.02)
