import jax
import numpy as np
import pytest

from data import synthetic

SMALL = {
  "coordinate_binding": {"writes": 5, "values": 4},
  "long_recall": {"writes": 3, "values": 4, "distractors": 9},
  "map_building": {"observations": 4, "size": 4},
  "occlusion": {"frames": 4, "hidden": 2, "size": 4, "patch": 2, "ball": 1, "max_speed": 1},
  "no_harm": {"symbols": 50, "tokens": 3},
}
KEY = jax.random.key(7)


def make(name):
  return synthetic.TASKS[name](**SMALL[name])


def test_tasks_are_known_by_their_names():
  assert list(synthetic.TASKS) == list(SMALL)
  assert all(task.name == name for name, task in synthetic.TASKS.items())


def test_default_sizes():
  sizes = {
    name: (task.input_features, task.classes, task.length)
    for name, task in ((name, make()) for name, make in synthetic.TASKS.items())
  }
  assert sizes == {
    "coordinate_binding": (38, 32, 14),
    "long_recall": (38, 32, 1038),
    "map_building": (24, 2, 33),
    "occlusion": (33, 4, 129),
    "no_harm": (16, 16, 32),
  }


@pytest.mark.parametrize("name", SMALL)
def test_arrays_have_the_promised_shapes_and_types(name):
  task = make(name)
  batch = task.sample(KEY, 6)
  shape = (6, task.length)
  found = {name: (value.shape, value.dtype) for name, value in batch.items()}
  expected = {
    "inputs": ((*shape, task.input_features), np.float32),
    "targets": (shape, np.int32),
    "mask": (shape, bool),
  }
  if name == "map_building":
    expected["observed"] = (shape, bool)
  assert found == expected
  targets, mask = np.asarray(batch["targets"]), np.asarray(batch["mask"])
  assert targets.min() >= 0
  assert targets.max() < task.classes
  assert not targets[~mask].any()
  assert mask.any(axis=1).all()


@pytest.mark.parametrize("name", SMALL)
def test_rows_follow_from_key_and_index_alone(name):
  task = make(name)
  many = jax.jit(task.sample, static_argnums=1)(KEY, 64)
  few, tail = task.sample(KEY, 3), task.sample_rows(KEY, 60, 4)
  for field, values in many.items():
    np.testing.assert_array_equal(few[field], values[:3])
    np.testing.assert_array_equal(tail[field], values[60:])
  rows = np.asarray(many["inputs"]).reshape(64, -1)
  assert len(np.unique(rows, axis=0)) > 30
  other = np.asarray(task.sample(jax.random.key(8), 64)["inputs"])
  assert (other.reshape(64, -1) != rows).any(axis=1).sum() > 50


@pytest.mark.parametrize("name", SMALL)
def test_equal_fields_are_the_same_task(name):
  task = make(name)
  assert task == make(name)
  assert hash(task) == hash(make(name))
  assert task != synthetic.TASKS[name]()


def test_a_subclass_is_another_task():
  fields = {"writes": 3, "distractors": 2}
  assert synthetic.LongRecall(**fields) != synthetic.CoordinateBinding(**fields)


@pytest.mark.parametrize(
  ("name", "change", "message"),
  [
    ("coordinate_binding", {"writes": 0}, "writes: got 0, expected an integer of at least 1"),
    ("coordinate_binding", {"writes": 2.0}, "writes: got 2.0"),
    ("coordinate_binding", {"noise": -0.1}, "noise: got -0.1, expected a finite number of at"),
    ("coordinate_binding", {"noise": float("nan")}, "noise: got nan"),
    ("coordinate_binding", {"noise": "much"}, "noise: got 'much'"),
    ("coordinate_binding", {"queries": True}, "queries: got True"),
    ("coordinate_binding", {"values": 1}, "values: got 1, expected an integer of at least 2"),
    ("coordinate_binding", {"distractors": -1}, "distractors: got -1, .* at least 0"),
    ("long_recall", {"distractors": 0}, "distractors: got 0, .* at least 1"),
    ("long_recall", {"writes": 0}, "writes: got 0"),
    ("map_building", {"observations": 0}, "observations: got 0"),
    ("map_building", {"size": 1}, "size: got 1, expected an integer of at least 2"),
    ("map_building", {"patch": 9}, "patch: got 9, expected an integer from 1 to 8"),
    ("occlusion", {"hidden": 8}, "hidden: got 8, expected an integer from 0 to 7"),
    ("occlusion", {"hidden": 7, "until_end": True}, "hidden: got 7, .* from 0 to 6"),
    ("occlusion", {"frames": 1, "until_end": True}, "frames: got 1, .* at least 2"),
    ("occlusion", {"frames": 0}, "frames: got 0, expected an integer of at least 1"),
    ("occlusion", {"until_end": 1}, "until_end: got 1, expected True or False"),
    ("occlusion", {"size": 15, "patch": 5}, "size: got 15, expected an even number"),
    ("occlusion", {"size": 18}, "size: got 18, expected a multiple of patch = 4"),
    ("occlusion", {"size": 0}, "size: got 0"),
    ("occlusion", {"patch": 0}, "patch: got 0"),
    ("occlusion", {"ball": 16}, "ball: got 16, expected an integer from 1 to 15"),
    ("occlusion", {"max_speed": 0}, "max_speed: got 0"),
    ("no_harm", {"symbols": 1}, "symbols: got 1, expected an integer of at least 2"),
    ("no_harm", {"tokens": 0}, "tokens: got 0"),
  ],
)
def test_bad_fields_are_named(name, change, message):
  with pytest.raises(ValueError, match=f"^{message}"):
    synthetic.TASKS[name](**change)


@pytest.mark.parametrize("batch_size", [0, -1, 2.5])
def test_bad_batch_sizes_are_named(batch_size):
  with pytest.raises(ValueError, match=f"^batch_size: got {batch_size}"):
    synthetic.NoHarm().sample(KEY, batch_size)


def test_no_harm_counts_in_a_circle():
  task = synthetic.NoHarm()
  batch = jax.tree.map(np.asarray, task.sample(KEY, 200))
  symbols = batch["inputs"].argmax(axis=-1)
  np.testing.assert_array_equal(batch["inputs"], np.eye(16)[symbols])
  np.testing.assert_array_equal(np.diff(symbols, axis=1) % 16, 1)
  assert set(symbols[:, 0]) == set(range(16))
  assert batch["mask"].all()
  accuracy = ((symbols + 1) % 16 == batch["targets"]).mean()
  assert accuracy == task.ceiling() == 1.0
