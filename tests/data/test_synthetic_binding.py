import jax
import numpy as np
import pytest

from data import synthetic

KEY = jax.random.key(3)


def parts(task, batch):
  """Points, values (-1: none) and kinds (0 write, 1 query, 2 distractor), from the tokens."""
  inputs = np.asarray(batch["inputs"])
  points, values, flags = np.split(inputs, [3, 3 + task.values], axis=-1)
  assert set(np.unique(values)) <= {0.0, 1.0}
  np.testing.assert_array_equal(flags.sum(axis=-1), 1)
  count = values.sum(axis=-1)
  np.testing.assert_array_equal(count, flags[..., 1] == 0)
  return points, np.where(count == 1, values.argmax(axis=-1), -1), flags.argmax(axis=-1)


def solve(points, values, kinds):
  """The answer to each query of a row: one look at the tokens, nothing else."""
  written, asked = points[kinds == 0], points[kinds == 1]
  distances = np.linalg.norm(asked[:, None].astype(np.float64) - written, axis=-1)
  return values[kinds == 0][distances.argmin(axis=1)]


@pytest.mark.parametrize(
  "task",
  [
    synthetic.CoordinateBinding(),
    synthetic.CoordinateBinding(noise=0.5, values=8),
    synthetic.LongRecall(writes=4, queries=3, distractors=50),
  ],
)
def test_the_nearest_write_answers(task):
  batch = task.sample(KEY, 256)
  answers = np.stack([solve(*row) for row in zip(*parts(task, batch), strict=True)])
  mask = np.asarray(batch["mask"])
  targets = np.asarray(batch["targets"])[mask].reshape(256, task.queries)
  assert (answers == targets).mean() == task.ceiling() == 1.0


def test_tokens_come_as_writes_then_distractors_then_queries():
  task = synthetic.CoordinateBinding(writes=3, distractors=4, queries=2)
  batch = task.sample(KEY, 8)
  _, _, kinds = parts(task, batch)
  assert (kinds == [0] * 3 + [2] * 4 + [1] * 2).all()
  np.testing.assert_array_equal(batch["mask"], kinds == 1)


def test_points_and_values_are_uniform():
  task = synthetic.CoordinateBinding(writes=20, values=4, distractors=20)
  points, values, kinds = parts(task, task.sample(KEY, 500))
  for kind in (0, 2):
    share = np.histogram(points[kinds == kind], bins=4, range=(-1, 1))[0] / 30000
    np.testing.assert_allclose(share, 0.25, atol=0.01)
    np.testing.assert_allclose(np.bincount(values[kinds == kind]) / 10000, 0.25, atol=0.015)
  assert np.abs(np.corrcoef(points[kinds == 0].T) - np.eye(3)).max() < 0.04


def test_queries_are_written_points_with_noise():
  task = synthetic.CoordinateBinding(writes=1, queries=10, noise=0.1)
  points, _, _ = parts(task, task.sample(KEY, 1000))
  inside = np.abs(points[:, :1]) < 0.5  # too far from the faces to be clamped
  noise = (points[:, 1:] - points[:, :1])[np.broadcast_to(inside, (1000, 10, 3))]
  assert abs(noise.mean()) < 0.003
  assert abs(noise.std() - 0.1) < 0.003
  assert abs((np.abs(noise) < 0.1).mean() - 0.6827) < 0.015


def test_queries_stay_in_the_cube_and_touch_its_faces():
  task = synthetic.CoordinateBinding(noise=1.0)
  points, _, kinds = parts(task, task.sample(KEY, 200))
  asked = points[kinds == 1]
  assert asked.min() == -1.0
  assert asked.max() == 1.0


def test_without_noise_every_written_point_is_asked_for_equally_often():
  task = synthetic.CoordinateBinding(writes=5, queries=4, noise=0.0)
  points, _, _ = parts(task, task.sample(KEY, 1000))
  same = (points[:, 5:, None] == points[:, None, :5]).all(axis=-1)  # [rows, queries, writes]
  np.testing.assert_array_equal(same.sum(axis=-1), 1)
  np.testing.assert_allclose(same.mean(axis=(0, 1)), 0.2, atol=0.02)


def test_the_answer_is_not_always_the_point_that_was_chosen():
  fields = {"writes": 30, "queries": 4, "values": 30}
  exact = synthetic.CoordinateBinding(noise=0.0, **fields).sample(KEY, 200)["targets"]
  noisy = synthetic.CoordinateBinding(noise=0.3, **fields).sample(KEY, 200)["targets"]
  assert 0.2 < (np.asarray(exact) != noisy)[:, -4:].mean() < 0.9


def test_distractors_change_neither_writes_nor_queries_nor_answers():
  short = synthetic.CoordinateBinding(writes=3, queries=2)
  long = synthetic.LongRecall(writes=3, queries=2, distractors=70)
  few, many = short.sample(KEY, 16), long.sample(KEY, 16)
  for name in ("inputs", "targets", "mask"):
    kept = np.delete(np.asarray(many[name]), np.s_[3:73], axis=1)
    np.testing.assert_array_equal(kept, few[name])


def test_a_distractor_near_a_query_would_mislead():
  task = synthetic.LongRecall(writes=2, queries=4, noise=0.5, distractors=40)
  batch = task.sample(KEY, 64)
  points, values, kinds = parts(task, batch)
  kinds = np.where(kinds == 2, 0, kinds)  # takes distractors for writes
  answers = np.stack([solve(*row) for row in zip(points, values, kinds, strict=True)])
  assert (answers == np.asarray(batch["targets"])[:, -4:]).mean() < 0.5
