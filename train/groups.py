"""Runs that differ by nothing but their seed, taken together."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from train import outputs
from train.flag_table import MAY_CHANGE
from train.tables import mean_and_range, text_table

Results = Mapping[str, Mapping[str, Any]]


def by_seed(workdirs: Sequence[Path], results: Results) -> dict[str, list[Mapping[str, Any]]]:
  """Groups runs by all that they were asked for and that decides what is computed, but their seed.

  Args:
    workdirs: folders of the runs.
    results: their results by name, in the same order.

  Returns:
    Results by the name of the first run of each group.
  """
  names: dict[str, str] = {}
  groups: dict[str, list[Mapping[str, Any]]] = {}
  for workdir, (name, found) in zip(workdirs, results.items(), strict=True):
    flags = (outputs.read_json(workdir / outputs.CONFIG) or {}).get("flags", {})
    asked = {
      flag: value
      for flag, value in flags.items()
      if flag != "seed" and flag not in MAY_CHANGE and value is not None
    }
    first = names.setdefault(json.dumps(asked or str(workdir), sort_keys=True), name)
    groups.setdefault(first, []).append(found)
  return groups


def format_groups(
  groups: Mapping[str, Sequence[Mapping[str, Any]]], columns: Sequence[tuple[str, str, int]]
) -> str:
  """A table of groups: the mean of every figure, and its range where there are several seeds.

  Args:
    groups: from `by_seed`.
    columns: heading, key in result.json and digits of each.

  Returns:
    Lines of text.
  """
  rows = [["run", "seeds", *(heading for heading, _, _ in columns)]]
  for name, found in groups.items():
    figures = (
      mean_and_range([one[key] for one in found if one.get(key) is not None], digits)
      for _, key, digits in columns
    )
    rows.append([name, str(len(found)), *(figure or "-" for figure in figures)])
  return text_table(rows, left=1)
