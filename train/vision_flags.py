"""What the commands of images and videos have in common: their flags and how these are read."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tmem.image_models import PatchConfig
from train import configure, flag_table
from train.command import Command, Flag, columns
from train.errors import FlagError
from train.parsers import Integer, Number

PATCHES = {
  "image_size": Flag(Integer(1), None, "Pixels along an edge; a multiple of --patch_size."),
  "patch_size": Flag(Integer(1), None, "Pixels along an edge of a patch."),
  "num_registers": Flag(Integer(1), 4, "Learned tokens of the method registers."),
  "drop_path": Flag(Number(0, 1), 0.0, "How often the last block is left out, but for the memory."),
}
MEMORY = {name: flag for name, flag in flag_table.MEMORY.items() if name != "slot_count"}
# One state goes from block to block; its way out starts nearly shut, where presets do not open it.
DEFAULTS = {"state_scope": "depth", "gate_init": -2.0, "eval_tokens": 0, "weight_decay": 0.05}


def command(
  name: str,
  groups: Mapping[str, Mapping[str, Flag]],
  build: Callable[[dict[str, Any]], Any],
  presets: Sequence[str],
  table: Mapping[str, Sequence[Any]],
  switches: Mapping[str, str] | None = None,
  may_change: tuple[str, ...] = (),
) -> Command:
  """A command with the groups of flags that both have, behind those of its own.

  Args:
    name: as in `Command`.
    groups: its own.
    build: as in `Command`.
    presets: names of the presets.
    table: as in `columns`.
    switches: besides the usual ones.
    may_change: flags that may differ from the run in the workdir, besides the usual ones.
  """
  return Command(
    name=name,
    groups={
      **groups,
      "Memory": MEMORY,
      "Optimisation": flag_table.OPTIM,
      "Run": flag_table.RUN,
    },
    build=build,
    switches={**(switches or {}), **flag_table.DRY_RUN, **flag_table.SWITCHES},
    defaults=DEFAULTS,
    presets=columns(presets, table),
    may_change=(*flag_table.MAY_CHANGE, "data_path", *may_change),
    use_may_change={"eval": ("batch_size", "accumulate", "seed")},
    renamed=flag_table.RENAMED,
  )


def model(cls: type[PatchConfig], values: Mapping[str, Any], **more: Any) -> Any:
  """The configuration of a model, from its flags and `MEMORY`; raises ValueError as `cls` does."""
  mlp_features = values["mlp_features"] or None
  memory = configure.memory_config(values)
  return configure.pick(cls, values, mlp_features=mlp_features, memory=memory, **more)


def run(cls: type, data: type, model: PatchConfig, values: Mapping[str, Any], **more: Any) -> Any:
  """The configuration of a run.

  Args:
    cls: its class.
    data: class of the configuration of its data.
    model: configuration of its model.
    values: value of every flag by name.
    **more: further fields.

  Raises:
    FlagError: if values do not fit together.
  """
  if values["dataset"] == "folder" and not values["data_path"] and values["mode"] != "online":
    raise FlagError("--data_path: missing, --dataset=folder needs one")
  return cls(
    mode=values["mode"],
    data=configure.pick(data, values, data_dir=configure.data_dir(values)),
    model=model,
    optim=configure.optim_config(values),
    run=configure.run_config(values),
    flags=configure.stored(values),
    **more,
  )
