"""Reads the flags of a command; the only place where flags are defined.

Values come from the command line, then, when a run is resumed, from its `config.json`, then from
the preset, then from the defaults.
"""

import re
import shlex
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import flags

from train import outputs, processes
from train.command import Command, Flag
from train.errors import FlagError, RunError
from train.flag_table import OF_THE_PROCESS

_OF_A_MACHINE = ("data_dir", "debug")  # the data themselves are compared
# A name of two words, perhaps with the value that switches it on.
_FIELD = re.compile(r"(?<!-)\b(?P<field>[a-z0-9]+_\w+)\b(=True)?")


def define(command: Command) -> flags.FlagValues:
  """Declares all flags of a command; the defaults are those of its usual preset."""
  values, defaults = flags.FlagValues(), command.values()
  for name, flag in command.flags.items():
    flags.DEFINE(flag.parser, name, defaults[name], flag.help, values, _Serializer())
  for name, text in command.switches.items():
    flags.DEFINE_boolean(name, False, text, values)
  return values


def parse(command: Command, argv: Sequence[str], usage: str = "") -> Any:
  """Turns the command line into the configuration of a command.

  Args:
    command: the command.
    argv: the command line, program name first.
    usage: text above the help.

  Returns:
    What `command.build` makes of it, or None if help was asked for (and printed).

  Raises:
    FlagError: naming the flag, what came and what is right.
    RunError: if the workdir's configuration cannot be read.
  """
  values = define(command)
  if _read(values, argv):
    print(help_text(command, usage))
    return None
  given = {name: values[name].value for name in command.names if values[name].present}
  if "checkpoint" in given:
    given["workdir"] = _run_of_checkpoint(given)
  for name, flag in command.flags.items():
    if flag.missing and not given.get(name) and not given.get("dry_run"):
      raise FlagError(f"--{name}: missing, expected {flag.missing}")
  resolved = _resolve(command, given)
  _check_alike(command, resolved)
  return _build(command, resolved)


def _check_alike(command: Command, resolved: Mapping[str, Any]) -> None:
  """Raises FlagError unless all processes of the run have the same command and flags."""
  named = {f"--{name}": plain(v) for name, v in resolved.items() if name not in _OF_A_MACHINE}
  remedy, peers = "start all processes with the same command", processes.peers()
  peers.check_same({"the command": f"train.{command.name}"}, remedy, FlagError)
  peers.check_same(named, remedy, FlagError)


def _check_source(command: Command, source: str) -> None:
  """Raises FlagError if what a run is to start from is a run of another command, or damaged."""
  path = outputs.run_of(Path(source)) / outputs.CONFIG
  try:
    record = outputs.read_json(path)
  except RunError as error:
    raise FlagError(f"--init_from={source}: {path} cannot be read; use another run") from error
  task = (record or {}).get("task", command.name)
  if task != command.name:
    raise FlagError(
      f"--init_from={source}: of a run of train.{task}, expected one of train.{command.name}"
    )


def _run_of_checkpoint(given: Mapping[str, Any]) -> str:
  """Folder of the run that --checkpoint is or belongs to; raises FlagError if it is of no use."""
  if given.get("mode", "train") == "train":
    raise FlagError(
      "--checkpoint: for what uses a trained model (--mode); to go on training give --workdir"
    )
  if "workdir" in given:
    raise FlagError("--checkpoint: names a run, and so does --workdir; give one of them")
  return str(outputs.run_of(Path(given["checkpoint"])))


def _build(command: Command, values: dict[str, Any]) -> Any:
  """Makes the configuration from every flag's value; raises FlagError if they do not fit."""
  try:
    return command.build(values)
  except ValueError as error:
    fields = {**command.renamed, **{name: name for name in values}}
    raise FlagError(_with_flags(str(error), fields)) from error


def command_line(command: Command, workdir: Path, stored: Mapping[str, Any]) -> str:
  """The command that makes a run again.

  Args:
    command: the command.
    workdir: folder of the run.
    stored: value of every flag that `config.json` holds.

  Returns:
    The command as it is typed into a shell.
  """
  options = [f"--{name}={as_text(value)}" for name, value in stored.items() if value is not None]
  return shlex.join(["python", "-m", f"train.{command.name}", f"--workdir={workdir}", *options])


def _read(values: flags.FlagValues, argv: Sequence[str]) -> bool:
  """Reads the command line into `values` and says whether it asks for help."""
  for name in ("help", "helpshort", "helpfull"):
    flags.DEFINE_boolean(name, False, "Show this help.", values)
  try:
    rest = values(list(argv))[1:]
  except flags.Error as error:
    raise FlagError(str(error).split("\n")[0].removeprefix("flag ")) from error
  if values.help or values.helpshort or values.helpfull:
    return True
  if rest:
    raise FlagError(f"{rest[0]!r}: flags look like --name=value")
  return False


