"""TFDS builder of the text corpora: ArrayRecord files, served at random access.

TensorFlow is not needed: the records are written and read by `array_record`, and parsed by TFDS's
own NumPy code.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import logging
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import tensorflow_datasets as tfds
from absl import logging as absl_logging
from tensorflow_datasets.core.utils import tqdm_utils

from data.cache import cache_directory, locked
from data.documents import SPLITS, Document, Splits, fingerprint
from data.errors import DatasetError

_log = logging.getLogger(__name__)


@dataclasses.dataclass(eq=False)
class TextCorpusConfig(tfds.core.BuilderConfig):
  """One state of one corpus.

  Attributes:
    documents: the documents by split. `name` must change with them: it is their cache key.
  """

  documents: Splits = dataclasses.field(default_factory=dict)


class _LocalInfo(tfds.core.DatasetInfo):
  """Never looks for a prepared copy elsewhere, nor leaves the temporary directory of doing so."""

  def initialize_from_bucket(self) -> None:
    """Does nothing: the documents are at hand."""


class TextCorpus(tfds.core.GeneratorBasedBuilder):
  """Documents of a text corpus, `{"name", "text"}` as bytes, in the order of the corpus."""

  VERSION = tfds.core.Version("1.0.0")
  builder_config: TextCorpusConfig

  def _info(self) -> tfds.core.DatasetInfo:
    return _LocalInfo(
      builder=self,
      description=self.__doc__,
      features=tfds.features.FeaturesDict(
        {"name": tfds.features.Text(), "text": tfds.features.Text()}
      ),
      disable_shuffling=True,
    )

  def _split_generators(self, dl_manager: tfds.download.DownloadManager) -> Mapping[str, Iterator]:
    del dl_manager  # nothing to download
    return {
      split: self._generate_examples(self.builder_config.documents[split]) for split in SPLITS
    }

  def _generate_examples(
    self, documents: Sequence[Document]
  ) -> Iterator[tuple[int, dict[str, bytes]]]:
    for position, document in enumerate(documents):
      name = document.name.encode("utf-8", errors="surrogateescape")
      yield position, {"name": name, "text": document.text}


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


def cached_documents(corpus: str, documents: Splits) -> Splits:
  """Prepares a corpus once and reads its documents from the prepared records.

  The records lie below `$TMEM_CACHE_DIR`, else `$XDG_CACHE_HOME/tmem`, else `~/.cache/tmem`,
  under a key that changes with any document. Several processes may prepare at once, and one
  that is killed leaves nothing that is taken for prepared. Records that no longer hold the
  documents are prepared anew. Where no directory can be written, a temporary one serves.

  Args:
    corpus: name of the corpus.
    documents: its documents by split, as found at the source.

  Returns:
    The documents by split, as read back from the records.

  Raises:
    DatasetError: if not even the temporary directory can be written.
  """
  config = TextCorpusConfig(name=f"{corpus}-{fingerprint(documents)}", documents=documents)
  try:
    return _read_or_prepare(config, cache_directory())
  except OSError as error:
    _log.warning(
      "cannot use the data cache (%s); using a temporary directory: set TMEM_CACHE_DIR to a"
      " directory that can be written",
      " ".join(str(error).split()),
    )
  try:
    with tempfile.TemporaryDirectory(prefix="tmem-") as directory:
      return _read_or_prepare(config, Path(directory))
  except OSError as error:
    raise DatasetError(
      f"{corpus}: cannot prepare the data set ({' '.join(str(error).split())}); free some disk"
      " space, or set TMEM_CACHE_DIR to a directory with room"
    ) from error


@_quiet()
def _read_or_prepare(config: TextCorpusConfig, cache: Path) -> Splits:
  documents = _read(config, cache)
  if documents is None:
    directory = cache / TextCorpus.name / config.name
    directory.mkdir(parents=True, exist_ok=True)
    with locked(directory / "lock"):
      documents = _read(config, cache)  # another process may have been first
      if documents is None:
        _remove_remains(directory)
        _prepare(config, cache)
        documents = _read(config, cache)
  if documents is None:
    raise OSError(f"{cache}: the records do not hold what was written")
  return documents


def _builder(config: TextCorpusConfig, cache: Path) -> TextCorpus:
  return TextCorpus(config=config, data_dir=cache, file_format="array_record")


def _prepare(config: TextCorpusConfig, cache: Path) -> None:
  try:
    # Writes to a directory of its own, which a rename makes the prepared one at the end.
    _builder(config, cache).download_and_prepare(file_format="array_record")
  except RuntimeError as error:  # how array_record reports a full disk
    raise OSError(str(error)) from error


def _read(config: TextCorpusConfig, cache: Path) -> Splits | None:
  """Reads the prepared documents; None if they are not prepared, or damaged."""
  try:
    builder = _builder(config, cache)
    documents = {split: _documents(builder.as_data_source(split=split)) for split in SPLITS}
  except Exception:  # TFDS, array_record and protobuf raise many kinds for what they cannot read
    return None
  same = all(list(documents[split]) == list(config.documents[split]) for split in SPLITS)
  return documents if same else None


def _documents(source: Sequence[Mapping[str, bytes]]) -> Sequence[Document]:
  examples = source.__getitems__(list(range(len(source))))
  return [
    Document(example["name"].decode("utf-8", errors="surrogateescape"), example["text"])
    for example in examples
  ]


def _remove_remains(directory: Path) -> None:
  """Removes damaged records and what a killed preparation left; only for the lock's holder."""
  for path in directory.iterdir():
    if path.is_dir():
      shutil.rmtree(path)
