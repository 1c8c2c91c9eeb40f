"""What a command is: its flags, what they start as, and how they become its configuration."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from absl import flags


class Flag(NamedTuple):
  """A flag that takes a value.

  Attributes:
    parser: reads the value and says what is expected instead of a wrong one.
    default: the value where neither the command nor a preset sets another; None: there is none.
    help: what it does.
    missing: what is expected, for a flag that has to be given.
  """

  parser: flags.ArgumentParser
  default: Any
  help: str
  missing: str = ""


def _nothing() -> Any:
  return dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Command:
  """A command of `train`. `train.flags.parse` turns a command line into what `build` makes.

  A flag "preset" chooses among `presets`. A flag "workdir" makes the command one that goes on
  where the run in that folder has stopped, with its flags; a flag "mode" says what for.

  Attributes:
    name: the module in `train` that is run.
    groups: flags by name, by title of their group, in the order of the help.
    build: makes the configuration from the value of every flag. A ValueError that names a field
      becomes one that names the flag.
    switches: help of the flags that are on or off, by name; off unless given.
    defaults: defaults that differ from those in `groups`, by flag.
    presets: by name, values that take the place of defaults, by flag.
    may_change: flags that may differ from the run in the workdir.
    use_may_change: by mode, flags that may differ besides.
    renamed: flags that are not named like the fields they set, by field.

  Raises:
    ValueError: if a default or a preset is of a flag that does not exist.
  """

  name: str
  groups: Mapping[str, Mapping[str, Flag]]
  build: Callable[[dict[str, Any]], Any]
  switches: Mapping[str, str] = _nothing()
  defaults: Mapping[str, Any] = _nothing()
  presets: Mapping[str, Mapping[str, Any]] = _nothing()
  may_change: tuple[str, ...] = ()
  use_may_change: Mapping[str, tuple[str, ...]] = _nothing()
  renamed: Mapping[str, str] = _nothing()

  def __post_init__(self):
    for values in (self.defaults, *self.presets.values()):
      unknown = set(values) - set(self.names)
      if unknown:
        raise ValueError(f"{self.name}: no flag is named {', '.join(sorted(unknown))}")

  @property
  def flags(self) -> dict[str, Flag]:
    """Every flag that takes a value."""
    return {name: flag for group in self.groups.values() for name, flag in group.items()}

  @property
  def names(self) -> tuple[str, ...]:
    """Names of all flags and switches."""
    return (*self.flags, *self.switches)

  def values(self, preset: str | None = None) -> dict[str, Any]:
    """Value of every flag where none is given.

    Args:
      preset: name of a preset; None for the usual one, if any.

    Returns:
      Values by name.
    """
    found = {name: flag.default for name, flag in self.flags.items()} | dict(self.defaults)
    chosen = found.get("preset") if preset is None else preset
    return dict.fromkeys(self.switches, False) | found | dict(self.presets.get(chosen, {}))


def columns(names: Sequence[str], table: Mapping[str, Sequence[Any]]) -> dict[str, dict[str, Any]]:
  """Presets from a table with one row per flag.

  Args:
    names: names of the presets.
    table: by flag, its value in each of them.

  Returns:
    Values by flag, by preset.
  """
  rows = {flag: dict(zip(names, row, strict=True)) for flag, row in table.items()}
  return {name: {flag: row[name] for flag, row in rows.items()} for name in names}
