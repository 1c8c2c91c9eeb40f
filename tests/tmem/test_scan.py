"""One memory step against numpy, and the fast scan against the plain one."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tmem import (
  GateParams,
  MemoryConfig,
  MemoryState,
  StepInputs,
  init_state,
  memory_scan,
  memory_step,
)
from tmem.convolution import depthwise_conv

CHANNELS = 2


def random_params(rng, axes, channels=CHANNELS):
  sizes = {
    "depthwise": (axes, 3, 2 * channels),
    "depthwise_bias": (axes, 2 * channels),
    "pointwise": (2 * channels, 4 * channels),
    "pointwise_bias": (4 * channels,),
  }
  return GateParams(**{name: 0.7 * rng.normal(size=size) for name, size in sizes.items()})


def random_inputs(rng, chunks, batch, axes, reads=2, write=None, channels=CHANNELS):
  return StepInputs(
    read_at=rng.uniform(-1.1, 1.1, size=(chunks, batch, reads, axes)),
    write_at=rng.uniform(-1, 1, size=(chunks, batch, axes)),
    content=rng.normal(size=(chunks, batch, channels)),
    spread=rng.uniform(0.2, 1.5, size=(chunks, batch)),
    write=write,
  )


def random_state(rng, batch, grid, channels=CHANNELS):
  hidden, cell = rng.normal(size=(2, batch, *grid, channels))
  return MemoryState(np.tanh(hidden), cell)


def random_case(grid, chunks=7, batch=2, masked=False, dtype=np.float64):
  rng = np.random.default_rng(len(grid) + grid[0])
  write = rng.uniform(size=(chunks, batch)) < 0.6 if masked else None
  case = (
    random_params(rng, len(grid)),
    random_state(rng, batch, grid),
    random_inputs(rng, chunks, batch, len(grid), write=write),
  )
  return jax.tree.map(lambda a: a if a.dtype == bool else a.astype(dtype), case)


def shapes(tree):
  return jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), tree)


def value_and_grads(**settings):
  """Final state, reads, and the gradients of everything that is floating, of one random sum."""

  def run(params, hidden, cell, floats, write):
    inputs = StepInputs(*floats, write)
    state, reads = memory_scan(params, MemoryState(hidden, cell), inputs, **settings)
    total = sum(
      jnp.sum(a * jnp.cos(jnp.arange(a.size, dtype=a.dtype).reshape(a.shape)))
      for a in (state.hidden, state.cell, reads)
    )
    return total, (state, reads)

  def call(params, state, inputs):
    floats = tuple(inputs)[:4]
    derive = jax.value_and_grad(run, argnums=(0, 1, 2, 3), has_aux=True)
    return derive(params, state.hidden, state.cell, floats, inputs.write)

  return jax.jit(call)


@pytest.fixture(scope="module")
def step():
  return jax.jit(memory_step)


def test_step_reads_before_it_writes(step):
  case = random_case((3, 4, 2), chunks=1, dtype=np.float32)
  params, state, inputs = case
  now = jax.tree.map(lambda a: a[0], inputs)
  after, read = step(params, state, now)
  louder, same_read = step(params, state, now._replace(content=5 * now.content))
  np.testing.assert_array_equal(read, same_read)
  assert np.abs(louder.hidden - after.hidden).max() > 1e-2
  empty = MemoryState(*(np.zeros_like(a) for a in (state.hidden, state.cell)))
  written, nothing = step(params, empty, now)
  np.testing.assert_array_equal(nothing, 0.0)
  _, something = step(params, written, now)
  assert np.abs(something).max() > 1e-3


def test_depthwise_convolution(reference):
  rng = np.random.default_rng(0)
  volume = rng.normal(size=(1, 3, 4, 2, 2)).astype(np.float32)
  conv = jax.jit(depthwise_conv)
  identity = np.zeros((3, 3, 2), np.float32)
  identity[:, 1] = 1.0
  zero = np.zeros((3, 2), np.float32)
  np.testing.assert_array_equal(conv(volume, identity, zero), volume)
  shift = identity.copy()  # along the second axis each cell takes what its left neighbour had
  shift[1] = [[1.0, 1.0], [0.0, 0.0], [0.0, 0.0]]
  moved = np.zeros_like(volume)
  moved[:, :, 1:] = volume[:, :, :-1]
  np.testing.assert_array_equal(conv(volume, shift, zero), moved)
  kernel, bias = rng.normal(size=(3, 3, 2)), rng.normal(size=(3, 2))
  expected = reference["convolve"](volume[0], kernel, bias)
  out = conv(volume, kernel.astype(np.float32), bias.astype(np.float32))
  np.testing.assert_allclose(out[0], expected, atol=2e-5)


@pytest.mark.parametrize(
  ("grid", "masked"), [((3, 4, 5), False), ((1, 4, 6), True), ((1, 1, 1), False)]
)
def test_fast_equals_plain(grid, masked):
  with jax.enable_x64(True):
    case = random_case(grid, masked=masked)
    results = {i: value_and_grads(implementation=i)(*case) for i in ("plain", "fast")}
    chex.assert_trees_all_close(results["fast"], results["plain"], rtol=1e-11, atol=1e-11)
    _, grads = results["plain"]
    # Nothing is compared that is zero for want of an influence.
    moving = jax.tree.leaves(grads) if grid == (3, 4, 5) else jax.tree.leaves(grads[:3])
    assert all(np.abs(g).max() > 1e-3 for g in moving)


def test_recomputing_changes_nothing():
  with jax.enable_x64(True):
    case = random_case((4,), chunks=8, masked=True)
    kept = value_and_grads(implementation="fast")(*case)
    for implementation, remat in (("fast", 3), ("plain", 2)):  # with chunks left over, and without
      again = value_and_grads(implementation=implementation, remat=remat)(*case)
      chex.assert_trees_all_close(again, kept, rtol=1e-11, atol=1e-11)


def test_true_recomputes_every_root_of_the_chunks():
  case = shapes(random_case((3,), chunks=17, masked=True, dtype=np.float32))
  text = {r: str(value_and_grads(remat=r).trace(*case).jaxpr) for r in (False, True, 4, 5)}
  assert text[True] == text[4]
  assert text[True] != text[5]
  assert text[True] != text[False]


def test_the_fast_backward_pass_needs_a_fraction_of_the_memory():
  grid, channels = (14, 14), 8
  rng = np.random.default_rng(0)
  case = (
    random_params(rng, 2, channels),
    random_state(rng, 2, grid, channels),
    random_inputs(rng, 64, 2, 2, channels=channels),
  )
  case = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, jnp.float32), case)

  def temporaries(**settings):
    compiled = value_and_grads(**settings).lower(*case).compile()
    return compiled.memory_analysis().temp_size_in_bytes

  fast = temporaries(implementation="fast")
  assert fast < temporaries(implementation="plain") / 5
  assert temporaries(implementation="fast", remat=True) < fast / 2


@pytest.mark.parametrize("settings", [{}, {"remat": 4}, {"implementation": "plain"}])
def test_the_program_does_not_grow_with_the_chunks(settings):
  def size(chunks):
    case = shapes(random_case((2, 3), chunks=chunks, dtype=np.float32))
    return len(value_and_grads(**settings).lower(*case).as_text())

  few, many = size(16), size(256)
  assert abs(many - few) < 0.05 * few


def test_rows_that_do_not_write_are_kept_bit_for_bit():
  params, state, inputs = random_case((2, 3), chunks=4, dtype=np.float32)
  for implementation in ("fast", "plain"):
    scan = jax.jit(functools.partial(memory_scan, implementation=implementation))
    write = np.array([[True, False]] * 4)
    after, reads = scan(params, state, inputs._replace(write=write))
    np.testing.assert_array_equal(after.hidden[1], state.hidden[1])
    np.testing.assert_array_equal(after.cell[1], state.cell[1])
    assert np.abs(after.hidden[0] - state.hidden[0]).max() > 1e-2
    everyone, _ = scan(params, state, inputs._replace(write=np.ones_like(write)))
    np.testing.assert_array_equal(after.hidden[0], everyone.hidden[0])
    assert np.abs(everyone.hidden[1] - state.hidden[1]).max() > 1e-2
    # A row reads all the same, and what its neighbour is and does makes no difference to it.
    other = state._replace(hidden=state.hidden * [[[[1.0]]], [[[-3.0]]]])
    other = jax.tree.map(lambda a: a.astype(np.float32), other)
    alone, reads_alone = scan(params, other, inputs._replace(write=write))
    np.testing.assert_array_equal(reads_alone[:, 0], reads[:, 0])
    np.testing.assert_array_equal(alone.hidden[0], after.hidden[0])
    assert np.abs(reads_alone[:, 1] - reads[:, 1]).max() > 1e-2


def test_scan_is_the_step_repeated(step):
  params, state, inputs = random_case((2, 3), chunks=4, dtype=np.float32)
  after, reads = jax.jit(memory_scan)(params, state, inputs)
  for chunk in range(4):
    state, read = step(params, state, jax.tree.map(lambda a, c=chunk: a[c], inputs))
    np.testing.assert_allclose(reads[chunk], read, atol=1e-6)
  np.testing.assert_allclose(after.hidden, state.hidden, atol=1e-6)


def test_empty_states():
  config = MemoryConfig(channels=3, grid=(2, 1, 4))
  state = init_state(config, 5)
  assert state.hidden.shape == state.cell.shape == (5, 2, 1, 4, 3)
  assert state.hidden.dtype == jnp.float32
  assert state.pending is None
  assert not np.asarray(state.hidden).any()
  assert init_state(config, np.int64(2)).cell.shape[0] == 2
  for wrong in (0, -1, 1.0, True, None):
    with pytest.raises(ValueError, match=r"^batch_size: "):
      init_state(config, wrong)


def test_unknown_implementations_are_refused():
  case = random_case((2, 3), dtype=np.float32)
  with pytest.raises(ValueError, match=r"implementation: got 'quick', expected one of .*fast"):
    memory_scan(*case, implementation="quick")


BAD_ARRAYS = [
  ("state.cell", lambda p, s, i: (p, s._replace(cell=s.cell[:, :2]), i)),
  ("params.pointwise", lambda p, s, i: (p._replace(pointwise=p.pointwise.T), s, i)),
  ("inputs.write_at", lambda p, s, i: (p, s, i._replace(write_at=i.write_at[..., :2]))),
  ("inputs.spread", lambda p, s, i: (p, s, i._replace(spread=i.spread[..., None]))),
  ("inputs.write", lambda p, s, i: (p, s, i._replace(write=np.ones((7, 2))))),
]


@pytest.mark.parametrize(("name", "spoil"), BAD_ARRAYS, ids=[name for name, _ in BAD_ARRAYS])
def test_arrays_that_do_not_fit_are_named(name, spoil):
  case = spoil(*random_case((3, 4, 5), dtype=np.float32))
  with pytest.raises(ValueError, match=rf"^{name}: got .*expected"):
    memory_scan(*case)
  with pytest.raises(ValueError, match=rf"^{name}: got .*expected"):
    memory_step(case[0], case[1], jax.tree.map(lambda a: a[0], case[2]))


def test_negative_remat_is_refused():
  with pytest.raises(ValueError, match="remat: got -1"):
    memory_scan(*random_case((3, 4, 5), dtype=np.float32), remat=-1)


def test_forward_mode_needs_the_plain_scan():
  params, state, inputs = random_case((3,), chunks=3, dtype=np.float32)

  def total(implementation):
    def hidden(spread):
      moved = inputs._replace(spread=spread)
      return jnp.sum(memory_scan(params, state, moved, implementation=implementation)[0].hidden)

    return hidden

  direction = np.ones_like(inputs.spread)
  forward = jax.jit(lambda s: jax.jvp(total("plain"), (s,), (direction,))[1])(inputs.spread)
  backward = jax.jit(jax.grad(total("fast")))(inputs.spread)
  np.testing.assert_allclose(forward, np.sum(backward), rtol=1e-4)
  with pytest.raises(TypeError, match="forward-mode"):
    jax.jvp(total("fast"), (inputs.spread,), (direction,))
