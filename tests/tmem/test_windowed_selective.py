"""Windowed writes under selective gates: the scan of c alone against the plain one."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tmem import memory_scan


@pytest.mark.parametrize(("masked", "cleared"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("chunks", [1, 4, 40])  # the last has more writes than there are cells
def test_fast_equals_plain(chunks, masked, cleared, random_case, results):
  """Cells are written several times, by windows of other chunks, and some never."""
  with jax.enable_x64(True):
    case = random_case("selective", (5, 4, 3), chunks, masked, cleared)
    plain, fast = (results(case, implementation=i, window=(2, 3, 1)) for i in ("plain", "fast"))
    chex.assert_trees_all_close(fast, plain, rtol=1e-10, atol=1e-10)
    if chunks == 40:  # nothing is compared that is zero for want of an influence
      assert all(np.abs(g).max() > 1e-4 for g in jax.tree.leaves(plain[1]))


@pytest.mark.parametrize(("small", "large"), [(6, 18), (27, 81)])  # fewer cells than writes; more
def test_stored_bytes_of_a_step_do_not_depend_on_the_grid(small, large, random_case, results):
  def per_step(cells):
    sizes = []
    for chunks in (40, 72):
      case = random_case("selective", (cells, cells), chunks, channels=8, dtype=np.float32)
      compiled = jax.jit(lambda case: results(case, window=(3, 3))).lower(case).compile()
      sizes.append(compiled.memory_analysis().temp_size_in_bytes)
    return (sizes[1] - sizes[0]) / 32

  assert per_step(large) < 1.1 * per_step(small)


def test_cells_that_no_chunk_writes_are_emptied_too(random_case):
  params, state, inputs = random_case("selective", (7,), 8, dtype=np.float32)
  write_at = np.full_like(inputs.write_at, -1.0)  # cells 0 and 1 alone
  clear = np.zeros((8, 2), bool)
  clear[3, 0] = True
  inputs = inputs._replace(write_at=write_at, clear=jnp.asarray(clear))
  after, _ = jax.jit(lambda *case: memory_scan(*case, window=(2,)))(params, state, inputs)
  for ours, before in ((after.hidden, state.hidden), (after.cell, state.cell)):
    assert not np.asarray(ours)[0, 2:].any()
    np.testing.assert_array_equal(np.asarray(ours)[1, 2:], before[1, 2:])
