import itertools
import json
import threading

import numpy as np
import pytest

from data import synthetic

TASK = synthetic.CoordinateBinding(writes=3, queries=2, values=4)
HARDER = synthetic.CoordinateBinding(writes=5, queries=2, values=4)
LONGEST = synthetic.LongRecall(writes=5, queries=2, values=4, distractors=3)
MAP = synthetic.MapBuilding(observations=3, size=3)
CURRICULUM = synthetic.Curriculum(((TASK, 2), (HARDER, 3), (LONGEST, 1)))


def take(iterator, count):
  return [next(iterator) for _ in range(count)]


def assert_same(batches, expected):
  assert len(batches) == len(expected)
  for batch, other in zip(batches, expected, strict=True):
    assert batch.keys() == other.keys()
    for name in other:
      np.testing.assert_array_equal(batch[name], other[name])


def rows(batches):
  """The samples of batches, each as one hashable value."""
  return [row.tobytes() for batch in batches for row in np.asarray(batch["inputs"])]


def test_the_seed_decides():
  first = take(synthetic.batches(TASK, 8, seed=5), 4)
  assert_same(take(synthetic.batches(TASK, 8, seed=5), 4), first)
  seeds = [0, 1, 5, 6, 2**32 - 1]
  samples = [row for seed in seeds for row in rows(take(synthetic.batches(TASK, 8, seed), 4))]
  assert len(set(samples)) == len(samples) == 5 * 4 * 8


def test_batches_need_no_compilation_after_the_first():
  iterator = synthetic.batches(TASK, 4, seed=1)
  next(iterator)
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(type(TASK), "row", None)  # it would be called to trace again
    take(iterator, 3)
    take(synthetic.batches(TASK, 4, seed=2), 1)


