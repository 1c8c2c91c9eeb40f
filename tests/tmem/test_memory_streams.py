"""A stream in pieces is the stream in one piece: tokens that wait for their chunk."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tmem import MemoryConfig, TensorMemory

FEATURES, CHUNK, LENGTH = 3, 3, 11
CUTS = [[1] * 11, [2, 1, 1, 2, 5], [5, 5, 1], [1, 2, 1, 2, 5], [2, 2, 2, 5], [5, 1, 5]]


def make(**changes):
  settings = {"channels": 2, "grid": (4,), "chunk_size": CHUNK, "tail": "hold", **changes}
  return TensorMemory(MemoryConfig(**settings), FEATURES, rngs=nnx.Rngs(0))


@pytest.fixture(scope="module", params=["first", "token"])
def memory(request, randomised):
  return randomised(lambda: make(read_query=request.param))


@pytest.fixture(scope="module")
def hold(memory, compiled):
  return compiled(memory)


@pytest.fixture(scope="module")
def commit(memory, compiled):
  return compiled(memory, tail="commit")


@pytest.fixture(scope="module")
def x():
  return np.random.default_rng(0).normal(size=(3, LENGTH, FEATURES)).astype(np.float32)


@pytest.fixture(scope="module")
def mask():
  """The first row is whole; in the others a chunk, the start and the end have holes."""
  rows = ["11111111111", "01000110101", "10110000010"]
  return np.array([[c == "1" for c in row] for row in rows])


def feed(call, x, mask, state, cuts):
  pieces, start = [], 0
  for length in cuts:
    piece = slice(start, start + length)
    y, state = call(x[:, piece], state, mask[:, piece])
    pieces.append(y)
    start += length
  return jnp.concatenate(pieces, axis=1), state


def assert_states_close(one, other, **tolerance):
  tolerance = tolerance or {"atol": 1e-6}
  for name in one._fields:
    np.testing.assert_allclose(getattr(one, name), getattr(other, name), err_msg=name, **tolerance)


def test_pieces_equal_one_pass(memory, hold, x, mask):
  empty = memory.init_state(3)
  whole_y, whole_state = hold(x, empty, mask)
  assert np.abs(whole_y[:, -1]).max() > 1e-3
  assert np.asarray(whole_state.fill).tolist() == [LENGTH % CHUNK] * 3
  for cuts in CUTS:
    assert sum(cuts) == LENGTH
    y, state = feed(hold, x, mask, empty, cuts)
    np.testing.assert_allclose(y, whole_y, atol=1e-6, err_msg=str(cuts))
    assert_states_close(state, whole_state)


def test_without_a_mask_every_token_is_real(memory, hold, commit, x):
  empty, real = memory.init_state(3), np.ones((3, LENGTH), bool)
  for call, start in ((hold, empty), (commit, memory.init_state(3, "commit"))):
    y, state = call(x, start)
    masked_y, masked_state = call(x, start, real)
    np.testing.assert_allclose(y, masked_y, atol=1e-6)
    np.testing.assert_allclose(state.hidden, masked_state.hidden, atol=1e-6)


def test_hold_writes_whole_chunks_and_commit_the_rest_too(memory, hold, commit, x, mask, reference):
  empty, oracle = memory.init_state(3), reference["Oracle"](memory)
  held_y, held = hold(x, empty, mask)
  y, committed = commit(x, empty, mask)
  np.testing.assert_allclose(held_y, y, atol=1e-6)
  whole = LENGTH // CHUNK * CHUNK
  for row in range(3):
    expected_y, hidden, _ = oracle.run(x[row], mask[row])
    np.testing.assert_allclose(y[row], expected_y, atol=1e-5)
    np.testing.assert_allclose(committed.hidden[row], hidden, atol=1e-5)
    _, hidden, _ = oracle.run(x[row, :whole], mask[row, :whole])
    np.testing.assert_allclose(held.hidden[row], hidden, atol=1e-5)
  assert np.abs(held.hidden - committed.hidden).max() > 1e-3
  assert not np.asarray(committed.fill).any()
  assert not np.asarray(committed.pending).any()
  np.testing.assert_array_equal(held.pending, np.where(mask, 1, 0)[:, 9:, None] * x[:, 9:])
  np.testing.assert_array_equal(held.pending_mask, mask[:, 9:])


def test_commit_flushes_what_waits(memory, hold, commit, x, mask):
  empty = memory.init_state(3)
  y, expected = commit(x, empty, mask)
  _, held = hold(x, empty, mask)
  nothing, flushed = commit(x[:, :0], held, mask[:, :0])
  assert nothing.shape == (3, 0, FEATURES)
  assert_states_close(flushed, expected)
  _, earlier = feed(hold, x, mask, empty, [5, 1])
  rest, finished = commit(x[:, 6:], earlier, mask[:, 6:])
  np.testing.assert_allclose(rest, y[:, 6:], atol=1e-6)
  assert_states_close(finished, expected)
  # and after it a chunk begins
  again, _ = hold(x, flushed, mask)
  fresh, _ = hold(x, empty._replace(hidden=flushed.hidden, cell=flushed.cell), mask)
  np.testing.assert_array_equal(again, fresh)


def test_no_tokens_at_all(memory, hold, commit, x):
  for call, tail in ((hold, "hold"), (commit, "commit")):
    state = memory.init_state(3, tail)
    state = state._replace(hidden=state.hidden + 0.5)
    y, after = call(x[:, :0], state)
    assert y.shape == (3, 0, FEATURES)
    jax.tree.map(np.testing.assert_array_equal, after, state)


def test_rows_may_have_got_differently_far(memory, hold, x, mask):
  """Rows of three streams, with 0, 1 and 2 tokens waiting, go on together."""
  empty = memory.init_state(3)
  states = [feed(hold, x, mask, empty, cuts)[1] for cuts in ([1, 2], [2, 2], [5])]
  gathered = jax.tree.map(lambda *a: jnp.stack([a[row][row] for row in range(3)]), *states)
  assert np.asarray(gathered.fill).tolist() == [0, 1, 2]
  ends = [3, 4, 5]
  following = np.stack([x[row, ends[row] : ends[row] + 5] for row in range(3)])
  following_mask = np.stack([mask[row, ends[row] : ends[row] + 5] for row in range(3)])
  y, after = hold(following, gathered, following_mask)
  for row, state in enumerate(states):
    piece = slice(ends[row], ends[row] + 5)
    expected_y, expected = hold(x[:, piece], state, mask[:, piece])
    np.testing.assert_allclose(y[row], expected_y[row], atol=1e-6)
    assert_states_close(
      jax.tree.map(lambda a, r=row: a[r], after), jax.tree.map(lambda a, r=row: a[r], expected)
    )


def test_a_state_without_room_is_given_some(memory, hold, x, mask):
  y, state = hold(x, memory.init_state(3, "commit"), mask)
  expected_y, expected = hold(x, memory.init_state(3), mask)
  np.testing.assert_array_equal(y, expected_y)
  assert_states_close(state, expected, rtol=0)


def test_gradients_pass_through_waiting_tokens(randomised, x, mask):
  memory = randomised(make)
  graphdef, params = nnx.split(memory)
  start = memory.init_state(3)

  def whole(params, x):
    return nnx.merge(graphdef, params)(x, start, mask)

  def token_by_token(params, x):
    def step(state, token):
      y, state = nnx.merge(graphdef, params)(token[0][:, None], state, token[1][:, None])
      return state, y[:, 0]

    state, y = jax.lax.scan(step, start, (x.swapaxes(0, 1), mask.T))
    return y.swapaxes(0, 1), state

  def gradients(call):
    def loss(params, x):
      y, state = call(params, x)
      return jnp.sum(jnp.sin(y)) + jnp.sum(state.hidden)

    return jax.jit(jax.grad(loss, argnums=(0, 1)))(params, x)

  expected = gradients(whole)
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), gradients(token_by_token), expected
  )
  assert np.abs(expected[1]).max() > 1e-2


def test_chunks_of_one_token_never_wait(compiled, randomised, x):
  memory = randomised(lambda: make(chunk_size=1))
  state = memory.init_state(3)
  assert state.pending.shape == (3, 0, FEATURES)
  y, after = compiled(memory)(x, state)
  expected_y, expected = compiled(memory)(x, memory.init_state(3, "commit"))
  committed_y, committed = compiled(memory, tail="commit")(x, memory.init_state(3, "commit"))
  for other in (expected_y, committed_y):
    np.testing.assert_allclose(y, other, atol=1e-6)
  for other in (expected, committed):
    np.testing.assert_allclose(after.hidden, other.hidden, atol=1e-6)
