"""The files of a run. Everything appears whole or not at all."""

import contextlib
import fcntl
import json
import math
import os
import re
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


def run_of(path: Path) -> Path:
  """The folder of a run, from itself or from that of one of its checkpoints."""
  is_checkpoint = path.parent.name == CHECKPOINTS and CHECKPOINT_NAME.fullmatch(path.name)
  return path.parent.parent if is_checkpoint else path


def write_text(path: Path, text: str) -> None:
  """Writes a file under another name, then renames it into place."""
  handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
  try:
    with os.fdopen(handle, "w", encoding="utf-8") as file:
      file.write(text)
    os.chmod(temporary, 0o644)  # noqa: PTH101 (mkstemp makes files that only the owner reads)
    Path(temporary).replace(path)
  except BaseException:
    Path(temporary).unlink(missing_ok=True)
    raise


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
    RunError: if it is not a JSON object.
  """
  try:
    value = json.loads(path.read_text(encoding="utf-8"))
  except (FileNotFoundError, NotADirectoryError):
    return None
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


@contextlib.contextmanager
def held(workdir: Path) -> Iterator[None]:
  """Holds the folder of a run while it trains; with several hosts, the first one does.

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
    yield


def finite(value: Any) -> Any:
  """The value with None in place of every number that JSON does not have."""
  if isinstance(value, float):
    return value if math.isfinite(value) else None
  if isinstance(value, dict):
    return {name: finite(item) for name, item in value.items()}
  if isinstance(value, (list, tuple)):
    return [finite(item) for item in value]
  return value
