"""Batches of a text read from end to end in parallel streams: a row goes on where it stopped."""

from __future__ import annotations

from collections.abc import Iterable

import grain
import numpy as np

from data.loader import READ_IN_PLACE, check_at_least, check_host, checked_tokens, eval_cutter


def stream_batches(
  tokens: np.ndarray,
  batch_size: int,
  length: int,
  host_index: int = 0,
  host_count: int = 1,
  borders: np.ndarray | None = None,
) -> grain.DatasetIterator:
  """Iterates over segments of parallel streams, in order and without end.

  The text is cut into `batch_size` equal streams, one for each row; row r of a batch goes on
  where row r of the batch before it stopped. At the end of the streams, where less than a segment
  is left, all begin anew.

  Args:
    tokens: [N] int32 ids of one split, N > batch_size * length.
    batch_size: streams, over all hosts.
    length: tokens of a segment.
    host_index: which share of the streams, in [0, host_count).
    host_count: number of hosts that share the streams; it divides `batch_size`.
    borders: [N] bool, True on the first token of each document; None: documents are one.

  Returns:
    An iterator over `{"inputs", "targets"}`, [batch_size // host_count, length], targets one token
    later than inputs, and "restart", [batch_size // host_count] bool, True where a stream begins;
    with `borders` also "reset", those of the inputs. `get_state()` and `set_state` are as those of
    `data.loader.train_batches`.

  Raises:
    ValueError: if an argument is out of its range or `tokens` has no segment for every row.
  """
  tokens = checked_tokens(tokens, length)
  check_at_least("batch_size", batch_size, 1)
  rows = check_host(batch_size, host_index, host_count)
  whole = (tokens.size - 1) // batch_size
  segments = whole // length
  if not segments:
    raise ValueError(
      f"tokens: the split has {tokens.size} tokens, fewer than {batch_size} streams of one segment"
      f" of {length} and the token after it; use more text, a smaller length or fewer rows"
    )
  first = (host_index * rows + np.arange(rows)) * whole
  borders = _checked_borders(borders, tokens)

  def segment(index: int) -> dict[str, np.ndarray]:
    places = first[:, None] + (index % segments) * length + np.arange(length + 1)
    window = tokens[places]
    batch = {
      "inputs": window[:, :-1],
      "targets": window[:, 1:],
      "restart": np.full(rows, index % segments == 0),
    }
    return batch if borders is None else batch | {"reset": borders[places[:, :-1]]}

  dataset = (
    grain.MapDataset.range(segments).repeat().map_with_index(lambda index, _: segment(index))
  )
  return iter(dataset.to_iter_dataset(READ_IN_PLACE))


def eval_stream_batches(
  tokens: np.ndarray,
  batch_size: int,
  length: int,
  borders: np.ndarray | None = None,
  reach: int | None = None,
) -> Iterable[dict[str, np.ndarray]]:
  """Every target token of a split exactly once, in parallel streams: the protocol "stream".

  Args:
    tokens: [N] int32 ids of one split, N >= 2.
    batch_size: streams; they are of equal length, the last ones shorter. Each begins with nothing.
    length: tokens of a segment.
    borders: as in `stream_batches`.
    reach: with it, "repeat" says where targets were seen before, see `data.repeats.kinds`.

  Returns:
    What can be iterated over as often as needed, giving batches in order, as
    `data.loader.eval_batches`: "mask" is False behind the end of a stream alone.

  Raises:
    ValueError: if an argument is out of its range or `tokens` has no target.
  """
  tokens = checked_tokens(tokens, length)
  check_at_least("batch_size", batch_size, 1)
  check_at_least("tokens", tokens.size, 2)
  borders = _checked_borders(borders, tokens)
  targets = tokens.size - 1
  whole = -(-targets // batch_size)
  begin = np.arange(batch_size) * whole
  end = np.minimum(begin + whole, targets)
  cut = eval_cutter(tokens, borders, reach)

  def segment(index: int) -> dict[str, np.ndarray]:
    return cut(begin[:, None] + index * length + np.arange(length), end, begin)

  dataset = grain.MapDataset.range(-(-whole // length)).map(segment)
  return dataset.to_iter_dataset(READ_IN_PLACE)


def _checked_borders(borders: np.ndarray | None, tokens: np.ndarray) -> np.ndarray | None:
  if borders is not None and (borders.shape != tokens.shape or borders.dtype != bool):
    raise ValueError(
      f"borders: got {borders.dtype}{list(borders.shape)}, expected bool[{tokens.size}]"
    )
  return borders
