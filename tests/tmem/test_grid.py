"""The voxel grid against formulas in numpy."""

import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tmem import gaussian_volume, linear_sample
from tmem.grid import cell_positions, cell_weights, corner_weights

GRIDS = [(5,), (3, 4), (3, 4, 5), (1, 4, 6), (1, 1, 1), (2, 3, 1, 2)]


def volume_of(grid, batch=1, channels=2):
  rng = np.random.default_rng(len(grid))
  return rng.normal(size=(batch, *grid, channels)).astype(np.float32)


@pytest.fixture(scope="module")
def read():
  return jax.jit(linear_sample)


@pytest.fixture(scope="module")
def write():
  return jax.jit(gaussian_volume, static_argnums=3)


def test_positions_span_the_axis_and_a_single_cell_sits_at_minus_one():
  np.testing.assert_array_equal(cell_positions(5), [-1.0, -0.5, 0.0, 0.5, 1.0])
  np.testing.assert_array_equal(cell_positions(2), [-1.0, 1.0])
  np.testing.assert_array_equal(cell_positions(1), [-1.0])


@pytest.mark.parametrize("grid", [(3, 4, 5), (1, 4, 6), (1, 1, 1), (4,)])
def test_gaussian_matches_the_direct_formula(grid, write, reference):
  rng = np.random.default_rng(0)
  content = rng.normal(size=(3, 2))
  coords = rng.uniform(-1, 1, size=(3, len(grid)))
  spread = np.array([0.1, 0.5, 3.0])
  volume = write(*(a.astype(np.float32) for a in (content, coords, spread)), grid)
  assert volume.shape == (3, *grid, 2)
  for row in range(3):
    expected = reference["gaussian"](content[row], coords[row], spread[row], grid)
    np.testing.assert_allclose(volume[row], expected, atol=2e-6)


def test_x_runs_along_w_and_z_along_d(read, write):
  # x = 1, y = 0 (between cells), z = -1: the first D, the last W
  volume = write(jnp.ones((1, 1)), jnp.array([[1.0, 0.0, -1.0]]), jnp.array([0.1]), (2, 3, 4))
  peak = np.unravel_index(np.argmax(volume[0, ..., 0]), (2, 3, 4))
  assert peak == (0, 1, 3)
  np.testing.assert_allclose(volume[0, 0, 1, 3, 0], 1.0, rtol=1e-6)
  marked = np.zeros((1, 2, 3, 4, 1), np.float32)
  marked[0, 0, 1, 3] = 7.0
  assert float(read(marked, jnp.array([[1.0, 0.0, -1.0]]))[0, 0]) == 7.0
  assert float(read(marked, jnp.array([[-1.0, 0.0, 1.0]]))[0, 0]) == 0.0


@pytest.mark.parametrize("grid", GRIDS)
def test_read_matches_a_sum_of_hats(grid, read, reference):
  volume = volume_of(grid, batch=40)
  rng = np.random.default_rng(1)
  coords = rng.uniform(-1.3, 1.3, size=(40, len(grid)))
  coords[:4] = [[-1.0] * len(grid), [1.0] * len(grid), [0.0] * len(grid), [50.0] * len(grid)]
  out = read(volume, coords.astype(np.float32))
  expected = [reference["sample"](v, c) for v, c in zip(volume, coords, strict=True)]
  np.testing.assert_allclose(out, expected, atol=2e-6)


def test_reads_at_centres_midpoints_and_outside(read):
  volume = volume_of((3, 5, 2), batch=1)
  centre = read(volume, jnp.array([[-1.0, 0.5, 0.0]]))  # x -> W 0, y -> H 3, z -> D 1
  np.testing.assert_array_equal(centre[0], volume[0, 1, 3, 0])
  midpoint = read(volume, jnp.array([[0.0, 0.25, -0.5]]))
  np.testing.assert_allclose(midpoint[0], volume[0, :2, 2:4].mean((0, 1, 2)), rtol=1e-5)
  outside = read(volume, jnp.array([[1.7, -9.0, 1.0001]]))
  np.testing.assert_array_equal(outside[0], volume[0, 2, 0, 1])


def test_corner_weights_sum_to_one_and_stay_in_the_grid():
  coords = jnp.asarray(np.random.default_rng(2).uniform(-2, 2, (64, 3)), jnp.float32)
  cells, weights = jax.jit(corner_weights, static_argnums=1)(coords, (2, 1, 3))
  assert cells.shape == weights.shape == (64, 4)  # an axis of one cell has no other
  assert cells.dtype == jnp.int32
  assert int(cells.min()) >= 0
  assert int(cells.max()) < 6
  assert float(weights.min()) >= 0.0
  np.testing.assert_allclose(weights.sum(-1), 1.0, rtol=1e-6)


