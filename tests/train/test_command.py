"""What every command gets from the machinery, on one that is not a real one."""

import json
import shlex

import pytest

from train import configure, flag_table, flags
from train.command import Command, Flag, columns
from train.errors import FlagError, RunError
from train.parsers import Choice, Integer, Several, WordOr

SIZES = {
  "methods": Flag(Several(Choice(("base", "tensor"))), ("base",), "Methods."),
  "attention_window": Flag(Several(WordOr("full", Integer(1))), ("full",), "Windows."),
  "tokens": Flag(Integer(1), None, "Tokens."),
}


def build(values):
  if values["tokens"] == 13:
    raise ValueError("size: 13 is above attention_window and not the word size")
  return configure.stored(values)


def make(groups=SIZES, **more):
  task = {"workdir": flag_table.WORKDIR, "seed": flag_table.SEED}
  settings = {"switches": flag_table.SWITCHES, "defaults": {"tokens": 4}, **more}
  return Command("sketch", {"Task": task, "Sizes": groups}, build, **settings)


def parse(tmp_path, *arguments, command=None):
  return flags.parse(command or make(), ["sketch", f"--workdir={tmp_path}", *arguments])


def test_a_command_needs_neither_presets_nor_modes(tmp_path):
  found = parse(tmp_path)
  usual = {"seed": 0, "methods": ["base"], "attention_window": ["full"], "tokens": 4}
  assert found == usual
  assert parse(tmp_path, "--tokens=5", "--seed=2") == {**usual, "tokens": 5, "seed": 2}


def test_a_command_needs_no_workdir():
  command = Command("sketch", {"Sizes": SIZES}, build)
  assert flags.parse(command, ["sketch", "--tokens=2"])["tokens"] == 2


def test_a_list_says_what_its_parts_may_be(tmp_path):
  found = parse(tmp_path, "--methods=base,tensor", "--attention_window=full,4")
  assert (found["methods"], found["attention_window"]) == (["base", "tensor"], ["full", 4])
  for wrong, expected in {
    "--methods=": "with commas between, one of base, tensor",
    "--methods=base,lstm": "with commas between, one of base, tensor",
    "--attention_window=full,0": "with commas between, full, or an integer of at least 1",
  }.items():
    with pytest.raises(FlagError, match=f"^{wrong}: expected {expected}$"):
      parse(tmp_path, wrong)


def test_what_is_stored_is_what_was_given(tmp_path):
  given = parse(tmp_path, "--methods=tensor,base", "--attention_window=4,full")
  (tmp_path / "config.json").write_text(json.dumps({"task": "sketch", "flags": given}))
  assert parse(tmp_path) == given
  with pytest.raises(FlagError, match=r"--methods: .* started with tensor,base, this command has"):
    parse(tmp_path, "--methods=base")
  free = make(may_change=("methods",))
  assert parse(tmp_path, "--methods=base", command=free) == {**given, "methods": ["base"]}
  typed = shlex.split(flags.command_line(make(), tmp_path / "a b", given))
  assert typed[:4] == ["python", "-m", "train.sketch", f"--workdir={tmp_path / 'a b'}"]
  assert flags.parse(make(), ["sketch", *typed[3:]]) == given


def test_the_run_of_another_command_is_not_continued(tmp_path):
  (tmp_path / "config.json").write_text(json.dumps({"task": "language", "flags": {}}))
  with pytest.raises(RunError, match=r"config.json: of a run of train.language; use another"):
    parse(tmp_path)


def test_a_preset_may_be_left_out(tmp_path):
  presets = columns(("small", "large"), {"tokens": (1, 100), "methods": (("tensor",),) * 2})
  preset = Flag(Choice(tuple(presets)), None, "Sizes.")
  command = make({"preset": preset, **SIZES}, presets=presets)
  assert parse(tmp_path, command=command)["tokens"] == 4
  found = parse(tmp_path, "--preset=large", "--methods=base", command=command)
  assert (found["tokens"], found["methods"], found["preset"]) == (100, ["base"], "large")


def test_the_usual_preset_gives_the_defaults_of_the_help(capsys):
  presets = columns(("small", "large"), {"tokens": (77, 100)})
  command = make({"preset": flag_table.preset_flag(tuple(presets)), **SIZES}, presets=presets)
  assert flags.parse(command, ["sketch", "--help"], "Usage.") is None
  shown = capsys.readouterr().out
  assert shown.startswith("Usage.\n\nTask:\n  --workdir ")
  assert "shown here are small's. [one of small, large] (default: small)" in " ".join(shown.split())
  assert "(default: 77)" in shown


def test_the_error_of_a_field_names_its_flag(tmp_path):
  command = make(renamed={"size": "tokens"})
  with pytest.raises(FlagError, match=r"^--tokens: 13 is above --attention_window and not the wo"):
    parse(tmp_path, "--tokens=13", command=command)


@pytest.mark.parametrize("settings", [{"defaults": {"typo": 1}}, {"presets": {"a": {"typo": 1}}}])
def test_values_of_flags_that_do_not_exist_are_refused(settings):
  with pytest.raises(ValueError, match=r"^sketch: no flag is named typo$"):
    make(**settings)


def test_every_preset_of_a_table_has_a_value_in_every_row():
  with pytest.raises(ValueError, match="argument 2 is longer"):
    columns(("small", "large"), {"tokens": (1, 2, 3)})
