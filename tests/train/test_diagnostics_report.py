"""What the report of the diagnostic suite tells its reader to run."""

import shlex
from pathlib import Path

import pytest

from train import diagnostics_report, flags
from train.diagnostics_flags import COMMAND
from train.diagnostics_presets import LONGER, SETTINGS
from train.experiments import EXPERIMENTS


@pytest.mark.parametrize("experiment", LONGER)
def test_the_report_names_longer_runs_that_can_be_typed(experiment, tmp_path):
  (tmp_path / "cells").mkdir()
  given = {"preset": "cpu", "task": "all", "seeds": 3}
  lines = diagnostics_report._commands(experiment, tmp_path, given)
  for longer in LONGER[experiment]:
    command = lines[lines.index(longer.what) + 1]
    config = flags.parse(COMMAND, shlex.split(command.strip("`\n"))[2:])
    assert {cell.experiment for cell in config.cells} == {experiment}
    steps = sum(steps for _, steps in longer.flags["curriculum"])
    assert {cell.optim.steps for cell in config.cells} == {steps}
    source = str(tmp_path) if longer.goes_on else None
    assert {cell.init_from for cell in config.cells} == {source}
    assert config.preset == longer.flags.get("preset", "cpu")


def test_a_run_that_goes_on_has_the_sizes_of_the_suite_it_starts_from(tmp_path):
  (tmp_path / "cells").mkdir()
  given = {"preset": "cpu", "task": "coordinate_binding", "features": 32, "noise": (0.2,)}
  (longer,) = (longer for longer in LONGER["coordinate_binding"] if longer.goes_on)

  def lines(**more):
    return diagnostics_report._commands("coordinate_binding", tmp_path, {**given, **more})

  command = lines()[lines().index(longer.what) + 1]
  config = flags.parse(COMMAND, shlex.split(command.strip("`\n"))[2:])
  assert {cell.model.features for cell in config.cells} == {32}
  assert {cell.training.stages[-1][0].noise for cell in config.cells} == {0.05}
  own = EXPERIMENTS["coordinate_binding"](SETTINGS["cpu"]["coordinate_binding"])
  assert {cell.name for cell in config.cells} <= {cell.name for cell in own}
  for more in ({"methods": ("base",)}, {"attention_window": ("full",)}):
    assert longer.what not in lines(**more)
  assert longer.what in lines(methods=("base", "tensor"), attention_window=("full", 4))


def test_what_was_asked_for_here_is_no_size_of_the_paper():
  given = {"preset": "cpu", "task": "all", "features": 16, "curriculum": ((5, 5),), "seeds": 2}
  own, _, paper, _, longer = diagnostics_report._commands("occlusion", Path("suite"), given)
  assert "--features=16" in own
  assert "--curriculum=5:5" in own
  assert paper.split()[-3:-1] == ["--task=occlusion", "--seeds=2"]
  assert "--curriculum=6:1200" in longer
  assert "features" not in longer
