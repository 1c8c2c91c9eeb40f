"""A text file of any length as tokens, a piece at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from data.errors import DatasetError
from data.tokenizers import Tokenizer

CHARACTERS = 2**16  # read at once
LONGEST_WORD = 2**16


def read_tokens(path: str | Path, tokenizer: Tokenizer) -> Iterator[tuple[np.ndarray, int]]:
  """Reads a file piece by piece; what it holds in memory does not depend on the file's length.

  Line ends become single line feeds and a byte-order mark goes, as in a corpus.

  Args:
    path: a text file.
    tokenizer: what turns its text into ids.

  Yields:
    `(ids, size)`: int32 ids, and the bytes of text that they stand for.

  Raises:
    DatasetError: if the file cannot be read, has no tokens, is not UTF-8 where the tokenizer needs
      characters, or holds what the tokenizer does not know.
  """
  kind = tokenizer.to_dict()["kind"]
  found = False
  try:
    for text in _pieces(Path(path), "latin-1" if kind == "byte" else "utf-8-sig", kind == "word"):
      content = text.encode("latin-1" if kind == "byte" else "utf-8")
      ids = tokenizer.encode_bytes(content)
      found = found or ids.size > 0
      yield ids, len(content)
  except OSError as error:
    raise DatasetError(
      f"{path}: cannot be read ({error.strerror}); expected a text file"
    ) from error
  except UnicodeDecodeError as error:
    wrong = error.object[error.start]
    raise DatasetError(
      f"{path}: not UTF-8 (byte 0x{wrong:02x}); save it as UTF-8, or use a model of bytes"
    ) from error
  except ValueError as error:
    raise DatasetError(f"{path}: {error}") from error
  if not found:
    raise DatasetError(f"{path}: has no tokens, expected some text")


def _pieces(path: Path, encoding: str, of_words: bool) -> Iterator[str]:
  """The file's text; pieces of words end between two of them."""
  rest, first = "", True
  with path.open(encoding=encoding, newline=None) as file:
    while text := file.read(CHARACTERS):
      if first and encoding == "latin-1":
        text = text.removeprefix("\xef\xbb\xbf")
      first, rest = False, rest + text
      if of_words:
        cut = max(rest.rfind(" "), rest.rfind("\n")) + 1
        if not cut and len(rest) > LONGEST_WORD:
          raise ValueError(f"a word of more than {LONGEST_WORD} characters; expected a text file")
      else:
        cut = len(rest)
      yield rest[:cut]
      rest = rest[cut:]
  yield rest
