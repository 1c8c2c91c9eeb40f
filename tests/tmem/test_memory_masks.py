"""Tokens that do not exist change nothing, and rows do not know of each other."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tmem import MemoryConfig, TensorMemory

FEATURES, CHUNK, LENGTH = 3, 3, 8


@pytest.fixture(scope="module", params=["convlstm", "selective"])
def memory(request, randomised):
  config = MemoryConfig(channels=2, grid=(2, 3), chunk_size=CHUNK, dynamics=request.param)
  return randomised(lambda: TensorMemory(config, FEATURES, rngs=nnx.Rngs(0)))


@pytest.fixture(scope="module")
def start(memory):
  rng = np.random.default_rng(5)
  state = memory.init_state(3)
  return jax.tree.map(lambda a: jnp.asarray(rng.normal(size=a.shape), a.dtype), state)


@pytest.fixture(scope="module")
def derive(memory):
  """((loss, (y, state)), gradients of parameters, x and state), of real tokens only."""
  graphdef, params = nnx.split(memory)

  def loss(params, x, state, mask):
    y, state = nnx.merge(graphdef, params)(x, state, mask)
    used = jnp.where(mask[..., None], jnp.sin(y), 0)
    return jnp.sum(used) + jnp.sum(jnp.cos(state.hidden)), (y, state)

  call = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True))
  return lambda x, state, mask: call(params, x, state, mask)


@pytest.fixture(scope="module")
def x():
  return np.random.default_rng(0).normal(size=(3, LENGTH, FEATURES)).astype(np.float32)


def assert_identical(one, other):
  jax.tree.map(np.testing.assert_array_equal, one, other)


@pytest.mark.parametrize("junk", [np.nan, np.inf, -1e30, 7.0])
def test_contents_of_masked_tokens_change_nothing(junk, derive, start, x):
  mask = np.ones((3, LENGTH), bool)
  mask[0, [0, 3, 4, 5]] = False  # the first of a chunk, a whole chunk
  mask[1, 6:] = False  # the ragged end
  mask[2] = False
  clean = derive(np.where(mask[..., None], x, 0).astype(np.float32), start, mask)
  dirty = derive(np.where(mask[..., None], x, junk).astype(np.float32), start, mask)
  assert_identical(dirty, clean)
  assert all(np.isfinite(a).all() for a in jax.tree.leaves(dirty))
  _, x_grad, _ = dirty[1]
  assert not np.asarray(x_grad)[~mask].any()
  assert np.abs(x_grad[0, 1]).max() > 1e-3


def test_nothing_but_masked_tokens_change_nothing(derive, start, x):
  (_, (y, state)), (param_grads, x_grad, state_grads) = derive(
    x, start, np.zeros((3, LENGTH), bool)
  )
  assert_identical(state, start)
  for zero in (y, x_grad, state_grads.cell, *jax.tree.leaves(param_grads)):
    assert not np.asarray(zero).any()
  np.testing.assert_allclose(state_grads.hidden, -np.sin(start.hidden), rtol=1e-6)


@pytest.mark.parametrize("real", range(LENGTH + 1))
def test_padding_on_the_right_does_not_matter(real, memory, derive, start, x, reference):
  mask = np.broadcast_to(np.arange(LENGTH) < real, (3, LENGTH))
  (_, (y, state)), _ = derive(x, start, mask)
  for row in range(3):
    expected_y, hidden, cell = reference["Oracle"](memory).run(
      x[row, :real], hidden=start.hidden[row], cell=start.cell[row]
    )
    np.testing.assert_allclose(y[row, :real], expected_y, atol=1e-5)
    np.testing.assert_allclose(state.hidden[row], hidden, atol=1e-5)
    np.testing.assert_allclose(state.cell[row], cell, atol=1e-5)


def test_padding_on_the_left_by_whole_chunks_does_not_matter(derive, start, x):
  right = np.broadcast_to(np.arange(LENGTH) < LENGTH - CHUNK, (3, LENGTH))
  left = np.broadcast_to(np.arange(LENGTH) >= CHUNK, (3, LENGTH))
  moved = np.roll(x, CHUNK, axis=1)
  (_, (y, state)), (grads, *_) = derive(x, start, right)
  (_, (moved_y, moved_state)), (moved_grads, *_) = derive(moved, start, left)
  np.testing.assert_allclose(moved_y[:, CHUNK:], y[:, :-CHUNK], atol=1e-6)
  np.testing.assert_allclose(moved_state.hidden, state.hidden, atol=1e-6)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), moved_grads, grads)


def test_rows_do_not_know_of_each_other(derive, start, x):
  mask = np.ones((3, LENGTH), bool)
  (_, (y, state)), (_, x_grad, _) = derive(x, start, mask)
  other_x, other_mask = x.copy(), mask.copy()
  other_x[1] = 30.0 * x[1] + 1.0
  other_mask[1, 2:5] = False
  (_, (other_y, other_state)), (_, other_grad, _) = derive(other_x, start, other_mask)
  for row in (0, 2):
    np.testing.assert_array_equal(other_y[row], y[row])
    np.testing.assert_array_equal(other_state.hidden[row], state.hidden[row])
    np.testing.assert_array_equal(other_grad[row], x_grad[row])
  assert np.abs(other_y[1] - y[1]).max() > 1e-2
