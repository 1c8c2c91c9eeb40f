"""Byte-, character- and word-level tokenizers: plain values that are saved with a run."""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

EOS = "<eos>"
UNKNOWN = "<unk>"


class Tokenizer(Protocol):
  """What every tokenizer can do; token ids are int32 in [0, vocab_size)."""

  @property
  def vocab_size(self) -> int:
    """Number of token ids."""
    ...

  def encode(self, text: str) -> np.ndarray:
    """Turns text into int32 ids, [tokens]."""
    ...

  def encode_bytes(self, data: bytes) -> np.ndarray:
    """Turns UTF-8 text into int32 ids, [tokens]."""
    ...

  def decode(self, ids: Iterable[int]) -> str:
    """Turns ids back into text."""
    ...

  def to_dict(self) -> dict[str, Any]:
    """A JSON-able description for `tokenizer_from_dict`."""
    ...


@dataclasses.dataclass(frozen=True)
class ByteTokenizer:
  """The 256 bytes of UTF-8 text; it knows every text and loses nothing."""

  @property
  def vocab_size(self) -> int:
    """256, whatever the text."""
    return 256

  def encode(self, text: str) -> np.ndarray:
    """Turns text into the int32 values of its UTF-8 bytes, [bytes].

    Bytes of the command line that are not UTF-8 reach Python as lone surrogates; they are
    turned back into those bytes.
    """
    return self.encode_bytes(text.encode("utf-8", errors="surrogateescape"))

  def encode_bytes(self, data: bytes) -> np.ndarray:
    """Turns bytes, valid UTF-8 or not, into int32 ids, [bytes]."""
    return np.frombuffer(data, dtype=np.uint8).astype(np.int32)

  def decode(self, ids: Iterable[int]) -> str:
    """Turns ids into text; bytes that are not UTF-8 become U+FFFD.

    Raises:
      ValueError: if an id is outside [0, 256).
    """
    return bytes(_checked(ids, self.vocab_size).tolist()).decode("utf-8", errors="replace")

  def to_dict(self) -> dict[str, Any]:
    """A JSON-able description for `tokenizer_from_dict`."""
    return {"kind": "byte"}


@dataclasses.dataclass(frozen=True)
class CharTokenizer:
  """One id per Unicode character of a corpus, in code-point order.

  Attributes:
    characters: the characters, each once; the position is the id.
  """

  characters: str

  @classmethod
  def from_text(cls, texts: Iterable[str]) -> CharTokenizer:
    """Collects the characters of `texts`."""
    seen: set[str] = set()
    for text in texts:
      seen.update(text)
    return cls("".join(sorted(seen)))

  @property
  def vocab_size(self) -> int:
    """Number of different characters."""
    return len(self.characters)

  @functools.cached_property
  def _id_of_code_point(self) -> np.ndarray:
    code_points = _code_points(self.characters)
    table = np.full(int(code_points.max(initial=-1)) + 1, -1, np.int32)
    table[code_points] = np.arange(code_points.size, dtype=np.int32)
    return table

  def encode(self, text: str) -> np.ndarray:
    """Turns text into int32 ids, [characters].

    Raises:
      ValueError: if a character is not among `characters`.
    """
    points = _code_points(text)
    table = self._id_of_code_point
    known = points < table.size
    ids = np.full(points.shape, -1, np.int32)
    ids[known] = table[points[known]]
    if ids.size and ids.min() < 0:
      character = text[int(np.argmin(ids))]
      raise ValueError(
        f"character {character!r} (U+{ord(character):04X}) is not among the {self.vocab_size}"
        " characters of the corpus; leave it out, or train with --tokenizer=byte, which knows"
        " every text"
      )
    return ids

  def encode_bytes(self, data: bytes) -> np.ndarray:
    """Turns UTF-8 bytes into int32 ids, [characters]; raises as `encode` does."""
    return self.encode(data.decode("utf-8"))

  def decode(self, ids: Iterable[int]) -> str:
    """Turns ids into text.

    Raises:
      ValueError: if an id is outside [0, vocab_size).
    """
    return "".join([self.characters[i] for i in _checked(ids, self.vocab_size).tolist()])

  def to_dict(self) -> dict[str, Any]:
    """A JSON-able description for `tokenizer_from_dict`."""
    return {"kind": "char", "characters": self.characters}


