"""The flags of `train.diagnostics` and the cells they make."""

import dataclasses
from pathlib import Path
from typing import Any

from train import configure, flag_table
from train.cells import CONTESTANTS, Cell, Settings
from train.command import Command, Flag
from train.diagnostics_presets import PRESETS, SETTINGS
from train.errors import FlagError
from train.experiments import EXPERIMENTS
from train.parsers import TEXT, Boolean, Choice, Integer, Number, Several, Stages, WordOr

ALL = "all"
COUNTED = ("writes:", "observations:", "hidden:", "tokens:", "distractors:")
# A flag whose default is None has a value for each task in the preset.
SUITE = {
  "workdir": flag_table.WORKDIR,
  "preset": flag_table.preset_flag(PRESETS),
  "task": Flag(Choice((ALL, *EXPERIMENTS)), ALL, "What is asked of the memory."),
  "methods": Flag(
    Several(Choice(tuple(CONTESTANTS))),
    None,
    "What is compared: no memory, no memory but as many parameters, slots, Tensor Memory.",
  ),
  "attention_window": Flag(
    Several(WordOr("full", Integer(1))), None, "Tokens that attention sees, itself included."
  ),
  "seeds": Flag(
    Integer(1), None, "Runs that differ by the seed alone, of what the report is about."
  ),
  "init_from": Flag(
    TEXT, None, "Folder of another suite, whose cells of the same names these ones start from."
  ),
  "jobs": Flag(Integer(1), 1, "Processes that share the cells, and the cores."),
}
DIFFICULTY = {
  "curriculum": Flag(
    Stages(),
    None,
    "Stages of training: writes (or observations, frames that may be hidden, …) and steps.",
  ),
  "tested": Flag(Several(Integer(0)), None, "Writes (or …) that a trained model is tested with."),
  "out_of_reach": Flag(
    Boolean(), None, "Whether distractors part writes from queries, so that a window sees none."
  ),
  "lessons": Flag(
    Boolean(),
    None,
    "Whether training asks more often than tests do, where a task can; on the hidden ball it also"
    " hides any number of frames, and tests ask after every frame.",
  ),
  "noise": Flag(Several(Number(0)), None, "Noise of a query's coordinate; training has the first."),
  "distances": Flag(
    Several(Integer(1)), None, "Tokens from first write to first query in long_recall."
  ),
  "segment": Flag(Integer(1), None, "Tokens of a segment in long_recall."),
  "eval_samples": Flag(Integer(1), None, "Samples of each test."),
}
OPTIM = {
  name: flag_table.OPTIM[name]
  for name in ("learning_rate", "batch_size", "warmup_steps", "coordinate_lr_factor")
} | {
  "axes_weight": Flag(
    Number(0), None, "Weight of a penalty on axes of the grid that writes do not use apart."
  )
}
MEMORY = {
  name: flag for name, flag in flag_table.MEMORY.items() if name not in ("remat", "state_scope")
}
MODEL = {name: flag for name, flag in flag_table.BLOCKS.items() if name != "mlp_features"}


@dataclasses.dataclass(frozen=True)
class DiagnosticsRun:
  """Everything `train.diagnostics` needs.

  Attributes:
    workdir: folder of the suite.
    preset: name of the preset.
    cells: what is trained and tested.
    jobs: processes that share the cells.
    is_worker: whether this process is one of them.
    debug: whether to show the stack trace of a failure.
    flags: the value of every flag, as JSON: enough to run it again.
  """

  workdir: Path
  preset: str
  cells: tuple[Cell, ...]
  jobs: int
  is_worker: bool
  debug: bool
  flags: dict[str, Any]


def build(values: dict[str, Any]) -> DiagnosticsRun:
  """Makes the configuration from every flag's value.

  Args:
    values: value of every flag.

  Returns:
    The configuration.

  Raises:
    FlagError: if values do not fit together.
    ValueError: likewise, naming a field.
  """
  names = tuple(EXPERIMENTS) if values["task"] == ALL else (values["task"],)
  for name in ("curriculum", "tested"):
    if len(names) > 1 and values[name] is not None:
      raise FlagError(f"--{name}: every task counts something else; choose one with --task")
  cells = []
  for name in names:
    try:
      cells += EXPERIMENTS[name](_settings(SETTINGS[values["preset"]][name], values))
    except ValueError as error:
      if str(error).startswith(COUNTED):  # a difficulty has the name of what the task counts
        raise FlagError(f"--curriculum, --tested: {error} (task {name})") from error
      raise ValueError(f"{error} (task {name})") from error
  if not cells:
    raise FlagError(f"--methods: none of them is trained in {', '.join(names)}; add tensor")
  source = values["init_from"]
  if source is not None and not (Path(source) / "cells").is_dir():
    raise FlagError(f"--init_from={source}: no suite there, expected the --workdir of another one")
  return DiagnosticsRun(
    workdir=Path(values["workdir"]),
    preset=values["preset"],
    cells=tuple(dataclasses.replace(cell, init_from=values["init_from"]) for cell in cells),
    jobs=values["jobs"],
    is_worker=values["worker"],
    debug=values["debug"],
    flags=configure.stored(values),
  )


def _settings(settings: Settings, values: dict[str, Any]) -> Settings:
  """The preset's settings with what was given in its place."""
  given = {name: value for name, value in values.items() if value is not None}
  if "methods" in given or "attention_window" in given:  # what is asked for is trained
    settings = dataclasses.replace(settings, open_methods=None)
  renamed = {"stages": given.get("curriculum"), "capacity_stages": given.get("curriculum")}
  if "curriculum" in given:
    renamed |= {"per_test": False, "segments": ()}
  if "tested" in given and settings.capacities:
    renamed["capacities"] = given["tested"]
  if "grid" in given and settings.grids:
    renamed["grids"] = (given["grid"],)
  fields = {
    field.name: given[flag]
    for field in dataclasses.fields(settings.memory)
    if (flag := flag_table.RENAMED.get(field.name, field.name)) in given
  }
  memory = dataclasses.replace(settings.memory, **fields)
  slots = {
    field: given[flag]
    for field, flag in (("count", "slot_count"), ("forget_bias", "forget_bias"))
    if flag in given
  }
  changes = {
    field.name: given[field.name] for field in dataclasses.fields(settings) if field.name in given
  }
  return dataclasses.replace(
    settings,
    **changes,
    **{name: value for name, value in renamed.items() if value is not None},
    memory=memory,
    slots=dataclasses.replace(settings.slots, **slots),
  )


_GROUPS = {
  "Suite": SUITE,
  "Difficulty": DIFFICULTY,
  "Model": MODEL,
  "Memory": MEMORY,
  "Optimisation": OPTIM,
}
COMMAND = Command(
  name="diagnostics",
  groups=_GROUPS,
  build=build,
  switches={
    "worker": "Train what no other process is at, and write no report: what --jobs starts.",
    **flag_table.SWITCHES,
  },
  defaults={name: None for group in (MODEL, MEMORY, OPTIM) for name in group},
  # Which cells there are; what a cell is made of must stay. (Distractors follow from the windows.)
  may_change=(*flag_table.OF_THE_PROCESS, "methods", "seeds"),
  renamed={**flag_table.RENAMED, "stages": "curriculum"},
)
