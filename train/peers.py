"""What the processes of a run tell each other; with one process, what it tells itself."""

import hashlib
import itertools
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from train.endings import Endings
from train.errors import RunError
from train.store import Store

_ROOT = Path(__file__).resolve().parent.parent
_PACKAGES = ("tmem", "data", "train")


class Peers:
  """The processes of a run. All have to make the same calls in the same order.

  Args:
    store: what all of them see; None: there is one.
    endings: how they end together; None: there is one.
  """

  def __init__(self, store: Store | None = None, endings: Endings | None = None):
    self._store, self.endings = store, endings
    self._calls = itertools.count()

  def first_says(self, value: Any) -> Any:
    """What process 0 says, for all.

    Args:
      value: a JSON value, of process 0; those of the others do not matter.

    Returns:
      That of process 0.
    """
    if self._store is None:
      return value
    key = f"said/{next(self._calls)}"
    if self._store.index == 0:
      self._store.claim(key, value)
      return value
    return self._store.wait(key)

  def first_problem(self, problem: str | None) -> str | None:
    """A problem that some process has, the first one's; None if none has any."""
    found = [other for other in self._gather(problem) or () if other is not None]
    return self.first_says(found[0] if found else None)

  def check_same(self, found: Mapping[str, Any], remedy: str, error: type[RunError]) -> None:
    """Ends all processes unless they have found the same.

    Args:
      found: JSON values by name; a name leads to values by name again, as deep as may be.
      remedy: what would be right, for the message.
      error: of the message.

    Raises:
      RunError: in process 0, naming what differs and which process has what.
    """
    everyone = self._gather(_flat(found))
    for index, other in enumerate(everyone or ()):
      for name in sorted(everyone[0].keys() | other.keys()):
        ours, theirs = (_shown(of.get(name)) for of in (everyone[0], other))
        if ours != theirs:
          raise error(f"{name}: process 0 has {ours}, process {index} has {theirs}; {remedy}")
    self.first_says(None)  # the others wait for the verdict

  def _gather(self, value: Any) -> list[Any] | None:
    """The values of all processes, by index; None in all processes but the first."""
    if self._store is None:
      return [value]
    call = next(self._calls)
    self._store.claim(f"from/{call}/{self._store.index}", value)
    if self._store.index:
      return None
    return [self._store.wait(f"from/{call}/{index}") for index in range(self._store.count)]

  def check_same_code(self, versions: Mapping[str, str]) -> None:
    """Ends all processes unless they run the same code.

    Args:
      versions: of Python and of packages.

    Raises:
      RunError: in process 0, naming a source file or a package that differs.
    """
    if self._store is None:
      return
    named = {f"version of {name}": version for name, version in versions.items()}
    remedy = "install the same versions everywhere"
    self.check_same(named, remedy, RunError)
    self.check_same(_sources(), "give all processes the same version of the code", RunError)

  def check_shared(self, workdir: Path) -> None:
    """Ends all processes unless they see the same folder.

    Raises:
      RunError: in process 0, naming a process that does not see what process 0 writes.
    """
    if self._store is None:
      return
    is_first = self._store.index == 0
    mark = workdir / self.first_says(f".shared.{time.time_ns()}")
    if is_first:
      mark.touch()
    self.first_says(None)
    there = self._gather(mark.exists())
    if is_first:
      mark.unlink()
      for index, is_there in enumerate(there):
        if not is_there:
          raise RunError(
            f"--workdir={workdir}: process {index} does not see what process 0 writes there; give"
            " a folder that all machines share"
          )
    self.first_says(None)


def _flat(found: Mapping[str, Any]) -> dict[str, Any]:
  flat = {}
  for name, value in found.items():
    if isinstance(value, Mapping):
      flat |= {f"{name}.{inner}": item for inner, item in _flat(value).items()}
    else:
      flat[name] = value
  return flat


def _shown(value: Any) -> str:
  return "nothing" if value is None else str(value)


def _sources() -> dict[str, str]:
  """Of every source file of the packages, a digest."""
  paths = sorted(path for package in _PACKAGES for path in (_ROOT / package).rglob("*.py"))
  return {
    str(path.relative_to(_ROOT)): hashlib.sha256(path.read_bytes()).hexdigest()[:12]
    for path in paths
  }
