"""Batches of token windows: seeded, exactly resumable, one share per host."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable

import grain
import numpy as np

from data.repeats import document_starts, kinds, previous_distances

# A window is a slice of an array in memory: reading ahead would only cost threads.
READ_IN_PLACE = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)


def train_batches(
  tokens: np.ndarray,
  batch_size: int,
  length: int,
  seed: int = 0,
  host_index: int = 0,
  host_count: int = 1,
  borders: np.ndarray | None = None,
) -> grain.DatasetIterator:
  """Iterates over shuffled windows of `length + 1` tokens, without end.

  An epoch visits `max(1, (N - length) // length)` windows of N tokens, each exactly once over
  all hosts. They do not overlap within an epoch; each epoch draws a new order and a new offset
  of the first window, so that the cuts between windows move. Batches run on across the end of
  an epoch: where `batch_size` does not divide an epoch, the batch is filled from the next one
  and nothing is dropped. A host gets its contiguous rows of each global batch, so the global
  batch does not depend on the number of hosts.

  Args:
    tokens: [N] int32 ids of one split, N > length.
    batch_size: rows of the global batch, over all hosts.
    length: tokens that the model sees per row.
    seed: order and offsets follow from it, in [0, 2**32).
    host_index: which share of each global batch, in [0, host_count).
    host_count: number of hosts that share each global batch; it divides `batch_size`.
    borders: [N] bool, True on the first token of each document; None: documents are one.

  Returns:
    An iterator over `{"inputs", "targets"}`, int32 [batch_size // host_count, length], targets
    one token later than inputs; with `borders` also "reset", those of the inputs. `get_state()` is
    JSON-able; `set_state` of it on an iterator made with the same arguments continues with exactly
    the batches that would have followed.

  Raises:
    ValueError: if an argument is out of its range or `tokens` is shorter than one window.
  """
  tokens = checked_tokens(tokens, length)
  check_at_least("batch_size", batch_size, 1)
  if tokens.size < length + 1:
    raise ValueError(
      f"tokens: the split has {tokens.size} tokens, fewer than one window of length + 1 ="
      f" {length + 1}; use a smaller length or more text"
    )
  rows = check_host(batch_size, host_index, host_count)
  if not 0 <= seed < 2**32:
    raise ValueError(f"seed: got {seed}, expected 0 <= seed < 2**32")

  windows = max(1, (tokens.size - length) // length)
  last_offset = min(length - 1, tokens.size - 1 - windows * length)
  share = slice(host_index * rows, (host_index + 1) * rows)

  @functools.lru_cache(maxsize=2)  # a batch touches two epochs at most, or runs through them
  def offset(epoch: int) -> int:
    return int(np.random.default_rng((seed, epoch)).integers(last_offset + 1))

  def start(position: int, window: int) -> int:
    return offset(position // windows) + window * length

  dataset = grain.MapDataset.range(windows).shuffle(seed=seed).repeat().map_with_index(start)
  # Grain takes the length of an endless data set in batches of one for more than a length can be.
  dataset = dataset.batch(batch_size) if batch_size > 1 else dataset.map(lambda start: [start])
  dataset = dataset.map(lambda starts: _cut(tokens, np.asarray(starts)[share], length, borders))
  return iter(dataset.to_iter_dataset(READ_IN_PLACE))


def eval_batches(
  tokens: np.ndarray,
  batch_size: int,
  length: int,
  borders: np.ndarray | None = None,
  reach: int | None = None,
) -> Iterable[dict[str, np.ndarray]]:
  """Every target token of a split exactly once: the protocol "windows".

  The split is cut into consecutive windows of `length` targets that do not overlap, and each
  is predicted from its own inputs alone. All N - 1 tokens that have a predecessor are targets.

  Args:
    tokens: [N] int32 ids of one split, N >= 2.
    batch_size: rows of a batch.
    length: tokens per row.
    borders: [N] bool, True on the first token of each document; None: documents are one.
    reach: with it, "repeat" says where targets were seen before, see `data.repeats.kinds`.

  Returns:
    What can be iterated over as often as needed, giving `{"inputs", "targets"}`, int32
    [batch_size, length], and `"mask"`, bool of that shape, False on padding; with `borders` also
    "reset", those of the inputs. The last batch is padded to full size; N - 1 targets are unmasked
    in all.

  Raises:
    ValueError: if an argument is out of its range or `tokens` has no target.
  """
  tokens = checked_tokens(tokens, length)
  check_at_least("batch_size", batch_size, 1)
  targets = tokens.size - 1
  if targets < 1:
    raise ValueError(
      f"tokens: the split has {tokens.size} tokens, expected at least 2 to predict one from another"
    )
  per_batch = batch_size * length
  first = np.arange(batch_size) * length
  rows = first[:, None] + np.arange(length)
  cut = eval_cutter(tokens, borders, reach)

  def batch(index: int) -> dict[str, np.ndarray]:
    begin = index * per_batch
    return cut(begin + rows, targets, begin + first)

  batches = -(-targets // per_batch)
  return grain.MapDataset.range(batches).map(batch).to_iter_dataset(READ_IN_PLACE)


def eval_cutter(
  tokens: np.ndarray, borders: np.ndarray | None, reach: int | None
) -> Callable[[np.ndarray, np.ndarray | int, np.ndarray], dict[str, np.ndarray]]:
  """Makes the function that assembles batches of an evaluation.

  Args:
    tokens: [N] int32 ids of one split.
    borders: as in `eval_batches`.
    reach: as in `eval_batches`.

  Returns:
    A function of places [rows, length] in the split, of where they end (of each row, or of all)
    and where each row's model began to see, [rows], to a batch as `eval_batches` describes it.
  """
  distances, starts = previous_distances(tokens), document_starts(borders, tokens.size)

  def cut(places: np.ndarray, end: np.ndarray | int, began: np.ndarray) -> dict[str, np.ndarray]:
    mask = places < np.reshape(end, (-1, 1))
    places = np.where(mask, places, 0)
    batch = {
      "inputs": np.where(mask, tokens[places], 0),
      "targets": np.where(mask, tokens[places + 1], 0),
      "mask": mask,
    }
    if borders is not None:
      batch["reset"] = borders[places] & mask
    if reach is not None:
      context = places + 1 - np.maximum(began[:, None], starts[places])
      batch["repeat"] = kinds(distances[places + 1], context, reach)
    return batch

  return cut


def _cut(
  tokens: np.ndarray, starts: np.ndarray, length: int, borders: np.ndarray | None
) -> dict[str, np.ndarray]:
  places = starts[:, None] + np.arange(length + 1)
  windows = tokens[places]
  batch = {"inputs": windows[:, :-1], "targets": windows[:, 1:]}
  return batch if borders is None else batch | {"reset": borders[places[:, :-1]]}


def check_host(batch_size: int, host_index: int, host_count: int) -> int:
  """Rows of a global batch that a host has; raises ValueError if the hosts cannot share it."""
  check_at_least("host_count", host_count, 1)
  if batch_size % host_count:
    raise ValueError(
      f"batch_size: got {batch_size}, expected a multiple of host_count = {host_count}"
    )
  if not 0 <= host_index < host_count:
    raise ValueError(
      f"host_index: got {host_index}, expected 0 <= host_index < host_count = {host_count}"
    )
  return batch_size // host_count


def checked_tokens(tokens: np.ndarray, length: int) -> np.ndarray:
  """`tokens` as int32; raises ValueError if they are no row of integers, or `length` below 1."""
  check_at_least("length", length, 1)
  tokens = np.asarray(tokens)
  if tokens.ndim != 1 or not np.issubdtype(tokens.dtype, np.integer):
    raise ValueError(
      f"tokens: got {tokens.dtype} of shape {tokens.shape}, expected integers of shape [tokens]"
    )
  return tokens.astype(np.int32, copy=False)


def check_at_least(name: str, value: int, least: int) -> None:
  """Raises ValueError if a value is below `least`."""
  if value < least:
    raise ValueError(f"{name}: got {value}, expected at least {least}")
