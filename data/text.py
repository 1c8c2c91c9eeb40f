"""Text corpora as arrays of token ids, in train, valid and test splits."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from data import sources
from data.documents import SPLITS, Document, Splits
from data.errors import DatasetError
from data.text_builder import cached_documents
from data.tokenizers import Tokenizer, WordTokenizer, make_tokenizer, tokenizer_from_dict

__all__ = ["DATASETS", "TOKENIZERS", "Corpus", "Tokenizer", "load_corpus", "tokenizer_from_dict"]

# Every data set with the tokenizer it is usually read with.
DATASETS: Mapping[str, str] = {
  "stdlib": "byte",
  "tiny_shakespeare": "char",
  "shakespeare": "byte",
  "wikitext2": "word",
  "text": "byte",
}
TOKENIZERS = ("byte", "char", "word")
# "reference" is the reading of the code of arXiv 2605.27686, whose losses are on another scale: the
# 30,000 most frequent words of the training text, no token for an end of line.
VOCABULARIES = ("standard", "reference")
REFERENCE_WORDS = 30_000


@dataclasses.dataclass(frozen=True, eq=False)
class Corpus:
  """A corpus, tokenized.

  Attributes:
    name: name of the data set.
    tokenizer: what turned text into ids, and turns them back.
    train: [tokens] int32 ids, the documents of the split one after the other.
    valid: the same for validation.
    test: the same for the final test.
    split_bytes: bytes of text in each split.
    document_starts: by split, [documents] int64, the places of the first token of each.
  """

  name: str
  tokenizer: Tokenizer
  train: np.ndarray
  valid: np.ndarray
  test: np.ndarray
  split_bytes: Mapping[str, int]
  document_starts: Mapping[str, np.ndarray]

  def borders(self, split: str) -> np.ndarray:
    """[tokens] bool, True on the first token of each document of a split."""
    borders = np.zeros(getattr(self, split).size, bool)
    borders[self.document_starts[split]] = True
    return borders

  @property
  def vocab_size(self) -> int:
    """Number of token ids."""
    return self.tokenizer.vocab_size

  def bytes_per_token(self, split: str) -> float:
    """Average bytes of text per token of a split.

    With it, `nats_per_token / ln 2 / bytes_per_token` are bits per byte, which can be compared
    between tokenizers.

    Args:
      split: "train", "valid" or "test".

    Raises:
      ValueError: if there is no such split.
    """
    if split not in SPLITS:
      raise ValueError(f"split: got {split!r}, expected one of {', '.join(SPLITS)}")
    return self.split_bytes[split] / getattr(self, split).size


def load_corpus(
  name: str,
  data_dir: str | Path | None = None,
  data_path: str | Path | None = None,
  tokenizer: str | None = None,
  vocabulary: str = "standard",
) -> Corpus:
  """Finds, prepares and tokenizes a corpus.

  Line ends become single line feeds, a byte-order mark goes, and every document ends with a
  line end; bytes are counted after that.

  Args:
    name: a data set of `DATASETS`.
    data_dir: where downloaded data sets lie; "stdlib" and "text" do not need it.
    data_path: for "text" only, a text file or a directory of text files.
    tokenizer: "byte", "char" or "word"; None for the usual one of the data set.
    vocabulary: "standard", which covers the text, or for words "reference".

  Returns:
    The corpus.

  Raises:
    DatasetError: if the data set is missing or damaged, or a name is unknown.
  """
  if name not in DATASETS:
    raise DatasetError(f"--dataset: got {name!r}, expected one of {', '.join(DATASETS)}")
  if tokenizer is not None and tokenizer not in TOKENIZERS:
    raise DatasetError(f"--tokenizer: got {tokenizer!r}, expected one of {', '.join(TOKENIZERS)}")
  kind = tokenizer or DATASETS[name]
  if vocabulary not in VOCABULARIES:
    expected = ", ".join(VOCABULARIES)
    raise DatasetError(f"--vocabulary: got {vocabulary!r}, expected one of {expected}")
  if vocabulary == "reference" and kind != "word":
    raise DatasetError(
      f"--vocabulary=reference: of words, and the tokens of --dataset={name} are of {kind}s; use"
      " --tokenizer=word"
    )
  if data_path and name != "text":
    raise DatasetError(f"--data_path: is for --dataset=text, not for --dataset={name}")
  try:
    found = _read_documents(name, data_dir, data_path)
  except OSError as error:
    raise DatasetError(
      f"{error.filename}: cannot be read ({error.strerror}); expected a readable text file"
    ) from error
  documents = cached_documents(name, found)
  texts = {split: b"".join(d.text for d in documents[split]) for split in SPLITS}
  if kind != "byte":
    _check_utf8(name, documents)
  if vocabulary == "reference":
    built = WordTokenizer.most_frequent(texts["train"].decode("utf-8"), REFERENCE_WORDS)
  else:
    built = make_tokenizer(
      kind, [] if kind == "byte" else [text.decode("utf-8") for text in texts.values()]
    )
  encoded = {split: [built.encode_bytes(d.text) for d in documents[split]] for split in SPLITS}
  sizes = {split: [tokens.size for tokens in encoded[split]] for split in SPLITS}
  return Corpus(
    name=name,
    tokenizer=built,
    split_bytes={split: len(text) for split, text in texts.items()},
    document_starts={split: _starts(sizes[split]) for split in SPLITS},
    **{split: np.concatenate([np.zeros(0, np.int32), *encoded[split]]) for split in SPLITS},
  )


def _starts(sizes: Sequence[int]) -> np.ndarray:
  """Where documents of these sizes start, one behind the other; those without tokens left out."""
  sizes = np.asarray(sizes, np.int64)
  return (np.cumsum(sizes) - sizes)[sizes > 0]


def _read_documents(name: str, data_dir: str | Path | None, data_path: str | Path | None) -> Splits:
  if name == "stdlib":
    return sources.read_stdlib()
  if name == "text":
    return sources.read_text(data_path)
  read = {
    "tiny_shakespeare": sources.read_tiny_shakespeare,
    "shakespeare": sources.read_shakespeare,
    "wikitext2": sources.read_wikitext2,
  }[name]
  return read(data_dir)


def _check_utf8(name: str, documents: Mapping[str, Sequence[Document]]) -> None:
  for split in SPLITS:
    for document in documents[split]:
      try:
        document.text.decode("utf-8")
      except UnicodeDecodeError as error:
        wrong = document.text[error.start]
        raise DatasetError(
          f"{name}: {document.name} is not UTF-8 (byte 0x{wrong:02x}); save it as UTF-8, or read"
          " it with --tokenizer=byte"
        ) from error
