"""The folder of what is prepared once, and the lock that lets processes share it."""

import contextlib
import fcntl
import os
import pwd
from collections.abc import Iterator
from pathlib import Path


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
