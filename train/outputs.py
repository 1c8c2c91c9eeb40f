"""The files of a run. Everything appears whole or not at all."""

import contextlib
import errno
import fcntl
import json
import math
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import jax

from train.errors import FlagError, RunError

CONFIG = "config.json"
RESULT = "result.json"
METRICS = "metrics.jsonl"
TOKENIZER = "tokenizer.json"
MODEL = "model"
ENCODER = "encoder"
CHECKPOINTS = "checkpoints"
CHECKPOINT_NAME = re.compile(r"(\d{8,})(?:\.(\d+))?")  # its step, and which of that step
PLOTS = "plots"
PROFILE = "profile"
TENSORBOARD = "tensorboard"
LOCK = ".lock"
FILES = (CONFIG, RESULT, METRICS, TOKENIZER, LOCK)
FOLDERS = (MODEL, ENCODER, CHECKPOINTS, PLOTS, TENSORBOARD)
# What a system says of a place that takes no more; others it says of reading, too.
_REFUSALS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)


def run_of(path: Path) -> Path:
  """The folder of a run, from itself or from that of one of its checkpoints."""
  is_checkpoint = path.parent.name == CHECKPOINTS and CHECKPOINT_NAME.fullmatch(path.name)
  return path.parent.parent if is_checkpoint else path


def write_text(path: Path, text: str) -> None:
  """Writes a file under another name, then renames it into place.

  Raises:
    RunError: if it cannot be written; what was there before still is.
  """
  try:
    _write_text(path, text)
  except OSError as error:
    raise cannot_write(path, error.strerror) from error


def _write_text(path: Path, text: str) -> None:
  handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
  try:
    with os.fdopen(handle, "w", encoding="utf-8") as file:
      file.write(text)
      file.flush()
      os.fsync(file.fileno())  # the rename must not come before the content
    os.chmod(temporary, 0o644)  # noqa: PTH101 (mkstemp makes files that only the owner reads)
    Path(temporary).replace(path)
  except BaseException:
    Path(temporary).unlink(missing_ok=True)
    raise


def refusal(error: BaseException) -> str | None:
  """Why the system took no more of what was written; None: that was not what went wrong.

  Args:
    error: of the system, or of a library that quotes the system.
  """
  if isinstance(error, OSError):
    return error.strerror if error.errno in _REFUSALS else None
  reasons = (os.strerror(number) for number in _REFUSALS)
  return next((reason for reason in reasons if reason in str(error)), None)


@contextlib.contextmanager
def written(folder: Path) -> Iterator[None]:
  """Says in one line that a folder takes no more of what is written to it in the context.

  Args:
    folder: what the error names where the system does not name a file.

  Raises:
    RunError: in place of the system's error.
  """
  try:
    yield
  except OSError as error:
    reason = refusal(error)
    if reason is None:
      raise
    raise cannot_write(Path(error.filename or folder), reason) from error


def cannot_write(path: Path, reason: str) -> RunError:
  """The error of a place that takes no more.

  Args:
    path: the place.
    reason: what the system says of it.
  """
  return RunError(
    f"{path}: cannot be written ({reason}); nothing that was saved is lost: once that is mended,"
    " the same command goes on from there"
  )


def write_json(path: Path, value: Any) -> None:
  """Writes a JSON file atomically; numbers that are not finite become null."""
  write_text(path, json.dumps(finite(value), indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path) -> dict[str, Any] | None:
  """Reads a JSON object.

  Args:
    path: the file.

  Returns:
    The object, or None if there is no such file.

  Raises:
    RunError: if it cannot be read, or is not a JSON object.
  """
  try:
    value = json.loads(path.read_text(encoding="utf-8"))
  except (FileNotFoundError, NotADirectoryError):
    return None
  except OSError as error:
    raise RunError(
      f"{path}: cannot be read ({error.strerror}); restore it or choose another --workdir"
    ) from error
  except ValueError as error:
    raise RunError(
      f"{path}: not a JSON file ({error}); restore it or choose another --workdir"
    ) from error
  if not isinstance(value, dict):
    raise RunError(f"{path}: expected a JSON object; restore it or choose another --workdir")
  return value


def read_json_lines(path: Path) -> list[dict[str, Any]]:
  """The complete objects of a JSON-lines file; a line cut short by a crash is left out."""
  records = []
  try:
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
  except (FileNotFoundError, NotADirectoryError):
    return records
  for line in lines:
    try:
      record = json.loads(line)
    except ValueError:
      continue
    if isinstance(record, dict):
      records.append(record)
  return records


def write_json_lines(path: Path, records: Iterable[dict[str, Any]]) -> None:
  """Writes a JSON-lines file atomically."""
  write_text(path, "".join(json.dumps(finite(record)) + "\n" for record in records))


def make_workdir(workdir: Path, flag: str = "workdir") -> None:
  """Makes the folder of a run.

  Args:
    workdir: the folder.
    flag: the flag that named it.

  Raises:
    FlagError: if it is a file.
    RunError: if it cannot be made or written to.
  """
  if workdir.exists() and not workdir.is_dir():
    raise FlagError(f"--{flag}={workdir}: is a file, expected a folder")
  try:
    workdir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=workdir):
      pass
  except OSError as error:
    raise RunError(f"--{flag}={workdir}: cannot be written to ({error.strerror})") from error


def check_places(workdir: Path) -> None:
  """Looks whether everything that a run writes can take its place.

  Raises:
    RunError: if a folder is in the place of a file, or the other way round.
  """
  for names, expected, is_right in (
    (FILES, "file", Path.is_file),
    (FOLDERS, "folder", Path.is_dir),
  ):
    for name in names:
      path = workdir / name
      if path.exists() and not is_right(path):
        raise RunError(f"{path}: expected a {expected}, as a run writes it; move it away")


@contextlib.contextmanager
def held(workdir: Path) -> Iterator[None]:
  """Holds the folder of a run while it trains; with several hosts, the first one does.

  What a killed process has left half written goes first.

  Raises:
    RunError: if another process holds it.
  """
  if jax.process_index():
    yield
    return
  with (workdir / LOCK).open("a") as file:
    try:
      fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the system drops it when the process ends
    except BlockingIOError as error:
      raise RunError(
        f"--workdir={workdir}: another process trains there; wait for it, or use another folder"
      ) from error
    except OSError:  # a file system without locks
      pass
    _remove_remains(workdir)
    yield


def _remove_remains(workdir: Path) -> None:
  for name in (CONFIG, RESULT, METRICS, MODEL):  # those that only the holder writes
    for path in workdir.glob(f".{name}[.-]*"):
      if path.is_dir():
        shutil.rmtree(path)
      else:
        path.unlink()


def finite(value: Any) -> Any:
  """The value with None in place of every number that JSON does not have."""
  if isinstance(value, float):
    return value if math.isfinite(value) else None
  if isinstance(value, dict):
    return {name: finite(item) for name, item in value.items()}
  if isinstance(value, (list, tuple)):
    return [finite(item) for item in value]
  return value
