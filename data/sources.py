"""Finds and reads the corpora: where each lies, what it consists of, how it is split.

Files that the system does not let one read raise its `OSError`.
"""

from __future__ import annotations

import io
import itertools
import logging
import re
import sysconfig
import tokenize
import zipfile
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from data.documents import (
  SPLITS,
  Document,
  Splits,
  normalise,
  split_by_name,
  split_by_position,
  split_by_size,
)
from data.errors import DatasetError

_log = logging.getLogger(__name__)

_NO_STDLIB_TEXT = frozenset(
  {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
)
_WIKITEXT_FILES = {split: f"wiki.{split}.tokens" for split in SPLITS}
_ARTICLE = re.compile(rb"^ = [^=\n].*[^=\n] = $", re.MULTILINE)


def read_stdlib(root: Path | None = None) -> Splits:
  """Reads the sources of the running Python's standard library, tests left out.

  A file goes to train, valid or test by the hash of its relative path, so that a module is in
  the same split on every Python. Sources that declare another encoding become UTF-8.

  Args:
    root: the directory of the standard library; that of the running Python by default.

  Raises:
    DatasetError: if the directory has too few `.py` files.
  """
  root = Path(sysconfig.get_path("stdlib")) if root is None else root
  documents = list(_stdlib_documents(root))
  splits = split_by_name(documents, held_out_percent=2)
  if not all(splits.values()):
    raise DatasetError(
      f"{root}: only {len(documents)} Python source files of the standard library; install a"
      " Python that comes with its sources, or train on your own text with --dataset=text"
      " --data_path=FILE_OR_DIR"
    )
  return splits


def read_tiny_shakespeare(data_dir: str | Path | None) -> Splits:
  """Reads `tiny_shakespeare/input.txt`, split 90/5/5 by position.

  Raises:
    DatasetError: if the file is missing or has no text.
  """
  path = _expected(
    data_dir,
    "tiny_shakespeare/input.txt",
    "tiny_shakespeare",
    "download input.txt (data/tinyshakespeare of https://github.com/karpathy/char-rnn)",
  )
  return _split_one(path, _read_text(path, path.name))


def read_shakespeare(data_dir: str | Path | None) -> Splits:
  """Reads the plays and poems `shakespeare/text/*.txt`, split by file.

  Raises:
    DatasetError: if the directory is missing or has too few texts.
  """
  directory = _expected(
    data_dir,
    "shakespeare/text",
    "shakespeare",
    "download the complete set of TXT files of the Folger Shakespeare"
    " (https://www.folger.edu/explore/shakespeares-works/download/) and unpack it",
  )
  paths = sorted(directory.glob("*.txt")) if directory.is_dir() else []
  splits = split_by_size([_read_text(path, path.name) for path in paths])
  if splits is None:
    raise DatasetError(
      f"{directory}: {len(paths)} text files (*.txt), too few to split by file; expected the 42"
      " TXT files of the Folger Shakespeare there"
    )
  return splits


def read_wikitext2(data_dir: str | Path | None) -> Splits:
  """Reads WikiText-2 (word level) in its own splits, one document per article.

  Takes the unpacked `wikitext-2/wiki.{train,valid,test}.tokens` if all are there, else
  `wikitext-2-v1.zip`.

  Raises:
    DatasetError: if neither is there, or the zip file is damaged or another one.
  """
  if data_dir is not None:
    paths = {split: Path(data_dir) / "wikitext-2" / name for split, name in _WIKITEXT_FILES.items()}
    if all(path.is_file() for path in paths.values()):
      return {split: _articles(_read_text(path, path.name)) for split, path in paths.items()}
  path = _expected(
    data_dir,
    "wikitext-2-v1.zip",
    "wikitext2",
    "download wikitext-2-v1.zip (WikiText-2, word level, of Salesforce Research;"
    " https://huggingface.co/datasets/Salesforce/wikitext names the sources; its"
    " unpacked folder wikitext-2 serves as well)",
  )
  return {split: _articles(document) for split, document in _read_wikitext_zip(path).items()}


def read_text(data_path: str | Path | None) -> Splits:
  """Reads one text file, or all text files below a directory.

  Hidden files and directories, empty files and binary files (with a NUL byte) of a directory
  are passed over. Three or more files are split by file where that holds out enough text;
  otherwise the text, files in the order of their names, is split 90/5/5 by position.

  Raises:
    DatasetError: if there is no such path, or no text in it.
  """
  if not data_path:
    raise DatasetError(
      "text: --data_path is not set; set it to a text file or a directory of text files"
    )
  path = _path(data_path)
  if path.is_dir():
    documents = _directory_documents(path)
    splits = split_by_size(documents)
    if splits is not None:
      return splits
    return _split_one(path, Document(path.name, b"".join(d.text for d in documents)))
  if not path.exists():
    raise DatasetError(
      f"{path}: no such file or directory; set --data_path to a text file or a directory of them"
    )
  return _split_one(path, _read_text(path, path.name))


def _stdlib_documents(root: Path) -> Iterator[Document]:
  for path in sorted(root.rglob("*.py")):
    relative = path.relative_to(root)
    # _sysconfigdata* records how this one Python was built.
    if _NO_STDLIB_TEXT.isdisjoint(relative.parts) and not path.name.startswith("_sysconfigdata"):
      text = _python_source(path)
      if text:
        yield Document(relative.as_posix(), text)


def _python_source(path: Path) -> bytes | None:
  try:
    data = path.read_bytes()
    encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
    text = data.decode(encoding)
  except (OSError, SyntaxError, UnicodeDecodeError):  # no source that Python could run either
    return None
  return None if "\0" in text else normalise(text.encode("utf-8"))


def _directory_documents(directory: Path) -> Sequence[Document]:
  documents, binary = [], []
  for path in sorted(directory.rglob("*")):
    relative = path.relative_to(directory)
    if not path.is_file() or any(part.startswith(".") for part in relative.parts):
      continue
    data = path.read_bytes()
    if b"\0" in data:
      binary.append(path)
    elif data.strip():
      documents.append(Document(relative.as_posix(), normalise(data)))
  if not documents:
    raise DatasetError(
      f"{directory}: no text files in this directory; set --data_path to a text file or a"
      " directory of UTF-8 text files"
    )
  if binary:
    _log.warning("%s: left out %d binary files, the first is %s", directory, len(binary), binary[0])
  return documents


def _split_one(path: Path, document: Document) -> Splits:
  splits = split_by_position(document)
  if not all(split[0].text for split in splits.values()):
    raise DatasetError(
      f"{path}: only {len(document.text)} bytes of text, too few to split into train, valid and"
      " test; expected some thousands at least"
    )
  return splits


def _read_text(path: Path, name: str) -> Document:
  if not path.is_file():
    raise DatasetError(f"{path}: not a file; expected a text file")
  return Document(name, _checked_text(path.read_bytes(), path))


def _checked_text(data: bytes, origin: Path | str) -> bytes:
  if not data.strip():
    raise DatasetError(f"{origin}: the file is empty; expected UTF-8 text")
  if b"\0" in data:
    raise DatasetError(
      f"{origin}: a binary file or UTF-16 text (it has a NUL byte at {data.index(0)}); expected"
      " text in UTF-8"
    )
  return normalise(data)


def _path(given: str | Path) -> Path:
  # The shell leaves the ~ of --flag=~/directory as it is.
  try:
    return Path(given).expanduser()
  except RuntimeError:  # nobody's home
    return Path(given)


def _expected(data_dir: str | Path | None, relative: str, dataset: str, source: str) -> Path:
  place = _path(data_dir or "DATA_DIR") / relative
  if data_dir and place.exists():
    return place
  found = f"{place} not found" if data_dir else "neither --data_dir nor $TMEM_DATA_DIR is set"
  raise DatasetError(
    f"{dataset}: {found}; {source}, put it at {place} and set --data_dir={data_dir or 'DATA_DIR'}"
    " (or $TMEM_DATA_DIR)"
  )


def _read_wikitext_zip(path: Path) -> Mapping[str, Document]:
  contents = _zip_contents(path, _WIKITEXT_FILES.values())
  missing = [name for name in _WIKITEXT_FILES.values() if name not in contents]
  if missing:
    raise DatasetError(
      f"{path}: has no {', '.join(missing)}; expected the official wikitext-2-v1.zip (word level),"
      " with wikitext-2/wiki.{train,valid,test}.tokens"
    )
  return {
    split: Document(name, _checked_text(contents[name], f"{path}: {name}"))
    for split, name in _WIKITEXT_FILES.items()
  }


def _zip_contents(path: Path, names: Collection[str]) -> Mapping[str, bytes]:
  data = path.read_bytes()  # first, so that errors below are of the content, not of the file
  try:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
      members = {Path(member).name: member for member in archive.namelist()}
      return {name: archive.read(members[name]) for name in names if name in members}
  except (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, ValueError) as error:
    reason = " ".join(str(error).split()) or type(error).__name__
    raise DatasetError(
      f"{path}: not a whole zip file ({reason}); download {path.name} again"
    ) from error


def _articles(document: Document) -> Sequence[Document]:
  # An article begins at its title, and the blank line before the first belongs to it.
  starts = [match.start() for match in _ARTICLE.finditer(document.text)]
  bounds = [0, *starts[1:], len(document.text)]
  return [
    Document(f"{document.name}/{i:04d}", document.text[begin:end])
    for i, (begin, end) in enumerate(itertools.pairwise(bounds))
  ]