@pytest.mark.parametrize("task", [TASK, MAP, CURRICULUM])
@pytest.mark.parametrize("hosts", [2, 3])
def test_hosts_share_the_global_batch_of_one_host(task, hosts):
  alone = synthetic.batches(task, 12, seed=2)
  shares = [synthetic.batches(task, 12, 2, host, hosts) for host in range(hosts)]
  for _ in range(6):
    batch, parts = next(alone), [next(share) for share in shares]
    assert all(len(part["inputs"]) == 12 // hosts for part in parts)
    assert_same([{k: np.concatenate([p[k] for p in parts]) for k in batch}], [batch])


@pytest.mark.parametrize("done", [0, 1, 4])
@pytest.mark.parametrize("task", [TASK, CURRICULUM])
def test_resuming_continues_bit_for_bit(task, done):
  arguments = {"batch_size": 8, "seed": 4, "host_index": 1, "host_count": 2}
  iterator = synthetic.batches(task, **arguments)
  take(iterator, done)
  state = json.loads(json.dumps(iterator.get_state()))
  expected = take(iterator, 4)
  again = synthetic.batches(task, **arguments)
  again.set_state(state)
  assert_same(take(again, 4), expected)
  iterator.set_state(state)
  assert_same(take(iterator, 4), expected)


@pytest.mark.parametrize(
  ("state", "message"),
  [
    (None, "state: got None"),
    ({}, "state: got {}"),
    ({"next_batch": 1, "epoch": 0}, "state: got .*'epoch'"),
    ({"next_batch": -1}, "next_batch: got -1, expected an integer from 0 to"),
    ({"next_batch": "1"}, "next_batch: got '1'"),
  ],
)
def test_bad_states_are_named(state, message):
  with pytest.raises(ValueError, match=message):
    synthetic.batches(TASK, 4).set_state(state)


def test_each_stage_of_a_curriculum_gives_the_batches_of_its_task():
  stages = [take(synthetic.batches(task, 4, seed=3), 9) for task in (TASK, HARDER, LONGEST)]
  expected = stages[0][:2] + stages[1][2:5] + stages[2][5:9]
  assert_same(take(synthetic.batches(CURRICULUM, 4, seed=3), 9), expected)
  tasks = [CURRICULUM.task_at(batch) for batch in range(8)]
  assert tasks == [TASK] * 2 + [HARDER] * 3 + [LONGEST] * 3
  assert CURRICULUM.task_at(10**9) == LONGEST


def test_a_curriculum_is_known_by_its_stages():
  assert (CURRICULUM.input_features, CURRICULUM.classes) == (10, 4)
  again = synthetic.Curriculum([[TASK, 2], [HARDER, 3], [LONGEST, 1]])
  assert again == CURRICULUM
  assert hash(again) == hash(CURRICULUM)


@pytest.mark.parametrize(
  ("stages", "message"),
  [
    ((), "stages: got none, expected at least one pair"),
    ((TASK,), r"stages\[0\]: got CoordinateBinding.*, expected a pair"),
    (((TASK, 1), ("map", 1)), r"stages\[1\], task: got 'map', expected a task"),
    (((TASK, 0),), r"stages\[0\], steps: got 0, expected an integer of at least 1"),
    (((TASK, 1), (MAP, 1)), r"stages\[1\]: got input_features = 14, expected 10 as in"),
    (
      ((synthetic.NoHarm(symbols=33), 1), (synthetic.Occlusion(), 1)),
      r"stages\[1\]: got classes = 4, expected 33 as in the first stage",
    ),
  ],
)
def test_bad_stages_are_named(stages, message):
  with pytest.raises(ValueError, match=message):
    synthetic.Curriculum(stages)


@pytest.mark.parametrize(
  ("change", "message"),
  [
    ({"task": "no_harm"}, "task: got 'no_harm', expected a task of data.synthetic"),
    ({"batch_size": 0}, "batch_size: got 0, expected an integer from 1"),
    ({"batch_size": 7}, "batch_size: got 7, expected a multiple of host_count = 2"),
    ({"host_count": 0}, "host_count: got 0, expected an integer of at least 1"),
    ({"host_index": 2}, "host_index: got 2, expected an integer from 0 to 1"),
    ({"host_index": -1}, "host_index: got -1"),
    ({"seed": -1}, "seed: got -1, expected an integer from 0 to 4294967295"),
    ({"seed": 2**32}, "seed: got 4294967296"),
  ],
)
def test_bad_arguments_are_named(change, message):
  arguments = {"task": TASK, "batch_size": 8, "host_index": 0, "host_count": 2}
  with pytest.raises(ValueError, match=message):
    synthetic.batches(**{**arguments, **change})


@pytest.mark.parametrize("count", [1, 7, 8, 9, 20])
def test_evaluation_gives_the_number_of_samples_asked_for(count):
  batches = list(synthetic.eval_batches(MAP, count, batch_size=8, seed=2))
  assert len(batches) == -(-count // 8)
  assert all(len(values) == 8 for batch in batches for values in batch.values())
  joined = {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}
  assert joined["mask"].dtype == joined["observed"].dtype == bool
  assert joined["mask"].sum() == count
  assert joined["mask"][:count, -1].all()
  assert all(not values[count:].any() for values in joined.values())
  [whole] = synthetic.eval_batches(MAP, count, batch_size=count, seed=2)
  assert_same([{name: values[:count] for name, values in joined.items()}], [whole])


def test_evaluation_can_be_run_again():
  batches = synthetic.eval_batches(TASK, 20, batch_size=8)
  assert_same(list(batches), list(batches))


def test_training_and_evaluation_never_meet():
  seeds = [0, 1, 2, 3, 2**31, 2**32 - 1]
  training = [rows(take(synthetic.batches(TASK, 16, seed), 8)) for seed in seeds]
  evaluation = [rows(synthetic.eval_batches(TASK, 128, 16, seed)) for seed in seeds]
  samples = list(itertools.chain(*training, *evaluation))
  assert len(set(samples)) == len(samples) == 12 * 128


@pytest.mark.parametrize(
  ("change", "message"),
  [
    ({"task": CURRICULUM}, "task: got Curriculum.*, expected a task of data.synthetic"),
    ({"count": 0}, "count: got 0, expected an integer from 1"),
    ({"batch_size": 0}, "batch_size: got 0"),
    ({"seed": 2**32}, "seed: got 4294967296"),
  ],
)
def test_bad_arguments_of_evaluation_are_named(change, message):
  with pytest.raises(ValueError, match=message):
    synthetic.eval_batches(**{"task": TASK, "count": 8, "batch_size": 8, **change})


def test_no_threads_are_left_behind():
  before = threading.active_count()
  take(synthetic.batches(TASK, 8), 3)
  assert threading.active_count() == before
