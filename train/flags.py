"""Flags of `train.language` and `train.report`; the only place where flags become configuration.

Values come from the command line, then, when a run is resumed, from its `config.json`, then from
the preset. `$TMEM_DATA_DIR` stands in for a `--data_dir` that neither of the first two has.
"""

import os
import re
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from absl import flags

import tmem
from tmem.models import LanguageConfig
from train import config, outputs
from train.errors import FlagError, RunError
from train.flag_table import GROUPS, MAY_CHANGE, OF_THE_PROCESS, SWITCHES, USE_MAY_CHANGE, VALUES
from train.parsers import mesh_sizes
from train.presets import PRESETS, preset_values

# A name of two words, perhaps with the value that switches it on.
_FIELD = re.compile(r"(?<!-)\b(?P<field>[a-z0-9]+_\w+)\b(=True)?")


def define() -> flags.FlagValues:
  """Declares all flags; the defaults are those of the first preset."""
  values, preset = flags.FlagValues(), preset_values(PRESETS[0])
  for name, (parser, default, text) in VALUES.items():
    flags.DEFINE(parser, name, preset.get(name, default), text, values, _Serializer())
  for name, text in SWITCHES.items():
    flags.DEFINE_boolean(name, False, text, values)
  return values


def parse(argv: Sequence[str], usage: str = "") -> config.LanguageRun | None:
  """Turns the command line into the configuration of a language run.

  Args:
    argv: the command line, program name first.
    usage: text above the help.

  Returns:
    The configuration, or None if help was asked for (and printed).

  Raises:
    FlagError: naming the flag, what came and what is right.
    RunError: if the workdir's configuration cannot be read.
  """
  values = define()
  if _read(values, argv):
    print(help_text(usage))
    return None
  given = {name: values[name].value for name in (*VALUES, *SWITCHES) if values[name].present}
  if not given.get("workdir"):
    raise FlagError("--workdir: missing, expected the folder of the run, as in --workdir=runs/a")
  return build(_resolve(given))


def parse_report(argv: Sequence[str], usage: str = "") -> tuple[list[Path], Path | None] | None:
  """Turns the command line into what `train.report` compares.

  Args:
    argv: the command line, program name first.
    usage: text above the help.

  Returns:
    (folders of the runs, folder to write to or None), or None if help was asked for (and printed).

  Raises:
    FlagError: naming the flag, what came and what is right.
  """
  values = flags.FlagValues()
  flags.DEFINE_list("workdirs", [], "Folders of the runs.", values)
  flags.DEFINE_string("output", None, "Folder for report.md and losses.png.", values)
  flags.DEFINE_boolean("debug", False, "Show the stack trace of an error.", values)
  if _read(values, argv):
    print(f"{usage}\n{values.get_help()}")
    return None
  if not values.workdirs:
    raise FlagError("--workdirs: missing, expected folders of runs, as in --workdirs=runs/a,runs/b")
  return [Path(workdir) for workdir in values.workdirs], Path(
    values.output
  ) if values.output else None


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


def help_text(usage: str) -> str:
  """The help: usage, then every flag by group with its default."""
  defaults, lines = preset_values(PRESETS[0]), [usage.strip(), ""]
  for title, group in GROUPS.items():
    lines.append(f"{title}:")
    for name, (parser, default, text) in group.items():
      default = defaults.get(name, default)
      shown = "" if default is None else f" (default: {_Serializer().serialize(default)})"
      kind = f" [{parser.syntactic_help}]" if parser.syntactic_help else ""
      lines += _entry(f"--{name}", f"{text}{kind}{shown}")
  lines.append("Switches:")
  for name, text in SWITCHES.items():
    lines += _entry(f"--[no]{name}", text)
  return "\n".join(lines)


def _entry(name: str, text: str) -> list[str]:
  indent = " " * 26
  wrapped = textwrap.wrap(text, 96, initial_indent=indent, subsequent_indent=indent)
  first = f"  {name:<23} {wrapped[0].strip()}"
  return [first, *wrapped[1:]] if len(name) <= 23 else [f"  {name}", *wrapped]


def _resolve(given: dict[str, Any]) -> dict[str, Any]:
  """Every flag's value: given, or of the run in the workdir, or of the preset."""
  workdir = Path(given["workdir"])
  if workdir.exists() and not workdir.is_dir():
    raise FlagError(f"--workdir={workdir}: is a file, expected a folder")
  mode = given.get("mode", "train")
  saved = _saved_flags(workdir)
  if saved is None and mode != "train":
    raise RunError(f"--workdir={workdir}: no run there to {mode} from; train one first")
  defaults = {name: default for name, (_, default, _) in VALUES.items()}
  defaults |= dict.fromkeys(SWITCHES, False) | preset_values(given.get("preset", PRESETS[0]))
  # A preset on the command line means the whole command: everything must agree. Without it, and
  # to evaluate or generate, what is not given is as the run has it.
  base = saved if saved is not None and (mode != "train" or "preset" not in given) else {}
  values = {**defaults, **base, **given}
  may_change = (*MAY_CHANGE, *USE_MAY_CHANGE[mode])
  for name in saved or ():
    changed = _plain(values.get(name)) != _plain(saved[name])
    if changed and name not in may_change and (mode == "train" or name in given):
      raise FlagError(
        f"--{name}: the run in {workdir} was started with {as_text(saved[name])}, this command has"
        f" {as_text(values[name])}; use that value or another --workdir"
      )
  return values


