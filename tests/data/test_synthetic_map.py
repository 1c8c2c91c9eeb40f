import itertools
from fractions import Fraction

import jax
import numpy as np
import pytest

from data import synthetic

KEY = jax.random.key(11)


def read(task, batch):
  """Places [rows, tokens, 2] and patches [rows, observations, patch, patch], from the tokens."""
  inputs, size, patch = np.asarray(batch["inputs"]), task.size, task.patch
  row, column, coordinates, cells, flags = np.split(
    inputs, np.cumsum([size, size, 2, patch**2]), axis=-1
  )
  np.testing.assert_array_equal(row.sum(axis=-1), 1)
  np.testing.assert_array_equal(column.sum(axis=-1), 1)
  places = np.stack([row.argmax(axis=-1), column.argmax(axis=-1)], axis=-1)
  np.testing.assert_allclose(coordinates, 2 * places / (size - 1) - 1, atol=1e-6)
  assert (flags == [[1, 0]] * task.observations + [[0, 1]]).all()
  assert set(np.unique(cells[:, :-1])) == {-1.0, 1.0}
  assert not cells[:, -1].any()
  return places, cells[:, :-1].reshape(len(inputs), task.observations, patch, patch)


def rebuild(task, places, patches):
  """The map as shown, [size, size] with 1 occupied, -1 free and 0 not shown."""
  shown = np.zeros((task.size, task.size))
  for (row, column), cells in zip(places[:-1], patches, strict=True):
    window = shown[row : row + task.patch, column : column + task.patch]
    assert ((window == 0) | (window == cells)).all()  # patches agree where they overlap
    window[:] = cells
  return shown


@pytest.mark.parametrize(
  "task",
  [
    synthetic.MapBuilding(),
    synthetic.MapBuilding(observations=4, size=5, patch=3),
    synthetic.MapBuilding(observations=9, size=4, patch=1),
  ],
)
def test_the_shown_map_answers_as_often_as_the_ceiling_says(task):
  rows = 3000
  batch = jax.tree.map(np.asarray, task.sample(KEY, rows))
  places, patches = read(task, batch)
  maps = [rebuild(task, *row) for row in zip(places, patches, strict=True)]
  cells = np.array([shown[tuple(place[-1])] for shown, place in zip(maps, places, strict=True)])

  targets, mask, observed = (batch[name] for name in ("targets", "mask", "observed"))
  assert (mask == (np.arange(task.length) == task.observations)).all()
  np.testing.assert_array_equal(observed[:, -1], cells != 0)
  assert not observed[~mask].any()
  np.testing.assert_array_equal(targets[:, -1][cells != 0], (cells > 0)[cells != 0])

  accuracy = ((cells > 0) == targets[:, -1]).mean()  # takes what was not shown for free
  assert abs(accuracy - task.ceiling()) < 0.02
  assert abs((cells != 0).mean() - task.observed_fraction()) < 0.02
  assert abs(targets[:, -1].mean() - 0.5) < 0.03
  counts = [shown[shown != 0] > 0 for shown in maps]
  assert abs(np.concatenate(counts).mean() - 0.5) < 0.02


@pytest.mark.parametrize(
  ("observations", "size", "patch"), [(1, 3, 2), (2, 3, 2), (3, 4, 3), (2, 4, 2), (5, 2, 2)]
)
def test_the_ceiling_counts_every_sequence_of_patches(observations, size, patch):
  corners = list(itertools.product(range(size - patch + 1), repeat=2))
  sequences = list(itertools.product(corners, repeat=observations))
  known = 0
  for sequence in sequences:
    shown = np.zeros((size, size), bool)
    for row, column in sequence:
      shown[row : row + patch, column : column + patch] = True
    known += int(shown.sum())
  fraction = Fraction(known, len(sequences) * size**2)
  task = synthetic.MapBuilding(observations, size, patch)
  assert task.observed_fraction() == pytest.approx(float(fraction), abs=1e-12)
  assert task.ceiling() == pytest.approx(float((1 + fraction) / 2), abs=1e-12)


def test_places_are_uniform():
  task = synthetic.MapBuilding(observations=20, size=4, patch=2)
  places, _ = read(task, task.sample(KEY, 2000))
  corners = np.bincount((places[:, :-1] @ [3, 1]).ravel(), minlength=9) / 40000
  np.testing.assert_allclose(corners, 1 / 9, atol=0.01)
  queries = np.bincount(places[:, -1] @ [4, 1], minlength=16) / 2000
  np.testing.assert_allclose(queries, 1 / 16, atol=0.02)


def test_every_row_has_a_map_of_its_own():
  task = synthetic.MapBuilding(observations=1, size=3, patch=3)
  _, patches = read(task, task.sample(KEY, 300))
  assert len(np.unique(patches.reshape(300, 9), axis=0)) > 200  # of 512


def test_lessons_ask_several_times_and_if_wanted_for_shown_cells_only():
  task = synthetic.MapBuilding(observations=3, queries=40)
  batch = jax.tree.map(np.asarray, task.sample(KEY, 200))
  assert (batch["mask"] == (np.arange(43) >= 3)).all()
  assert abs(batch["observed"][batch["mask"]].mean() - task.observed_fraction()) < 0.03
  shown = synthetic.MapBuilding(observations=3, queries=40, ask_shown=True)
  asked = jax.tree.map(np.asarray, shown.sample(KEY, 200))
  assert asked["observed"][asked["mask"]].all()
  assert shown.ceiling() == 1.0
  # The answers are those of the shown map, and every shown cell is asked for at times.
  rows, columns = (asked["inputs"][:, :, i * 8 : i * 8 + 8].argmax(axis=-1) for i in (0, 1))
  bits = asked["inputs"][:, :3, 18:22].reshape(200, 3, 2, 2)
  found = set()
  for row in range(200):
    shown_map = np.zeros((8, 8))
    for r, c, patch in zip(rows[row], columns[row], bits[row], strict=False):
      shown_map[r : r + 2, c : c + 2] = patch
    answers = shown_map[rows[row, 3:], columns[row, 3:]]
    np.testing.assert_array_equal(answers > 0, asked["targets"][row, 3:])
    found.add(len(set(zip(rows[row, 3:].tolist(), columns[row, 3:].tolist(), strict=True))))
  assert max(found) == 12
