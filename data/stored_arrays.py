"""Arrays that are made once and then read from disk: ArrayRecord files at random access."""

import functools
import hashlib
import io
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from array_record.python.array_record_module import ArrayRecordReader, ArrayRecordWriter
from tqdm import tqdm

from data.cache import cache_directory, in_temporary_cache, locked
from data.errors import DatasetError

SHARD = 32  # arrays in a file: what an interruption loses at most
OPEN_FILES = 64  # at once: systems allow a process no more than a thousand or so
# Makes the arrays of some indices, in order; in place of one that cannot be made, why not.
Make = Callable[[Sequence[int]], Iterable[np.ndarray | DatasetError]]


class StoredArrays(Sequence[np.ndarray]):
  """Arrays in files, read when asked for; any number of threads may ask.

  Args:
    places: of each array, the file and which record of it.
  """

  def __init__(self, places: Sequence[tuple[Path, int]]):
    self._places = tuple(places)
    self._reader = functools.lru_cache(OPEN_FILES)(_open)

  def __len__(self) -> int:
    return len(self._places)

  def __getitem__(self, index: int) -> np.ndarray:
    path, record = self._places[index]
    try:
      content = self._reader(path).read([record])[0]
      return np.load(io.BytesIO(content), allow_pickle=False)
    except (IndexError, RuntimeError, ValueError) as error:  # as array_record reports damage
      raise DatasetError(
        f"{path}: record {record} cannot be read ({' '.join(str(error).split())}); delete the file,"
        " and it is made anew"
      ) from error


def stored_arrays(
  kind: str, keys: Sequence[Any], make: Make
) -> tuple[StoredArrays, dict[int, str]]:
  """Makes arrays unless they have been made, and keeps them in the data cache.

  Files hold `SHARD` arrays each and are named by a hash of their keys. So what has been made before
  an interruption is there when the command is repeated, a changed source is made again, and several
  processes can ask at once: a file is made by one of them, while the others wait for it.

  Args:
    kind: name of the folder in `data.cache.cache_directory`, or in a temporary folder where that
      cannot be written.
    keys: of each array, a JSON value that changes with what it is made from, and how.
    make: makes them.

  Returns:
    `(arrays, problems)`: those that could be made, in order, and by index why others could not.

  Raises:
    DatasetError: if there is no room for them.
  """
  places, problems = [], {}
  folder = _Folder(kind)
  with tqdm(total=len(keys), desc=f"preparing {kind}", leave=False, disable=None) as bar:
    for start in range(0, len(keys), SHARD):
      indices = range(start, min(start + SHARD, len(keys)))
      path, refused = folder.file([keys[i] for i in indices], indices, make)
      problems |= {start + i: reason for i, reason in refused.items()}
      places += [(path, i) for i in range(len(indices)) if i not in refused]
      bar.update(len(indices))
  return StoredArrays(places), problems


class _Folder:
  """A folder of files with arrays: the cache's, or where that cannot be written, a temporary one.

  Args:
    kind: its name.
  """

  def __init__(self, kind: str):
    self.kind = kind
    try:
      self.path = cache_directory() / kind
    except OSError as error:
      self._go_elsewhere(error)

  def _go_elsewhere(self, problem: OSError) -> None:
    self.path = in_temporary_cache(problem) / self.kind

  def file(
    self, keys: Sequence[Any], indices: Sequence[int], make: Make
  ) -> tuple[Path, dict[int, str]]:
    """The file with some arrays, and which of them it lacks."""
    name = f"{hashlib.sha256(json.dumps(keys).encode()).hexdigest()[:32]}.array_record"
    refused = _refused(self.path / name, len(keys))
    if refused is None:
      try:
        refused = self._made(name, indices, make)
      except OSError as error:  # no folder, or no lock
        self._go_elsewhere(error)
        refused = self._made(name, indices, make)
    return self.path / name, refused

  def _made(self, name: str, indices: Sequence[int], make: Make) -> dict[int, str]:
    path = self.path / name
    self.path.mkdir(parents=True, exist_ok=True)
    with locked(self.path / "lock"):
      refused = _refused(path, len(indices))  # another process may have been first
      if refused is None:
        _write(path, list(make(indices)))
        refused = _refused(path, len(indices))
    if refused is None:
      raise DatasetError(f"{path}: does not hold what was written; is the disk full or damaged?")
    return refused


def _write(path: Path, arrays: Sequence[np.ndarray | DatasetError]) -> None:
  temporary = path.with_suffix(".partial")  # of one process at a time: the lock's holder
  refused = {index: str(a) for index, a in enumerate(arrays) if isinstance(a, DatasetError)}
  try:
    writer = ArrayRecordWriter(str(temporary), "group_size:1")
    for index, array in enumerate(arrays):
      buffer = io.BytesIO()
      if index not in refused:
        np.save(buffer, array, allow_pickle=False)
      writer.write(buffer.getvalue() or b"-")
    writer.write(json.dumps(refused).encode())
    writer.close()
    temporary.replace(path)
  except (OSError, RuntimeError) as error:  # as array_record reports a full disk
    temporary.unlink(missing_ok=True)
    raise DatasetError(
      f"{path}: cannot be written ({' '.join(str(error).split())}); free some disk space, or set"
      " TMEM_CACHE_DIR to a directory with room"
    ) from error


def _refused(path: Path, count: int) -> dict[int, str] | None:
  """The last record: which arrays a file lacks; None if it is not there, or cut off."""
  if not path.is_file():
    return None
  try:
    reader = _open(path)
    if reader.num_records() != count + 1:
      return None
    refused = json.loads(reader.read([count])[0])
  except Exception:  # array_record raises many kinds for what it cannot read
    return None
  return {int(index): reason for index, reason in refused.items()}


def _open(path: Path) -> ArrayRecordReader:
  return ArrayRecordReader(str(path), "readahead_buffer_size:0")
