"""Batches of examples that are made one by one: seeded, exactly resumable, one share per host."""

from collections.abc import Callable, Iterable, Mapping

import grain
import numpy as np

from data.loader import check_at_least, check_host

# Decoding and resizing run outside of Python's lock: threads do it while the model steps.
READ_AHEAD = grain.ReadOptions(num_threads=2, prefetch_buffer_size=4)
EVAL_SEED = 20_260_527  # what is random in evaluations is the same for every model
Example = Mapping[str, np.ndarray]
# Makes the example of an index; what is random in it comes from the generator.
MakeExample = Callable[[int, np.random.Generator], Example]


def train_batches(
  make: MakeExample,
  count: int,
  batch_size: int,
  seed: int = 0,
  host_index: int = 0,
  host_count: int = 1,
) -> grain.DatasetIterator:
  """Iterates over shuffled examples, without end: an epoch has each of them once.

  What is random follows from the seed and from the place in the sequence alone, so the global batch
  does not depend on the number of hosts.

  Args:
    make: makes an example; called by several threads at once.
    count: how many examples there are, at least one.
    batch_size: rows of the global batch, over all hosts.
    seed: in [0, 2**32).
    host_index: which share of each global batch, in [0, host_count).
    host_count: number of hosts; it divides `batch_size`.

  Returns:
    An iterator over examples with one more axis in front, of this host's rows. `get_state()` is
    JSON-able; `set_state` of it continues exactly.

  Raises:
    ValueError: if an argument is out of its range.
  """
  check_at_least("count", count, 1)
  check_at_least("batch_size", batch_size, 1)
  rows = check_host(batch_size, host_index, host_count)
  share = range(host_index * rows, (host_index + 1) * rows)
  order = grain.MapDataset.range(count).shuffle(seed=seed).repeat()

  def batch(index: int) -> Example:
    places = [index * batch_size + row for row in share]
    return stacked([make(order[p], np.random.default_rng((seed, p))) for p in places])

  dataset = grain.MapDataset.range(1).repeat().map_with_index(lambda index, _: batch(index))
  return iter(dataset.to_iter_dataset(READ_AHEAD))


def eval_batches(
  make: MakeExample, count: int, batch_size: int, limit: int = 0
) -> Iterable[Example]:
  """Every example once, in order; what is random is the same each time.

  Args:
    make: as in `train_batches`.
    count: as in `train_batches`.
    batch_size: rows of a batch.
    limit: if not 0, no more than so many examples, at equal distances.

  Returns:
    What can be iterated over as often as needed, giving what `train_batches` gives, and "mask",
    bool [rows], False on rows that fill up the last batch.

  Raises:
    ValueError: if an argument is out of its range.
  """
  check_at_least("count", count, 1)
  check_at_least("batch_size", batch_size, 1)

  shown = min(limit or count, count)

  def batch(index: int) -> Example:
    places = [index * batch_size + row for row in range(batch_size)]
    chosen = [place * count // shown if place < shown else 0 for place in places]
    examples = [make(p, np.random.default_rng((EVAL_SEED, p))) for p in chosen]
    return stacked(examples) | {"mask": np.array([place < shown for place in places])}

  batches = -(-shown // batch_size)
  return grain.MapDataset.range(batches).map(batch).to_iter_dataset(READ_AHEAD)


def stacked(examples: list[Example]) -> dict[str, np.ndarray]:
  """Examples as one batch, a row for each."""
  return {name: np.stack([example[name] for example in examples]) for name in examples[0]}
