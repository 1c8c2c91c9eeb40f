"""The gated delta rule against its recurrence in numpy, one token after another."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tmem.gated_delta import BLOCK, GatedDelta, gated_delta_rule, unit_lower_inverse
from tmem.layout import Layout

HEADS, SIZE = 2, 4


def random_inputs(length, batch=2):
  rng = np.random.default_rng(length)
  q, k, v = rng.normal(size=(3, batch, length, HEADS, SIZE))
  k /= np.linalg.norm(k, axis=-1, keepdims=True)
  log_decay = -rng.exponential(0.2, size=(batch, length, HEADS))
  return q, k, v, log_decay, rng.uniform(size=(batch, length, HEADS))


def recurrence(q, k, v, log_decay, rate):
  """By the definition: [batch, tokens, heads, size]."""
  y = np.zeros_like(v)
  for row, head in np.ndindex(q.shape[0], HEADS):
    state = np.zeros((SIZE, SIZE))
    for t in range(q.shape[1]):
      key, beta = k[row, t, head], rate[row, t, head]
      forget = np.eye(SIZE) - beta * np.outer(key, key)
      state = np.exp(log_decay[row, t, head]) * forget @ state
      state += beta * np.outer(key, v[row, t, head])
      y[row, t, head] = state.T @ q[row, t, head]
  return y


@pytest.fixture(scope="module")
def rule():
  return jax.jit(lambda *a: gated_delta_rule(*a)[0])


@pytest.mark.parametrize("length", [1, 5, BLOCK, BLOCK + 1, 2 * BLOCK + 7])
def test_blocks_equal_the_recurrence(length, rule):
  inputs = random_inputs(length)
  with jax.enable_x64(True):
    y = rule(*map(jnp.asarray, inputs))
  np.testing.assert_allclose(y, recurrence(*inputs), atol=1e-12)


@pytest.mark.parametrize("size", [1, 2, 5, BLOCK])
def test_the_inverse_of_a_block_and_its_gradient(size):
  lower = np.tril(np.random.default_rng(size).normal(size=(2, size, size)), -1) / 3

  def whole(lower):
    return jnp.linalg.inv(lower + jnp.eye(size))

  def loss(inverse, lower):
    return jnp.sum(jnp.sin(inverse(lower)))

  with jax.enable_x64(True):
    lower = jnp.asarray(lower)
    np.testing.assert_allclose(unit_lower_inverse(lower), whole(lower), atol=1e-12)
    ours, theirs = (jax.grad(loss, 1)(f, lower) for f in (unit_lower_inverse, whole))
  np.testing.assert_allclose(np.tril(ours, -1), np.tril(theirs, -1), atol=1e-10)


def test_nothing_waits_for_a_thread():
  """XLA's solver on CPUs hangs with several devices in a process."""
  inputs = map(jnp.asarray, random_inputs(BLOCK))
  program = jax.jit(jax.grad(lambda *a: gated_delta_rule(*a)[0].sum(), 1)).lower(*inputs)
  assert "custom-call" not in program.compile().as_text()


def test_a_key_brings_back_the_last_value_written_to_it(rule):
  """Rate 1 overwrites: of two values under one key the first is gone."""
  q, k, v, log_decay, rate = random_inputs(2, batch=1)
  k[:, 1] = q[:, 1] = k[:, 0]
  y = rule(q, k, v, 0 * log_decay, 0 * rate + 1)
  np.testing.assert_allclose(y[:, 1], v[:, 1], atol=1e-5)


def test_equal_keys_stay_exact(rule):
  """All keys of a block alike: powers of what couples them would not survive float32."""
  q, k, v, log_decay, rate = random_inputs(BLOCK)
  k[:] = k[:, :1]
  y = rule(*(jnp.asarray(a, jnp.float32) for a in (q, k, v, log_decay, 0 * rate + 1)))
  np.testing.assert_allclose(y, recurrence(q, k, v, log_decay, 0 * rate + 1), atol=1e-5)


@pytest.mark.parametrize("decay", [0.0, -1e4])
def test_gradients_are_finite_for_any_decay(decay):
  q, k, v, log_decay, rate = random_inputs(BLOCK + 3)
  inputs = (q, k, v, np.full_like(log_decay, decay), rate)
  grads = jax.jit(
    jax.grad(lambda *a: jnp.sum(jnp.sin(gated_delta_rule(*a)[0])), argnums=(0, 1, 2, 3))
  )
  assert all(np.isfinite(grad).all() for grad in grads(*inputs))


def test_gradients_are_finite_where_a_document_before_has_decayed_to_nothing():
  q, k, v, log_decay, rate = (a.astype(np.float32) for a in random_inputs(BLOCK))
  document = np.tile(np.arange(BLOCK) >= BLOCK - 2, (2, 1)).astype(np.int32)

  def loss(log_decay):
    return jnp.sum(jnp.sin(gated_delta_rule(q, k, v, log_decay, rate, document)[1]))

  grads = jax.jit(jax.grad(loss))(jnp.full_like(log_decay, -6.0))
  assert np.isfinite(grads).all()
  assert np.abs(grads).max() > 0


@pytest.fixture(scope="module")
def module(randomised):
  types = {"dtype": jnp.float32, "param_dtype": jnp.float32}
  return randomised(lambda: GatedDelta(HEADS * SIZE, HEADS, **types, rngs=nnx.Rngs(0)))


def test_masked_tokens_are_as_good_as_none(module, compiled):
  x = np.random.default_rng(0).normal(size=(1, 9, HEADS * SIZE)).astype(np.float32)
  whole = compiled(module)(x, Layout(np.ones((1, 9), bool)))[0]
  for left, right in ((3, 0), (0, 4)):
    padded = np.pad(x, [(0, 0), (left, right), (0, 0)], constant_values=7.0)
    mask = np.pad(np.ones((1, 9), bool), [(0, 0), (left, right)])
    y = compiled(module)(padded, Layout(mask))[0][:, left : left + 9]
    np.testing.assert_allclose(y, whole, atol=1e-5)


def test_a_token_is_mixed_from_those_before_it_alone(module, compiled):
  x = np.random.default_rng(1).normal(size=(1, 9, HEADS * SIZE)).astype(np.float32)
  before = np.asarray(compiled(module)(x, Layout())[0])
  for position in range(9):
    other = x.copy()
    other[:, position] += 1.0
    moved = np.abs(compiled(module)(other, Layout())[0] - before).max(axis=(0, 2)) > 0
    assert moved.tolist() == [query >= position for query in range(9)]


def test_what_a_stream_keeps_does_not_grow(module):
  sizes = [jax.tree.map(jnp.size, module.empty_past(1, length)) for length in (10, 10_000)]
  assert sizes[0] == sizes[1] == (HEADS * SIZE * SIZE, 3 * 3 * HEADS * SIZE)