def _saved_flags(workdir: Path) -> dict[str, Any] | None:
  record = outputs.read_json(workdir / outputs.CONFIG)
  if record is None:
    return None
  known = (*VALUES, *SWITCHES)
  saved = record.get("flags")
  if not isinstance(saved, dict) or any(name not in known for name in saved):
    raise RunError(
      f"{workdir / outputs.CONFIG}: not written by this version; use another --workdir"
    )
  try:
    return {name: _parse_saved(name, value) for name, value in saved.items()}
  except ValueError as error:
    raise RunError(
      f"{workdir / outputs.CONFIG}: {error}; restore it or use another --workdir"
    ) from error


def _parse_saved(name: str, value: Any) -> Any:
  """Reads a stored value with its flag's own parser; raises ValueError saying what is right."""
  if name in SWITCHES:
    if not isinstance(value, bool):
      raise ValueError(f"--{name}={value!r}: expected true or false")
    return value
  parser, default, _ = VALUES[name]
  if value is None and default is None and name not in preset_values(PRESETS[0]):
    return None
  try:
    return parser.parse(as_text(value))
  except ValueError as error:
    raise ValueError(f"--{name}={as_text(value)}: {error}") from None


def build(values: dict[str, Any]) -> config.LanguageRun:
  """Makes the configuration from every flag's value.

  Args:
    values: value of every flag by name.

  Returns:
    The configuration.

  Raises:
    FlagError: if values do not fit together.
  """
  if values["batch_size"] % values["accumulate"]:
    raise FlagError(
      f"--accumulate={values['accumulate']}: does not divide --batch_size={values['batch_size']}"
    )
  if values["warmup_steps"] > values["steps"]:
    raise FlagError(f"--warmup_steps={values['warmup_steps']}: more than --steps={values['steps']}")
  if values["dataset"] == "text" and not values["data_path"]:
    raise FlagError("--data_path: missing, --dataset=text needs a file or a folder")
  # The variable belongs to the machine, not to the run: it is not stored with the flags.
  data_dir = values["data_dir"] or os.environ.get("TMEM_DATA_DIR") or None
  workdir, mesh = Path(values["workdir"]), mesh_sizes(values["mesh"])
  return config.LanguageRun(
    mode=values["mode"],
    data=_pick(config.DataConfig, values, data_dir=data_dir),
    model=_model(values),
    optim=_pick(config.OptimConfig, values),
    run=_pick(config.RunConfig, values, workdir=workdir, mesh=mesh),
    sample=_pick(config.SampleConfig, values, tokens=values["sample_tokens"]),
    flags={name: _plain(value) for name, value in values.items() if name not in OF_THE_PROCESS},
  )


def _pick(cls: type, values: dict[str, Any], **more: Any) -> Any:
  """Makes a dataclass from the flags named like its fields, and from `more`."""
  named = {name: values[name] for name in cls.__dataclass_fields__ if name in values}
  return cls(**{**named, **more})


def _model(values: dict[str, Any]) -> LanguageConfig:
  renamed = {"channels": "memory_channels", "implementation": "memory_implementation"}
  shared = (
    "grid",
    "chunk_size",
    "forget_bias",
    "read_query",
    "sigma_scale",
    "sigma_min",
    "sigma_max",
    "remat",
    "dtype",
  )
  model = (
    "features",
    "num_heads",
    "num_layers",
    "max_length",
    "method",
    "window",
    "dropout",
    "memory_every_n_layers",
    "state_scope",
    "allow_future_leak",
    "gate_init",
    "dtype",
  )
  try:
    memory = tmem.MemoryConfig(
      **{field: values[flag] for field, flag in renamed.items()},
      **{name: values[name] for name in shared},
    )
    return LanguageConfig(
      vocab_size=1,
      mlp_features=values["mlp_features"] or None,
      memory=memory,
      **{name: values[name] for name in model},
    )
  except ValueError as error:
    raise FlagError(_with_flags(str(error), {**renamed, **dict.fromkeys(values)})) from error


def _with_flags(message: str, renamed: dict[str, str | None]) -> str:
  """A model's error with flags in place of its fields, as far as a field cannot be a plain word."""

  def as_flag(match: re.Match) -> str:
    field = match["field"]
    return f"--{renamed[field] or field}" if field in renamed else match[0]

  return re.sub(r"^(?P<field>\w+)(?=:)", as_flag, _FIELD.sub(as_flag, message))


class _Serializer(flags.ArgumentSerializer):
  def serialize(self, value: Any) -> str:
    return as_text(value)


def as_text(value: Any) -> str:
  """A value as it is written on the command line."""
  return ",".join(map(str, value)) if isinstance(value, (tuple, list)) else str(value)


def _plain(value: Any) -> Any:
  return list(value) if isinstance(value, tuple) else value
