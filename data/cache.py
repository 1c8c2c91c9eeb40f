"""The folder of what is prepared once, and the lock that lets processes share it."""

import contextlib
import fcntl
import functools
import logging
import os
import pwd
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_log = logging.getLogger(__name__)


def cache_directory() -> Path:
  """`$TMEM_CACHE_DIR`, else `$XDG_CACHE_HOME/tmem`, else `~/.cache/tmem`.

  Raises:
    OSError: if this user has no home directory.
  """
  if directory := os.environ.get("TMEM_CACHE_DIR"):
    return Path(directory)
  if directory := os.environ.get("XDG_CACHE_HOME"):
    return Path(directory) / "tmem"
  home = os.environ.get("HOME")
  if not home:
    try:
      home = pwd.getpwuid(os.getuid()).pw_dir
    except KeyError as error:
      raise OSError("this user has no home directory") from error
  return Path(home) / ".cache" / "tmem"


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
  """Holds the lock of a file, waiting for the process that has it."""
  # The system drops the lock of a process that ends, however it ends.
  with path.open("a") as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    yield


def in_temporary_cache(problem: Any) -> Path:
  """A folder that is removed when the process ends, for where the cache cannot be used.

  Args:
    problem: why it cannot, for the warning.

  Raises:
    OSError: if no temporary folder can be made.
  """
  _log.warning(
    "cannot use the data cache (%s); using a temporary directory: set TMEM_CACHE_DIR to a"
    " directory that can be written",
    " ".join(str(problem).split()),
  )
  return Path(_temporary().name)


@functools.cache
def _temporary() -> tempfile.TemporaryDirectory:
  return tempfile.TemporaryDirectory(prefix="tmem-")
