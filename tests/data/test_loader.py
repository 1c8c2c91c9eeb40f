import json
import threading

import numpy as np
import pytest

from data import loader

TOKENS = np.arange(1000, dtype=np.int32)


def starts(*batches):
  return [start for batch in batches for start in batch["inputs"][:, 0].tolist()]


def take(iterator, count):
  return [next(iterator) for _ in range(count)]


def assert_same(batches, expected):
  assert len(batches) == len(expected)
  for batch, other in zip(batches, expected, strict=True):
    for name in ("inputs", "targets"):
      np.testing.assert_array_equal(batch[name], other[name])


def test_windows_are_slices_with_targets_one_later():
  batch = next(loader.train_batches(TOKENS[::-1].copy(), batch_size=4, length=7))
  assert batch["inputs"].shape == batch["targets"].shape == (4, 7)
  assert batch["inputs"].dtype == batch["targets"].dtype == np.int32
  np.testing.assert_array_equal(batch["targets"], batch["inputs"] - 1)
  np.testing.assert_array_equal(np.diff(batch["inputs"]), -1)


def test_each_epoch_visits_every_window_once_in_a_new_order():
  length, windows = 9, (1000 - 9) // 9
  iterator = loader.train_batches(TOKENS, batch_size=10, length=length, seed=3)
  epochs = [starts(*take(iterator, 11)) for _ in range(3)]
  assert windows == 110
  for epoch in epochs:
    assert np.unique(np.diff(sorted(epoch))).tolist() == [length]
    assert min(epoch) < length
  orders = {tuple((start - min(epoch)) // length for start in epoch) for epoch in epochs}
  assert len(orders) == 3
  assert len({min(epoch) for epoch in epochs}) > 1  # the cuts move


def test_batches_run_on_across_the_end_of_an_epoch():
  length = 9  # 110 windows
  iterator = loader.train_batches(TOKENS, batch_size=8, length=length, seed=1)
  stream = starts(*take(iterator, 55))
  for epoch in range(4):
    assert len({start // length for start in stream[epoch * 110 : (epoch + 1) * 110]}) == 110


def test_the_seed_decides():
  first = take(loader.train_batches(TOKENS, 4, 9, seed=5), 30)
  assert_same(take(loader.train_batches(TOKENS, 4, 9, seed=5), 30), first)
  assert starts(next(loader.train_batches(TOKENS, 4, 9, seed=6))) != starts(first[0])


@pytest.mark.parametrize("hosts", [2, 3, 6])
def test_hosts_share_the_global_batch_of_one_host(hosts):
  alone = loader.train_batches(TOKENS, 12, 9, seed=2)
  shares = [loader.train_batches(TOKENS, 12, 9, 2, host, hosts) for host in range(hosts)]
  for _ in range(25):
    batch, parts = next(alone), [next(share) for share in shares]
    assert all(part["inputs"].shape == (12 // hosts, 9) for part in parts)
    assert_same([{k: np.concatenate([p[k] for p in parts]) for k in batch}], [batch])


@pytest.mark.parametrize("done", [0, 1, 7, 40])
def test_resuming_continues_bit_for_bit(done):
  arguments = {"batch_size": 8, "length": 9, "seed": 4, "host_index": 1, "host_count": 2}
  iterator = loader.train_batches(TOKENS, **arguments)
  take(iterator, done)
  state = json.loads(json.dumps(iterator.get_state()))
  expected = take(iterator, 30)
  again = loader.train_batches(TOKENS, **arguments)
  again.set_state(state)
  assert_same(take(again, 30), expected)
  iterator.set_state(state)
  assert_same(take(iterator, 30), expected)


RESUME = """
import json, sys
import numpy as np
from data import loader
iterator = loader.train_batches(np.arange(1000), batch_size=8, length=9, seed=4)
iterator.set_state(json.loads(sys.argv[1]))
print(json.dumps([next(iterator)["inputs"].tolist() for _ in range(20)]))
"""


def test_resuming_in_another_process_continues_bit_for_bit(start_python):
  iterator = loader.train_batches(TOKENS, batch_size=8, length=9, seed=4)
  take(iterator, 11)
  process = start_python(RESUME, json.dumps(iterator.get_state()))
  output, errors = process.communicate(timeout=60)
  assert errors == ""
  assert json.loads(output) == [batch["inputs"].tolist() for batch in take(iterator, 20)]


def test_no_threads_are_left_behind():
  before = threading.active_count()
  take(loader.train_batches(TOKENS, 8, 9), 5)
  assert sum(1 for _ in loader.eval_batches(TOKENS, 8, 9)) == 14
  assert threading.active_count() == before


@pytest.mark.parametrize("size", [10, 11, 18, 19])
def test_a_split_of_about_one_window_is_enough(size):
  iterator = loader.train_batches(TOKENS[:size], batch_size=4, length=9)
  for batch in take(iterator, 20):
    assert batch["targets"].max() < size
    np.testing.assert_array_equal(batch["targets"], batch["inputs"] + 1)


@pytest.mark.parametrize(
  ("change", "message"),
  [
    ({"tokens": TOKENS[:9]}, "the split has 9 tokens, fewer than one window of .* 10"),
    ({"tokens": TOKENS[None]}, r"tokens: got int32 of shape \(1, 1000\)"),
    ({"tokens": TOKENS * 1.0}, "tokens: got float64"),
    ({"length": 0}, "length: got 0, expected at least 1"),
    ({"batch_size": 0}, "batch_size: got 0, expected at least 1"),
    ({"batch_size": 7}, "batch_size: got 7, expected a multiple of host_count = 2"),
    ({"host_count": 0}, "host_count: got 0, expected at least 1"),
    ({"host_index": 2}, "host_index: got 2, expected 0 <= host_index < host_count = 2"),
    ({"host_index": -1}, "host_index: got -1"),
    ({"seed": -1}, "seed: got -1, expected 0 <= seed"),
  ],
)
def test_bad_arguments_are_named(change, message):
  arguments = {"tokens": TOKENS, "batch_size": 8, "length": 9, "host_index": 0, "host_count": 2}
  with pytest.raises(ValueError, match=message):
    loader.train_batches(**{**arguments, **change})


@pytest.mark.parametrize("size", [2, 9, 10, 11, 72, 73, 74, 145, 1000])
def test_evaluation_covers_every_target_once(size):
  batches = list(loader.eval_batches(TOKENS[:size], batch_size=8, length=9))
  assert all(value.shape == (8, 9) for batch in batches for value in batch.values())
  mask = np.stack([batch["mask"] for batch in batches])
  inputs = np.stack([batch["inputs"] for batch in batches])[mask]
  targets = np.stack([batch["targets"] for batch in batches])[mask]
  assert mask.dtype == bool
  np.testing.assert_array_equal(inputs, np.arange(size - 1))
  np.testing.assert_array_equal(targets, np.arange(1, size))


def test_evaluation_windows_are_fresh_and_padded_on_the_right():
  batches = list(loader.eval_batches(TOKENS[:13], batch_size=2, length=5))
  assert len(batches) == 2
  assert batches[0]["inputs"].tolist() == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
  assert batches[1]["inputs"].tolist() == [[10, 11, 0, 0, 0], [0, 0, 0, 0, 0]]
  assert batches[1]["targets"].tolist() == [[11, 12, 0, 0, 0], [0, 0, 0, 0, 0]]
  assert batches[1]["mask"].tolist() == [[True, True, False, False, False], [False] * 5]


def test_evaluation_can_be_run_again():
  batches = loader.eval_batches(TOKENS, batch_size=8, length=9)
  assert_same(list(batches), list(batches))


@pytest.mark.parametrize(
  ("change", "message"),
  [
    ({"tokens": TOKENS[:1]}, "the split has 1 tokens, expected at least 2"),
    ({"length": 0}, "length: got 0"),
    ({"batch_size": 0}, "batch_size: got 0"),
  ],
)
def test_bad_arguments_of_evaluation_are_named(change, message):
  with pytest.raises(ValueError, match=message):
    loader.eval_batches(**{"tokens": TOKENS, "batch_size": 8, "length": 9, **change})


def test_a_batch_may_have_one_row():
  iterator = loader.train_batches(TOKENS, batch_size=1, length=9, seed=1)
  rows = take(loader.train_batches(TOKENS, batch_size=4, length=9, seed=1), 3)
  expected = np.concatenate([batch["inputs"] for batch in rows])
  found = [next(iterator)["inputs"] for _ in range(12)]
  assert all(inputs.shape == (1, 9) for inputs in found)
  np.testing.assert_array_equal(np.concatenate(found), expected)
  state = iterator.get_state()
  after = next(iterator)["inputs"]
  iterator.set_state(state)
  np.testing.assert_array_equal(next(iterator)["inputs"], after)