def test_corners_of_axes_of_at_most_two_cells_are_all_cells_in_order():
  coords = jnp.asarray(np.random.default_rng(3).uniform(-1.2, 1.2, (9, 3)), jnp.float32)
  cells, _ = corner_weights(coords, (2, 1, 2))
  np.testing.assert_array_equal(cells, np.tile(np.arange(4), (9, 1)))


@pytest.mark.parametrize("grid", [(2, 1, 2), (3, 4, 5)])
def test_cell_weights_have_those_of_the_corners(grid):
  coords = jnp.asarray(np.random.default_rng(4).uniform(-1.2, 1.2, (9, 3)), jnp.float32)
  cells, weights = corner_weights(coords, grid)
  expected = np.zeros((9, math.prod(grid)), np.float32)
  for row, (own, share) in enumerate(zip(cells, weights, strict=True)):
    expected[row, own] = share
  np.testing.assert_array_equal(cell_weights(cells, weights, math.prod(grid)), expected)


def test_gradients_of_read_coordinates(read):
  volume = volume_of((3, 4, 5))[..., :1]
  slope = jax.jit(jax.grad(lambda c: linear_sample(volume, c)[0, 0]))
  coords = np.array([[0.3, -0.45, 0.6]], np.float32)
  numeric = []
  for axis in range(3):
    step = np.zeros_like(coords)
    step[0, axis] = 1e-2  # the read is linear within a cell, so the step may be large
    ends = [float(read(volume, coords + s)[0, 0]) for s in (step, -step)]
    numeric.append((ends[0] - ends[1]) / 2e-2)
  np.testing.assert_allclose(slope(coords)[0], numeric, atol=1e-4)
  assert np.abs(numeric).min() > 0.05
  outside = slope(np.array([[1.5, -0.45, -3.0]], np.float32))[0]
  assert outside[0] == outside[2] == 0.0
  assert outside[1] != 0.0


@pytest.mark.parametrize("sigma", [1e-4, 0.03, 200.0])
def test_extreme_spreads_stay_finite(sigma):
  def total(content, coords, spread):
    return jnp.sum(gaussian_volume(content, coords, spread, (2, 3, 4)))

  coords = jnp.array([[0.11, -1.0, 1.0], [0.0, 0.0, 0.0]])
  value, grads = jax.jit(jax.value_and_grad(total, argnums=(0, 1, 2)))(
    jnp.ones((2, 2)), coords, jnp.full(2, sigma)
  )
  chex.assert_tree_all_finite((value, grads))
  if sigma == 200.0:  # so wide that every cell gets the whole content
    np.testing.assert_allclose(value, 2 * 2 * 24, rtol=1e-4)
  if sigma == 1e-4:  # so narrow that it meets no cell but one on the spot
    assert float(value) < 1e-6


def test_wrong_axes_are_refused():
  with pytest.raises(ValueError, match=r"coords: .*2 entries.*grid \(2, 3, 4\) has 3 axes"):
    linear_sample(jnp.zeros((1, 2, 3, 4, 1)), jnp.zeros((1, 2)))
  with pytest.raises(ValueError, match=r"coords: .*3 entries.*grid \(5,\) has 1 axes"):
    gaussian_volume(jnp.zeros((1, 1)), jnp.zeros((1, 3)), jnp.ones(1), (5,))


class ReadVariants(chex.TestCase):
  @chex.variants(with_jit=True, without_jit=True)
  def test_reads_the_same_with_and_without_jit(self):
    volume = jnp.arange(12.0).reshape(1, 3, 4, 1)
    value = self.variant(linear_sample)(volume, jnp.array([[0.0, 0.5]]))
    chex.assert_trees_all_close(value, jnp.array([[7.5]]))

  @chex.variants(with_jit=True, without_jit=True)
  def test_dtype_is_the_volume_s(self):
    read = self.variant(linear_sample)
    assert read(jnp.zeros((1, 2, 2), jnp.bfloat16), jnp.zeros((1, 1))).dtype == jnp.bfloat16


def test_rows_that_do_not_fit_are_refused():
  volume = volume_of((3, 3), batch=2)
  for coords in (np.zeros((3, 2)), np.zeros((1, 2)), np.zeros((2, 5, 2))):
    with pytest.raises(ValueError, match=r"^coords: got shape .*expected \[2, axes\]"):
      linear_sample(volume, coords)
  with pytest.raises(ValueError, match=r"^volume: got dtype int32"):
    linear_sample(np.zeros((2, 3, 3, 1), np.int32), np.zeros((2, 2)))
  with pytest.raises(ValueError, match=r"^spread: got shape"):
    gaussian_volume(np.zeros((2, 4)), np.zeros((2, 2)), np.zeros((2, 1)), (3, 3))
  with pytest.raises(ValueError, match=r"^content, coords: got shapes"):
    gaussian_volume(np.zeros((3, 4)), np.zeros((2, 2)), np.zeros(3), (3, 3))
