"""Whether a run goes on with the data it began with."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from train import outputs, processes
from train.errors import RunError


def check_alike(dataset: str, found: Mapping[str, Any]) -> None:
  """Ends all processes of a run unless they have found the same data.

  Args:
    dataset: value of the flag, for the message.
    found: as in `check`.

  Raises:
    RunError: naming what differs.
  """
  named = {f"--dataset={dataset}: {part}": value for part, value in found.items()}
  processes.peers().check_same(named, "give all processes the same data", RunError)


def check(
  workdir: Path, dataset: str, found: Mapping[str, Any], parts: Sequence[str] | None = None
) -> dict[str, Any]:
  """Compares data with those that the run in a folder began with, if there is one.

  Of several processes all have to have found the same.

  Args:
    workdir: folder of the run.
    dataset: value of the flag, for the message.
    found: what tells the data from others, as JSON values by part.
    parts: those that have to be the same; None: all.

  Returns:
    `found`.

  Raises:
    RunError: naming the parts that have changed.
  """
  check_alike(dataset, found)
  record = outputs.read_json(workdir / outputs.CONFIG) or {}
  began_with = record.get("data", found)
  if not isinstance(began_with, Mapping):
    began_with = {}
  changed = [part for part in parts or found if found[part] != began_with.get(part)]
  if changed:
    raise RunError(
      f"--dataset={dataset}: not the data that the run in {workdir} began with"
      f" ({', '.join(changed)} changed); use another --workdir"
    )
  return dict(found)
