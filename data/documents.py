"""Documents of a corpus and the rules that share them out among train, valid and test."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

SPLITS = ("train", "valid", "test")

# Held-out splits get at least this share of the bytes, or the files are too few to split by.
_HELD_OUT_SHARE = 0.05
_LEAST_SHARE = 0.02


class Document(NamedTuple):
  """One text of a corpus.

  Attributes:
    name: the file it comes from, relative to the corpus, with "/" between parts.
    text: its bytes, UTF-8 unless the source is not, lines ended by a line feed.
  """

  name: str
  text: bytes


Splits = Mapping[str, Sequence[Document]]


def normalise(text: bytes) -> bytes:
  r"""Makes the text independent of the system that wrote it.

  Windows and old Macintosh line ends become "\n", a UTF-8 byte-order mark at the start goes, and
  a missing line end at the end is added, so that the next document starts on its own line.
  """
  text = text.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").replace(b"\r", b"\n")
  return text if not text or text.endswith(b"\n") else text + b"\n"


def fingerprint(splits: Splits) -> str:
  """A digest of names, texts, their order and their splits: 32 hexadecimal digits."""
  digest = hashlib.sha256()
  for split in SPLITS:
    digest.update(f"{split} {len(splits[split])}\n".encode())
    for document in splits[split]:
      # The lengths keep two different divisions of the same bytes apart.
      name = document.name.encode("utf-8", errors="surrogateescape")
      digest.update(f"{len(name)} {len(document.text)}\n".encode())
      digest.update(name)
      digest.update(document.text)
  return digest.hexdigest()[:32]


def split_by_name(documents: Sequence[Document], held_out_percent: int) -> Splits:
  """Puts each document where the hash of its name says, whatever else there is.

  Args:
    documents: any number of them; many, for the shares to come out about right.
    held_out_percent: share of the names for valid, and as much for test.

  Returns:
    The splits; a document keeps its split when others come or go.
  """
  splits: dict[str, list[Document]] = {split: [] for split in SPLITS}
  for document in documents:
    percentile = int.from_bytes(_name_hash(document)[:8], "big") % 100
    if percentile >= 100 - held_out_percent:
      splits["test"].append(document)
    elif percentile >= 100 - 2 * held_out_percent:
      splits["valid"].append(document)
    else:
      splits["train"].append(document)
  return splits


def split_by_size(documents: Sequence[Document]) -> Splits | None:
  """Holds out whole documents for valid and test, about 5 % of the bytes each.

  Documents are drawn in the order of the hashes of their names, the largest excepted, which
  always stays in train.

  Returns:
    The splits, documents in the given order within each; or None if there are fewer than three
    documents, or the held-out ones would be under 2 % of the bytes.
  """
  if len(documents) < len(SPLITS):
    return None
  total = sum(len(document.text) for document in documents)
  largest = max(documents, key=lambda document: len(document.text))
  drawn = sorted((d for d in documents if d is not largest), key=_name_hash)
  split_of = dict.fromkeys((document.name for document in documents), "train")
  for split in ("test", "valid"):
    size = 0
    # The last one left is for valid.
    while len(drawn) > (split == "test") and size < _HELD_OUT_SHARE * total:
      document = drawn.pop(0)
      split_of[document.name] = split
      size += len(document.text)
    if size < _LEAST_SHARE * total:
      return None
  return {
    split: [document for document in documents if split_of[document.name] == split]
    for split in SPLITS
  }


def split_by_position(document: Document) -> Splits:
  """Cuts one text into its first 90 %, the next 5 % and the last 5 %.

  Cuts move forward to the next character where they would fall within one of UTF-8.
  """
  text = document.text
  first, second = (_character_start(text, int(len(text) * share)) for share in (0.9, 0.95))
  parts = (text[:first], text[first:second], text[second:])
  return {split: [Document(document.name, part)] for split, part in zip(SPLITS, parts, strict=True)}


def _character_start(text: bytes, position: int) -> int:
  # At most three bytes continue a UTF-8 character; more than that is not UTF-8.
  for step in range(4):
    if position + step >= len(text) or text[position + step] & 0xC0 != 0x80:
      return min(position + step, len(text))
  return position


def _name_hash(document: Document) -> bytes:
  return hashlib.sha256(document.name.encode("utf-8", errors="surrogateescape")).digest()
