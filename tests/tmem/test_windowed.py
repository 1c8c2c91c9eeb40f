"""Updates of a window: fast against plain and dense, what they leave alone, and what they cost."""

import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tmem import MemoryConfig, memory_scan
from tmem.window import window_at

DYNAMICS = ("convlstm", "parallel", "selective")
CASES = [
  ((6, 5, 7), (4, 3, 4), False, False),  # windows in the middle and at the border
  ((1, 9), (3, 4), True, False),  # wider than an axis, and an axis of one cell
  ((5, 5), (1, 1), False, False),
  ((4, 3), (2, 4), False, True),
  ((1, 9), (3, 4), True, True),
]


@pytest.mark.parametrize("name", DYNAMICS)
@pytest.mark.parametrize(("grid", "window", "masked", "cleared"), CASES)
def test_fast_equals_plain(name, grid, window, masked, cleared, random_case, results):
  with jax.enable_x64(True):
    case = random_case(name, grid, 12 if cleared else 6, masked, cleared)
    plain, fast = (results(case, implementation=i, window=window) for i in ("plain", "fast"))
    chex.assert_trees_all_close(fast, plain, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", DYNAMICS)
def test_a_window_as_large_as_the_grid_is_the_dense_update(name, random_case, results):
  with jax.enable_x64(True):
    case = random_case(name, (3, 4, 2), 5, masked=True)
    chex.assert_trees_all_close(
      results(case, window=(8, 4, 2)), results(case), rtol=1e-10, atol=1e-10
    )


@pytest.mark.parametrize("name", DYNAMICS)
def test_cells_outside_of_the_window_keep_their_contents_exactly(name, random_case):
  grid, window = (7, 6), (3, 2)
  params, state, inputs = random_case(name, grid, 1, dtype=np.float32)
  after, _ = jax.jit(lambda *case: memory_scan(*case, window=window))(params, state, inputs)
  changed = np.asarray(window_at(jnp.asarray(inputs.write_at[0]), window, grid).mask())
  assert changed.sum(axis=(1, 2)).tolist() == [6, 6]
  for ours, before in ((after.hidden, state.hidden), (after.cell, state.cell)):
    np.testing.assert_array_equal(np.asarray(ours)[~changed], before[~changed])
    assert (np.asarray(ours)[changed] != before[changed]).all()


def test_nothing_is_left_of_an_emptied_row_not_even_nan(random_case):
  grid, window = (7, 6), (3, 2)
  params, state, inputs = random_case("convlstm", grid, 2, dtype=np.float32)
  state.hidden[0], state.cell[0] = np.nan, np.nan
  inputs = inputs._replace(clear=np.array([[True, False], [False, False]]))
  after, reads = jax.jit(lambda *case: memory_scan(*case, window=window))(params, state, inputs)
  held = [window_at(jnp.asarray(at), window, grid).mask() for at in inputs.write_at]
  held = np.asarray(held[0] | held[1])[0]
  assert np.isnan(reads[0, 0]).all()  # before it is emptied
  assert np.isfinite(reads[1, 0]).all()
  for ours in (after.hidden, after.cell):
    np.testing.assert_array_equal(np.asarray(ours)[0].any(-1), held)


def test_a_window_is_around_its_place_and_on_the_grid():
  write_at = jnp.array([[-1.0], [-0.4], [0.0], [0.3], [1.0]])  # cells 0, 3, 5, 6.5, 10 of 11
  starts = [int(i[0]) for i in window_at(write_at, (4,), (11,)).core().index[0]]
  assert starts == [0, 2, 4, 5, 7]
  assert window_at(write_at, (4,), (3,)).shape == (3,)
  assert window_at(write_at, (4,), (11,), halo=1).shape == (6,)


def test_the_jump_of_a_window_is_bounded_by_the_tail_of_the_gaussian(random_case):
  """Cells that a moving window takes up or drops change by what the write has out there."""
  params, state, inputs = random_case("selective", (16,), 1, batch=1, dtype=np.float32)
  keeps = np.zeros(8, np.float32)
  keeps[2:4] = 30.0  # forget gates that keep everything where nothing is written
  params = params._replace(bias=keeps)
  scan = jax.jit(lambda inputs: memory_scan(params, state, inputs, window=(6,))[0].cell)

  def jump(spread):
    # At cell 7 a window of six cells moves on by one: its ends are 2.5 cells away.
    low, high = (
      scan(
        inputs._replace(write_at=np.full((1, 1, 1), 2 * cell / 15 - 1, np.float32), spread=spread)
      )
      for cell in (6.999, 7.001)
    )
    return np.abs(low - high).max()

  strength = np.abs(inputs.content @ params.mix).max() * (1 + np.abs(state.cell).max())
  for sigma in (0.1, 0.2, 0.4):
    tail = np.exp(-((2.5 * 2 / 15) ** 2) / (2 * sigma**2))
    assert jump(np.full((1, 1), sigma, np.float32)) < 1.2 * strength * tail + 1e-3
  assert jump(np.full((1, 1), 0.4, np.float32)) > 1e-2


@pytest.mark.parametrize(
  ("name", "cleared"), [("convlstm", False), ("parallel", False), ("convlstm", True)]
)
def test_stored_bytes_of_a_step_do_not_depend_on_the_grid(name, cleared, random_case, results):
  def per_step(cells):
    sizes = []
    for chunks in (16, 48):
      case = random_case(name, (cells, cells), chunks, False, cleared, channels=8, dtype=np.float32)
      compiled = jax.jit(lambda case: results(case, window=(3, 3))).lower(case).compile()
      sizes.append(compiled.memory_analysis().temp_size_in_bytes)
    return (sizes[1] - sizes[0]) / 32

  small, large = per_step(8), per_step(32)
  assert large < 1.1 * small
  assert large < 4 * 2 * 32 * 32 * 2 * 8 / 2  # half of what the rows of a grid take


@pytest.mark.parametrize("name", DYNAMICS)
@pytest.mark.parametrize("cleared", [False, True])
@pytest.mark.parametrize("backward", [False, True])
def test_no_step_copies_the_state(name, backward, cleared, random_case, results):
  cells, channels, batch, chunks = 16, 8, 2, 8
  size, settings = (cells, cells), {"channels": channels, "dtype": np.float32}
  case = random_case(name, size, chunks, cleared, cleared, **settings)
  run = results if backward else lambda case, **settings: memory_scan(*case, **settings)
  text = jax.jit(lambda case: run(case, window=(3, 3))).lower(case).compile().as_text()
  loops = [c for c in re.split(r"\n(?=\S)", text) if not c.startswith("ENTRY")]
  selective = name == "selective"  # there c alone, and always who wrote a cell last
  rows = f"f32[{batch},{cells**2},{channels if selective else f'2,{channels}'}]"
  numbers = f"s32[{batch},{cells**2},1]"
  for array, there in ((rows, True), (numbers, cleared or selective)):
    assert any(array in c for c in loops) == there
    copies = re.compile(rf"= {re.escape(array)}\S* (copy|copy-start)\(")
    assert not [line for c in loops for line in c.splitlines() if copies.search(line)]


BAD = [
  ({"update": "some"}, r"^update: got 'some'"),
  ({"update": "window", "window": (4, 4)}, r"^window: \(4, 4\) has 2 axes, but the grid has 3"),
  ({"window": (4, 0, 4)}, r"^window: got \(4, 0, 4\), expected one to four integers"),
]


@pytest.mark.parametrize(("settings", "message"), BAD)
def test_windows_that_cannot_be_are_refused(settings, message, random_case):
  with pytest.raises(ValueError, match=message):
    MemoryConfig(**settings)
  if settings.get("update") == "window":
    case = random_case("selective", (3, 3, 3), 2, dtype=np.float32)
    with pytest.raises(ValueError, match=message):
      memory_scan(*case, window=settings["window"])
