"""Parallel streams of a text: rows that go on, every target once, and where ids were seen last."""

import numpy as np
import pytest

from data import stream_loader
from data.loader import eval_batches
from data.repeats import REPEATS, previous_distances
from data.stream_loader import eval_stream_batches

TOKENS = np.arange(100, dtype=np.int32)


def take(iterator, count):
  return [next(iterator) for _ in range(count)]


def test_rows_go_on_where_they_stopped_and_begin_anew_together():
  batches = take(stream_loader.stream_batches(TOKENS, batch_size=4, length=7), 5)
  inputs = np.concatenate([b["inputs"] for b in batches], axis=1)
  for row, begin in enumerate((0, 24, 48, 72)):  # (100 - 1) // 4 tokens each, 3 segments of 7
    expected = [*range(begin, begin + 21), *range(begin, begin + 14)]
    assert inputs[row].tolist() == expected
  assert [b["restart"].tolist() for b in batches] == [[i % 3 == 0] * 4 for i in range(5)]
  assert all((b["targets"] == b["inputs"] + 1).all() for b in batches)


def test_a_position_can_be_saved():
  first = stream_loader.stream_batches(TOKENS, 4, 7)
  take(first, 2)
  again = stream_loader.stream_batches(TOKENS, 4, 7)
  again.set_state(first.get_state())
  for one, two in zip(take(first, 4), take(again, 4), strict=True):
    assert all(np.array_equal(one[name], two[name]) for name in one)


def test_hosts_share_the_streams():
  whole = stream_loader.stream_batches(TOKENS, 4, 7)
  shares = [stream_loader.stream_batches(TOKENS, 4, 7, host, 2) for host in range(2)]
  for _ in range(4):
    expected, found = next(whole), [next(share) for share in shares]
    for name, rows in expected.items():
      np.testing.assert_array_equal(np.concatenate([batch[name] for batch in found]), rows)


def test_documents_begin_where_they_do():
  borders = TOKENS % 10 == 3
  for batch in take(stream_loader.stream_batches(TOKENS, 4, 7, borders=borders), 3)[1:]:
    np.testing.assert_array_equal(batch["reset"], batch["inputs"] % 10 == 3)
  assert not borders[0]  # what is given is not written to
  for batch in stream_loader.eval_stream_batches(TOKENS, 3, 7, borders):
    np.testing.assert_array_equal(batch["reset"], (batch["inputs"] % 10 == 3) & batch["mask"])


@pytest.mark.parametrize("size", [2, 3, 22, 99, 100])
def test_every_target_counts_once(size):
  batches = list(stream_loader.eval_stream_batches(TOKENS[:size], 4, 7, reach=1))
  assert all(batch["inputs"].shape == (4, 7) for batch in batches)
  counted = np.concatenate([b["targets"][b["mask"]] for b in batches])
  assert sorted(counted) == list(range(1, size))
  rows = [np.concatenate([b["targets"][r][b["mask"][r]] for b in batches]) for r in range(4)]
  assert all((np.diff(row) == 1).all() for row in rows)
  for batch in batches:
    mask = batch["mask"]
    assert (mask[:, :-1] >= mask[:, 1:]).all()  # nothing counts behind what does not


def test_where_ids_were_seen_last():
  tokens = np.random.default_rng(0).integers(0, 7, size=60)
  last, expected = {}, []
  for place, token in enumerate(tokens):
    expected.append(place - last.get(token, place))
    last[token] = place
  assert previous_distances(tokens).tolist() == expected
  assert previous_distances(tokens[:0]).size == 0


@pytest.mark.parametrize("borders", [False, True])
@pytest.mark.parametrize("batches", [eval_batches, eval_stream_batches])
def test_a_repeat_is_what_a_model_has_seen_before(batches, borders):
  """Against a search through the tokens of the same window or stream, and document."""
  tokens = np.random.default_rng(1).integers(0, 5, size=90).astype(np.int32)
  borders = np.arange(90) % 13 == 4 if borders else None
  found = list(batches(tokens, 3, 6, borders, reach=3))
  if batches is eval_stream_batches:  # a row is one context
    found = [{k: np.concatenate([b[k] for b in found], axis=1) for k in found[0]}]
  for batch in found:
    for row in range(3):
      inputs, repeat = batch["inputs"][row], batch["repeat"][row]
      start = 0
      for index in np.arange(len(inputs))[batch["mask"][row]]:
        start = index if borders is not None and batch["reset"][row][index] else start
        context = inputs[start : index + 1][::-1].tolist()
        target = batch["targets"][row][index]
        distance = context.index(target) + 1 if target in context else 0
        kind = "first" if not distance else "near" if distance <= 3 else "far"
        assert REPEATS[repeat[index]] == kind


@pytest.mark.parametrize(
  ("change", "message"),
  [
    (
      {"length": 25},
      "^tokens: the split has 100 tokens, fewer than 4 streams of one segment of 25",
    ),
    ({"length": 0}, "^length: got 0"),
    ({"batch_size": 0}, "^batch_size: got 0"),
    ({"host_count": 3}, "^batch_size: got 4, expected a multiple of host_count = 3"),
    ({"borders": np.zeros(3, bool)}, r"^borders: got bool\[3\], expected bool\[100\]"),
  ],
)
def test_arguments_that_cannot_be_are_named(change, message):
  with pytest.raises(ValueError, match=message):
    stream_loader.stream_batches(**{"tokens": TOKENS, "batch_size": 4, "length": 7, **change})
