"""Data sets that TFDS prepares: once, in a cache that processes share and that may be damaged.

TensorFlow is not needed: the records are written and read by `array_record`, and parsed by TFDS's
own NumPy code.
"""

import contextlib
import io
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import tensorflow_datasets as tfds
from absl import logging as absl_logging
from tensorflow_datasets.core.utils import tqdm_utils

from data.cache import cache_directory, in_temporary_cache, locked
from data.errors import DatasetError

Builder = tfds.core.GeneratorBasedBuilder
T = TypeVar("T")


class LocalInfo(tfds.core.DatasetInfo):
  """Never looks for a prepared copy elsewhere, nor leaves the temporary directory of doing so."""

  def initialize_from_bucket(self) -> None:
    """Does nothing: the data are at hand."""


def prepared(
  builder: type[Builder],
  config: tfds.core.BuilderConfig,
  read: Callable[[Builder], T | None],
) -> T:
  """Prepares a data set once and reads it from the prepared records.

  The records lie in `data.cache.cache_directory`. Several processes may prepare at once, and one
  that is killed leaves nothing that is taken for prepared. Records that `read` refuses are prepared
  anew. Where no directory can be written, a temporary one serves.

  Args:
    builder: class of the TFDS builder.
    config: its configuration; `name` is the cache key.
    read: reads what has been prepared; raises whatever, or gives None, if it has not, or is
      damaged.

  Returns:
    What `read` gives.

  Raises:
    DatasetError: if the source is damaged, or not even the temporary directory can be written.
  """
  try:
    return _read_or_prepare(builder, config, read, cache_directory())
  except OSError as error:
    problem = error
  try:
    return _read_or_prepare(builder, config, read, in_temporary_cache(problem))
  except OSError as error:
    raise DatasetError(
      f"{config.description or config.name}: cannot prepare the data set"
      f" ({' '.join(str(error).split())}); free some disk space, or set TMEM_CACHE_DIR to a"
      " directory with room"
    ) from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
  """Keeps TFDS's announcements and progress bars off the terminal; errors still show."""
  verbosity, bars = absl_logging.get_verbosity(), tqdm_utils._active
  absl_logging.set_verbosity(absl_logging.ERROR)
  tfds.disable_progress_bar()
  try:
    with contextlib.redirect_stdout(io.StringIO()):
      yield
  finally:
    absl_logging.set_verbosity(verbosity)
    if bars:
      tfds.enable_progress_bar()


@_quiet()
def _read_or_prepare(
  kind: type[Builder],
  config: tfds.core.BuilderConfig,
  read: Callable[[Builder], T | None],
  cache: Path,
) -> T:
  def builder() -> Builder:
    return kind(config=config, data_dir=cache, file_format="array_record")

  def found() -> T | None:
    try:
      return read(builder())
    except Exception:  # TFDS, array_record and protobuf raise many kinds for what they cannot read
      return None

  value = found()
  if value is None:
    directory = cache / kind.name / config.name
    directory.mkdir(parents=True, exist_ok=True)
    with locked(directory / "lock"):
      value = found()  # another process may have been first
      if value is None:
        _remove_remains(directory)
        _prepare(builder())
        value = found()
  if value is None:
    raise OSError(f"{cache}: the records do not hold what was written")
  return value


def _prepare(builder: Builder) -> None:
  try:
    # Writes to a directory of its own, which a rename makes the prepared one at the end.
    builder.download_and_prepare(file_format="array_record")
  except RuntimeError as error:  # how array_record reports a full disk
    raise OSError(str(error)) from error


def _remove_remains(directory: Path) -> None:
  """Removes damaged records and what a killed preparation left; only for the lock's holder."""
  for path in directory.iterdir():
    if path.is_dir():
      shutil.rmtree(path)
