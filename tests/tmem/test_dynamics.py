"""Dynamics beside the published one: against numpy, fast against plain, and what they store."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tmem import GateParams, MemoryConfig, TensorMemory, blocks, memory_scan, memory_step
from tmem.cell import StepInputs
from tmem.config import DYNAMICS as NAMES
from tmem.diagonal import block_size, sequential_depth
from tmem.dynamics import DYNAMICS

DIAGONAL = ("parallel", "selective")
MODES = {
  "sequential": (blocks.sequential_forward, blocks.sequential_backward),
  "associative": (blocks.associative_forward, blocks.associative_backward),
}


def test_every_name_has_its_dynamics():
  assert tuple(DYNAMICS) == NAMES
  with pytest.raises(ValueError, match=r"^dynamics: got 'lstm', expected one of 'convlstm', "):
    MemoryConfig(dynamics="lstm")


@pytest.mark.parametrize("name", ["convlstm", *DIAGONAL])
def test_step_matches_numpy(name, reference, random_case):
  params, state, inputs = random_case(name, (3, 4, 2), chunks=1)
  now = jax.tree.map(lambda a: a[0], inputs)
  with jax.enable_x64(True):
    after, read = jax.jit(memory_step)(params, state, now)
  for row in range(2):
    expected = [reference["sample"](state.hidden[row], c) for c in now.read_at[row]]
    np.testing.assert_allclose(read[row], expected, atol=1e-12)
    hidden, cell = reference["update"](
      params,
      state.hidden[row],
      state.cell[row],
      now.content[row],
      now.write_at[row],
      now.spread[row],
      name,
    )
    np.testing.assert_allclose(after.hidden[row], hidden, atol=1e-12)
    np.testing.assert_allclose(after.cell[row], cell, atol=1e-12)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", DIAGONAL)
@pytest.mark.parametrize(
  ("grid", "chunks", "masked"),
  [
    ((3, 4, 2), 17, False),
    ((5,), 18, True),
    ((1, 1), 1, False),
    ((2, 1, 2, 3), 5, True),
    ((6, 7), 17, False),  # so many cells that reads gather theirs
    ((7, 2, 4), 6, True),
  ],
)
def test_fast_equals_plain(mode, name, grid, chunks, masked, monkeypatch, random_case, results):
  forward, backward = MODES[mode]
  monkeypatch.setattr(blocks, "block_forward", forward)
  monkeypatch.setattr(blocks, "block_backward", backward)
  with jax.enable_x64(True):
    case = random_case(name, grid, chunks, masked)
    plain, fast = (results(case, implementation=i) for i in ("plain", "fast"))
    chex.assert_trees_all_close(fast, plain, rtol=1e-10, atol=1e-10)
    if grid == (3, 4, 2):  # nothing is compared that is zero for want of an influence
      assert all(np.abs(g).max() > 1e-3 for g in jax.tree.leaves(plain[1]))


@pytest.mark.parametrize(("name", "share"), [("parallel", 0.75), ("selective", 0.33)])
def test_few_states_are_stored(name, share, random_case, results):
  """Only the boundaries of blocks, and few numbers of each chunk."""
  grid, channels = (48, 48), 4
  volume = 4 * 48 * 48 * channels

  def temporaries(chunks):
    case = random_case(name, grid, chunks, batch=1, channels=channels, dtype=np.float32)
    compiled = jax.jit(lambda case: results(case)).lower(case).compile()
    return compiled.memory_analysis().temp_size_in_bytes

  few = temporaries(400)
  assert few < 400 * volume * share
  assert temporaries(1600) < 3 * few


@pytest.mark.parametrize("name", DIAGONAL)
def test_the_program_does_not_grow_with_the_chunks(name, random_case, results):
  def size(chunks):
    case = random_case(name, (2, 3), chunks, dtype=np.float32)
    return len(jax.jit(lambda case: results(case)).lower(case).as_text())

  assert block_size(16) == 2
  assert block_size(256) == 8
  assert abs(size(256) - size(16)) < 0.05 * size(16)


def test_sequential_depth():
  assert sequential_depth(256) == 32 + 3
  assert sequential_depth(1) == 1


@pytest.mark.parametrize("mode", MODES)
def test_sixteen_thousand_chunks_stay_finite_and_exact(mode, monkeypatch, random_case, results):
  forward, backward = MODES[mode]
  monkeypatch.setattr(blocks, "block_forward", forward)
  monkeypatch.setattr(blocks, "block_backward", backward)
  case = random_case("selective", (2, 2), 16384, dtype=np.float32)
  params, state, inputs = case
  # Forget gates from almost open to shut: products of many underflow, and that is right.
  inputs = inputs._replace(content=10 * inputs.content)
  (_, (after, reads)), grads = results((params, state, inputs))
  chex.assert_tree_all_finite((after, reads, grads))
  wide = jax.tree.map(lambda a: np.asarray(a, np.float64), (params, state, inputs))
  with jax.enable_x64(True):
    expected, expected_reads = jax.jit(functools.partial(memory_scan, implementation="plain"))(
      *wide
    )
  np.testing.assert_allclose(after.cell, expected.cell, rtol=1e-4, atol=1e-4)
  np.testing.assert_allclose(reads, expected_reads, atol=1e-4)


@pytest.mark.parametrize("name", DIAGONAL)
def test_a_chunk_at_a_time_equals_all_at_once(name, random_case):
  case = params, state, inputs = random_case(name, (3, 3), 9, masked=True, dtype=np.float32)
  after, reads = jax.jit(memory_scan)(*case)
  step = jax.jit(memory_scan)
  for chunk in range(9):
    state, read = step(params, state, jax.tree.map(lambda a, c=chunk: a[c : c + 1], inputs))
    np.testing.assert_allclose(reads[chunk], read[0], atol=1e-5)
  chex.assert_trees_all_close(state, after, atol=1e-5)


def test_rows_that_do_not_write_are_kept_bit_for_bit(random_case):
  params, state, inputs = random_case("selective", (2, 3), 6, dtype=np.float32)
  write = np.array([[True, False]] * 6)
  after, _ = jax.jit(memory_scan)(params, state, inputs._replace(write=write))
  np.testing.assert_array_equal(after.hidden[1], state.hidden[1])
  np.testing.assert_array_equal(after.cell[1], state.cell[1])
  assert np.abs(after.hidden[0] - state.hidden[0]).max() > 1e-2


def test_flow_starts_as_the_published_dynamics(random_case, results):
  with jax.enable_x64(True):
    params, state, inputs = random_case("flow", (3, 4), 5, masked=True)
    still = params._replace(flow=0 * params.flow, flow_bias=0 * params.flow_bias)
    _, grads = moving = results((still, state, inputs))
    published = results((GateParams(*still[:4]), state, inputs))
    chex.assert_trees_all_close(moving[0], published[0], rtol=1e-12)
    chex.assert_trees_all_close(tuple(grads[0])[:4], tuple(published[1][0]), rtol=1e-9, atol=1e-9)
    assert np.abs(grads[0].flow).max() > 1e-3  # it can learn to move


def test_flow_is_the_published_update_of_a_warped_state(random_case, reference):
  params, state, inputs = random_case("flow", (4, 3), 1)
  now = jax.tree.map(lambda a: a[0], inputs)
  with jax.enable_x64(True):
    after, _ = jax.jit(memory_step)(params, state, now)
  for row in range(2):
    hidden, cell = state.hidden[row], state.cell[row]
    write = now.content[row], now.write_at[row], now.spread[row]
    written = reference["gaussian"](*write, (4, 3))
    both = np.concatenate([written, hidden], axis=-1)
    mixed = reference["convolve"](both, params.depthwise, params.depthwise_bias)
    moves = np.tanh(mixed @ params.flow + params.flow_bias)
    warped = np.zeros((2, 4, 3, 2))
    for i, j in np.ndindex(4, 3):
      place = [2 * (j + moves[i, j, 0]) / 2 - 1, 2 * (i + moves[i, j, 1]) / 3 - 1]
      warped[:, i, j] = [reference["sample"](volume, place) for volume in (hidden, cell)]
    expected = reference["update"](params[:4], *warped, *write)
    np.testing.assert_allclose(after.hidden[row], expected[0], atol=1e-12)
    np.testing.assert_allclose(after.cell[row], expected[1], atol=1e-12)


def test_the_fast_scan_of_flow_equals_the_plain_one_and_has_no_window(random_case, results):
  with jax.enable_x64(True):
    case = random_case("flow", (3, 2), 6, masked=True)
    plain, fast = (results(case, implementation=i) for i in ("plain", "fast"))
    chex.assert_trees_all_close(fast, plain, rtol=1e-10, atol=1e-10)
  with pytest.raises(ValueError, match=r"^window: FlowParams change all cells; use None"):
    memory_scan(*case, window=(2, 2))
  with pytest.raises(ValueError, match=r"^update: 'window' leaves cells as they are"):
    MemoryConfig(dynamics="flow", update="window")


@pytest.mark.parametrize(
  ("name", "window"),
  [*((name, None) for name in NAMES), *((name, (2, 2)) for name in ("convlstm", *DIAGONAL))],
)
def test_no_chunk_at_all(name, window, random_case, results):
  params, state, inputs = random_case(name, (3, 2), 0, dtype=np.float32)
  (_, (after, reads)), grads = results((params, state, inputs), window=window)
  assert reads.shape == (0, 2, 2, 2)
  chex.assert_trees_all_equal((after.hidden, after.cell), (state.hidden, state.cell))
  assert not any(np.asarray(g).any() for g in jax.tree.leaves(grads[0]))


@pytest.mark.parametrize("window", [None, (2, 2)])
@pytest.mark.parametrize("name", ["convlstm", *DIAGONAL])
def test_no_spread_is_too_wide(name, window, random_case, results):
  params, state, inputs = random_case(name, (3, 2), 4, dtype=np.float32)
  wide = {s: inputs._replace(spread=np.full((4, 2), s, np.float32)) for s in (1e9, 1e30, np.inf)}
  found = {s: results((params, state, own), window=window) for s, own in wide.items()}
  for one in found.values():
    chex.assert_tree_all_finite(one)
  chex.assert_trees_all_close(found[1e30][0], found[1e9][0])


def test_selective_writes_leave_distant_cells_to_the_forget_gate(randomised):
  """However far training has moved the biases, or a thousand distant writes would bury a cell."""
  config = MemoryConfig(channels=3, grid=(9,), chunk_size=1, dynamics="selective")
  memory = randomised(lambda: TensorMemory(config, 4, rngs=nnx.Rngs(0)))
  params = memory.gates.params()
  keep = jax.nn.sigmoid(params.bias[3:6])
  cell = jnp.asarray(np.random.default_rng(0).normal(size=(1, 9, 3)), jnp.float32)
  state = memory.init_state(1)._replace(cell=cell)
  step = StepInputs(jnp.zeros((1, 1, 1)), -jnp.ones((1, 1)), jnp.ones((1, 3)), jnp.full(1, 0.05))
  after, _ = memory_step(params, state, step)
  np.testing.assert_allclose(after.cell[0, 4:], keep * cell[0, 4:], rtol=1e-6)
  assert np.abs(after.cell[0, 0] - keep * cell[0, 0]).max() > 0.1