@dataclasses.dataclass(frozen=True)
class WordTokenizer:
  """Words between whitespace, and one `<eos>` for each end of line.

  This is the usual word-level reading of WikiText: no case folding, no minimum count, every
  type gets an id, in order of first appearance. Text in which words are not parted by single
  spaces comes back from `decode` with single spaces.

  Attributes:
    words: the types, each once; the position is the id.
    line_ends: whether an end of line is a token, `<eos>`; else it is whitespace.
  """

  words: tuple[str, ...]
  line_ends: bool = True

  @classmethod
  def from_text(cls, texts: Iterable[str]) -> WordTokenizer:
    """Collects the words of `texts`; `<eos>` is always one of them."""
    seen: dict[str, None] = {}
    for text in texts:
      seen.update(dict.fromkeys(_split_words(text)))
    seen.setdefault(EOS)
    return cls(tuple(seen))

  @classmethod
  def most_frequent(cls, text: str, size: int) -> WordTokenizer:
    """The most frequent words of a text, and `<unk>` for all others; ends of lines are no tokens.

    Args:
      text: the text.
      size: words at most, `<unk>` included.

    Returns:
      The tokenizer, the most frequent word first; of equally frequent ones that which comes first.
    """
    counts = collections.Counter(text.split())
    unknown = counts.pop(UNKNOWN, 0)
    words = [word for word, _ in counts.most_common(size - 1)]
    place = sum(counts[word] >= unknown for word in words)
    return cls((*words[:place], UNKNOWN, *words[place:]), line_ends=False)

  @property
  def vocab_size(self) -> int:
    """Number of types."""
    return len(self.words)

  @functools.cached_property
  def _id_of_word(self) -> Mapping[str, int]:
    return {word: i for i, word in enumerate(self.words)}

  def encode(self, text: str) -> np.ndarray:
    """Turns text into int32 ids, [words + line ends].

    A text without a line end at its end gets no `<eos>` there, so that a prompt can be
    continued within its line; without `line_ends` there is none at all. A word outside the
    vocabulary becomes `<unk>` where the vocabulary has it.

    Raises:
      ValueError: if a word is unknown and the vocabulary has no `<unk>`.
    """
    table = self._id_of_word
    words = _split_words(text) if self.line_ends else text.split()
    unknown = table.get(UNKNOWN, -1)
    ids = np.fromiter((table.get(word, unknown) for word in words), np.int32, len(words))
    if unknown < 0 and ids.size and ids.min() < 0:
      word = words[int(np.argmin(ids))]
      raise ValueError(
        f"word {word!r} is not among the {self.vocab_size} words of the corpus, which has no"
        f" {UNKNOWN}; leave it out, or train with --tokenizer=byte, which knows every text"
      )
    return ids

  def encode_bytes(self, data: bytes) -> np.ndarray:
    """Turns UTF-8 bytes into int32 ids, [words + line ends]; raises as `encode` does."""
    return self.encode(data.decode("utf-8"))

  def decode(self, ids: Iterable[int]) -> str:
    """Turns ids into words parted by spaces, `<eos>` into an end of line.

    Raises:
      ValueError: if an id is outside [0, vocab_size).
    """
    words = [self.words[i] for i in _checked(ids, self.vocab_size).tolist()]
    lines: list[list[str]] = [[]]
    for word in words:
      if word == EOS and self.line_ends:
        lines.append([])
      else:
        lines[-1].append(word)
    return "\n".join(" ".join(line) for line in lines)

  def to_dict(self) -> dict[str, Any]:
    """A JSON-able description for `tokenizer_from_dict`."""
    description = {"kind": "word", "words": list(self.words)}
    return description if self.line_ends else description | {"line_ends": False}


def make_tokenizer(kind: str, texts: Sequence[str]) -> Tokenizer:
  """Builds a tokenizer whose vocabulary covers `texts`.

  Args:
    kind: "byte", "char" or "word".
    texts: the texts of all splits. Held-out text counts too, as is usual for these corpora:
      every token then has a probability, and losses need no rule for words never seen.

  Returns:
    The tokenizer.

  Raises:
    ValueError: if `kind` is another word.
  """
  if kind == "byte":
    return ByteTokenizer()
  if kind == "char":
    return CharTokenizer.from_text(texts)
  if kind == "word":
    return WordTokenizer.from_text(texts)
  raise ValueError(f"tokenizer: got {kind!r}, expected one of byte, char, word")


def tokenizer_from_dict(description: Mapping[str, Any]) -> Tokenizer:
  """Rebuilds a tokenizer from what its `to_dict` gave.

  Raises:
    ValueError: if the description is of no known kind, or lacks its characters or words.
  """
  kind = description.get("kind")
  if kind == "byte":
    return ByteTokenizer()
  if kind == "char":
    characters = description.get("characters")
    if not isinstance(characters, str) or len(set(characters)) < len(characters):
      raise ValueError("tokenizer characters: expected a string of different characters")
    return CharTokenizer(characters)
  if kind == "word":
    words = description.get("words")
    is_list = isinstance(words, list) and all(isinstance(word, str) for word in words)
    if not is_list or len(set(words)) < len(words):
      raise ValueError("tokenizer words: expected a list of different strings")
    return WordTokenizer(tuple(words), line_ends=description.get("line_ends", True))
  raise ValueError(f"tokenizer kind: got {kind!r}, expected one of byte, char, word")


def _code_points(text: str) -> np.ndarray:
  return np.frombuffer(text.encode("utf-32-le", errors="surrogatepass"), "<i4")


def _split_words(text: str) -> list[str]:
  # Only "\n" ends a line: other separators (U+2028, U+0085) are whitespace within one.
  words: list[str] = []
  lines = text.split("\n")
  for line in lines[:-1]:
    words.extend(line.split())
    words.append(EOS)
  words.extend(lines[-1].split())
  return words


def _checked(ids: Iterable[int], vocab_size: int) -> np.ndarray:
  values = np.asarray(list(ids) if not isinstance(ids, np.ndarray) else ids).reshape(-1)
  if values.size and (values.min() < 0 or values.max() >= vocab_size):
    wrong = int(values[(values < 0) | (values >= vocab_size)][0])
    raise ValueError(f"ids: got the id {wrong}, expected ids in [0, {vocab_size})")
  return values.astype(np.int64)
