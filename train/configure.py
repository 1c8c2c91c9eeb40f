"""Makes the parts of a configuration that commands share from the values of their flags."""

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tmem
from tmem.slots import SlotConfig
from train.config import OptimConfig, RunConfig
from train.errors import FlagError
from train.flag_table import OF_THE_PROCESS, RENAMED
from train.flags import plain
from train.parsers import mesh_sizes

Values = Mapping[str, Any]


def pick(cls: type, values: Values, **more: Any) -> Any:
  """Makes a dataclass from the flags named like its fields.

  Args:
    cls: the dataclass.
    values: value of every flag by name; a field without a flag keeps its default.
    **more: fields that are not what the flag of their name says.

  Returns:
    An instance of `cls`.

  Raises:
    ValueError: if `cls` refuses its fields.
  """
  names = [field.name for field in dataclasses.fields(cls) if field.name in values]
  return cls(**{**{name: values[name] for name in names}, **more})


def optim_config(values: Values) -> OptimConfig:
  """The optimizer, from the flags of `OPTIM`; raises FlagError if they do not fit together."""
  batch_size, accumulate = values["batch_size"], values["accumulate"]
  if batch_size % accumulate:
    raise FlagError(f"--accumulate={accumulate}: does not divide --batch_size={batch_size}")
  if values["warmup_steps"] > values["steps"]:
    raise FlagError(f"--warmup_steps={values['warmup_steps']}: more than --steps={values['steps']}")
  return pick(OptimConfig, values)


def run_config(values: Values) -> RunConfig:
  """How the run proceeds, from the flags of `RUN` and "workdir" and other paths."""
  paths = {
    name: None if values[name] is None else Path(values[name])
    for name in ("workdir", "checkpoint", "init_from")
  }
  return pick(RunConfig, values, **paths, mesh=mesh_sizes(values["mesh"]))


def memory_config(values: Values) -> tmem.MemoryConfig:
  """The memory, from the flags of `MEMORY`; raises FlagError or, as the class does, ValueError."""
  try:
    return pick(tmem.MemoryConfig, values, **{f: values[flag] for f, flag in RENAMED.items()})
  except ValueError as error:
    field, _, problem = str(error).partition(": ")
    if field in RENAMED:  # "window" is a flag, too, and means another one
      raise FlagError(f"--{RENAMED[field]}: {problem}") from error
    raise


def slot_config(values: Values) -> SlotConfig:
  """The slots, from the flags of `MEMORY`; raises ValueError as the class does."""
  return pick(SlotConfig, values, count=values["slot_count"])


def data_dir(values: Values) -> str | None:
  """Folder of downloaded datasets: of the flag, else of `$TMEM_DATA_DIR`, else None."""
  # The variable belongs to the machine, not to the run: it is not stored with the flags.
  return values["data_dir"] or os.environ.get("TMEM_DATA_DIR") or None


def stored(values: Values) -> dict[str, Any]:
  """What `config.json` keeps of the flags: enough to make the run again, as JSON values."""
  return {name: plain(value) for name, value in values.items() if name not in OF_THE_PROCESS}
