"""TFDS builder of the text corpora: ArrayRecord files, served at random access."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import tensorflow_datasets as tfds

from data.documents import SPLITS, Document, Splits, fingerprint
from data.prepared import LocalInfo, prepared


@dataclasses.dataclass(eq=False)
class TextCorpusConfig(tfds.core.BuilderConfig):
  """One state of one corpus.

  Attributes:
    documents: the documents by split. `name` must change with them: it is their cache key.
  """

  documents: Splits = dataclasses.field(default_factory=dict)


class TextCorpus(tfds.core.GeneratorBasedBuilder):
  """Documents of a text corpus, `{"name", "text"}` as bytes, in the order of the corpus."""

  VERSION = tfds.core.Version("1.0.0")
  builder_config: TextCorpusConfig

  def _info(self) -> tfds.core.DatasetInfo:
    return LocalInfo(
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
  name = f"{corpus}-{fingerprint(documents)}"
  config = TextCorpusConfig(name=name, description=corpus, documents=documents)

  def read(builder: TextCorpus) -> Splits | None:
    found = {split: _documents(builder.as_data_source(split=split)) for split in SPLITS}
    return found if all(list(found[s]) == list(documents[s]) for s in SPLITS) else None

  return prepared(TextCorpus, config, read)


def _documents(source: Sequence[Mapping[str, bytes]]) -> Sequence[Document]:
  examples = source.__getitems__(list(range(len(source))))
  return [
    Document(example["name"].decode("utf-8", errors="surrogateescape"), example["text"])
    for example in examples
  ]
