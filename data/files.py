"""What data sets of files have in common: which files, which are for tests, which are no good."""

import logging
import os
import zlib
from collections.abc import Mapping, Set
from pathlib import Path

from data.errors import DatasetError

_log = logging.getLogger(__name__)

TEST_PERCENT = 10


def files_below(folder: Path, suffixes: Set[str]) -> list[Path]:
  """Files below a folder that end like one of `suffixes`, in order; links are followed."""
  found, seen = [], set()
  for parent, folders, names in os.walk(folder, followlinks=True):
    real = os.path.realpath(parent)
    if real in seen:  # a link to where it lies itself
      folders.clear()
      continue
    seen.add(real)
    found += [Path(parent, name) for name in names if Path(name).suffix.lower() in suffixes]
  return sorted(path for path in found if path.is_file())


def is_for_tests(name: str) -> bool:
  """Whether a file is one of the tenth for tests: by its name, whatever other files there are."""
  return zlib.crc32(name.encode()) % 100 < TEST_PERCENT


def warn_of_skipped(kind: str, problems: Mapping[int, str], total: int) -> None:
  """Warns of files that cannot be read: how many, and why the first cannot.

  Args:
    kind: what they are, in the plural.
    problems: by index, why it cannot be read.
    total: how many files there are.

  Raises:
    DatasetError: if none can be read.
  """
  if not problems:
    return
  first = next(iter(problems.values()))
  if len(problems) == total:
    raise DatasetError(f"none of {total} {kind} can be read; the first: {first}")
  _log.warning("skipped %d of %d %s; the first: %s", len(problems), total, kind, first)