def help_text(command: Command, usage: str) -> str:
  """The help: usage, then every flag by group with its default."""
  defaults, lines = command.values(), [usage.strip(), ""]
  for title, group in command.groups.items():
    lines.append(f"{title}:")
    for name, flag in group.items():
      lines += _entry(f"--{name}", _described(flag, defaults[name]))
  if command.switches:
    lines.append("Switches:")
  for name, text in command.switches.items():
    lines += _entry(f"--[no]{name}", text)
  return "\n".join(lines)


def _described(flag: Flag, default: Any) -> str:
  shown = "" if default is None else f" (default: {as_text(default)})"
  kind = f" [{flag.parser.syntactic_help}]" if flag.parser.syntactic_help else ""
  return f"{flag.help}{kind}{shown}"


def _entry(name: str, text: str) -> list[str]:
  indent = " " * 26
  wrapped = textwrap.wrap(text, 96, initial_indent=indent, subsequent_indent=indent)
  first = f"  {name:<23} {wrapped[0].strip()}"
  return [first, *wrapped[1:]] if len(name) <= 23 else [f"  {name}", *wrapped]


def _resolve(command: Command, given: dict[str, Any]) -> dict[str, Any]:
  """Every flag's value: given, or of the run in the workdir, or of the preset."""
  defaults = command.values(given.get("preset"))
  if "workdir" not in given:
    return defaults | given
  workdir, mode = Path(given["workdir"]), given.get("mode", "train")
  saved = _saved_flags(command, workdir)
  if saved is not None:  # flags that are newer than the run had their defaults
    newer = command.values(saved.get("preset"))
    saved = {name: newer[name] for name in newer if name not in OF_THE_PROCESS} | saved
  if saved is None and mode != "train":
    flag = "checkpoint" if "checkpoint" in given else "workdir"
    raise RunError(f"--{flag}={given[flag]}: no run there for --mode={mode}; train one first")
  if saved is None and given.get("init_from"):
    _check_source(command, given["init_from"])
  # A preset on the command line means the whole command: everything must agree. Without it, and
  # to use what was trained, what is not given is as the run has it.
  base = saved if saved is not None and (mode != "train" or "preset" not in given) else {}
  values = {**defaults, **base, **given}
  may_change = (*command.may_change, *command.use_may_change.get(mode, ()))
  for name in saved or ():
    changed = plain(values.get(name)) != plain(saved[name])
    if changed and name not in may_change and (mode == "train" or name in given):
      raise FlagError(
        f"--{name}: the run in {workdir} was started with {as_text(saved[name])}, this command has"
        f" {as_text(values[name])}; use that value or another --workdir"
      )
  return values


def _saved_flags(command: Command, workdir: Path) -> dict[str, Any] | None:
  """Flags of the run in a folder, or None if there is no run."""
  if workdir.exists() and not workdir.is_dir():
    raise FlagError(f"--workdir={workdir}: is a file, expected a folder")
  path = workdir / outputs.CONFIG
  record = outputs.read_json(path)
  if record is None:
    return None
  task, saved = record.get("task", command.name), record.get("flags")
  if task != command.name:
    raise RunError(f"{path}: of a run of train.{task}; use another --workdir")
  if not isinstance(saved, dict) or any(name not in command.names for name in saved):
    raise RunError(f"{path}: not written by this version; use another --workdir")
  try:
    return {name: _parse_saved(command, name, value) for name, value in saved.items()}
  except ValueError as error:
    raise RunError(f"{path}: {error}; restore it or use another --workdir") from error


def _parse_saved(command: Command, name: str, value: Any) -> Any:
  """Reads a stored value with its flag's own parser; raises ValueError saying what is right."""
  if name in command.switches:
    if not isinstance(value, bool):
      raise ValueError(f"--{name}={value!r}: expected true or false")
    return value
  if value is None and command.values()[name] is None:
    return None
  try:
    return command.flags[name].parser.parse(as_text(value))
  except ValueError as error:
    raise ValueError(f"--{name}={as_text(value)}: {error}") from None


def _with_flags(message: str, fields: Mapping[str, str]) -> str:
  """A model's error with flags in place of its fields, as far as a field cannot be a plain word."""

  def as_flag(match: re.Match) -> str:
    return f"--{fields[match['field']]}" if match["field"] in fields else match[0]

  return re.sub(r"^(?P<field>\w+)(?=:)", as_flag, _FIELD.sub(as_flag, message))


class _Serializer(flags.ArgumentSerializer):
  def serialize(self, value: Any) -> str:
    return as_text(value)


def as_text(value: Any) -> str:
  """A value as it is written on the command line; pairs have a colon between."""
  if not isinstance(value, (tuple, list)):
    return str(value)
  return ",".join(
    ":".join(map(str, part)) if isinstance(part, (tuple, list)) else str(part) for part in value
  )


def plain(value: Any) -> Any:
  """A value as JSON has it."""
  return [plain(part) for part in value] if isinstance(value, (tuple, list)) else value
