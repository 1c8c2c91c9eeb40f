"""What the report of the diagnostic suite tells its reader to run."""

import shlex
from pathlib import Path

import pytest

from train import diagnostics_report, flags
from train.diagnostics_flags import COMMAND
from train.diagnostics_presets import LONGER


@pytest.mark.parametrize("experiment", LONGER)
def test_the_report_names_longer_runs_that_can_be_typed(experiment):
  given = {"preset": "cpu", "task": "all", "seeds": 3}
  *_, what, command = diagnostics_report._commands(experiment, Path("runs/suite"), given)
  assert what == LONGER[experiment][0]
  words = shlex.split(command.strip("`\n"))
  config = flags.parse(COMMAND, words[2:])
  assert {cell.experiment for cell in config.cells} == {experiment}
  steps = sum(steps for _, steps in LONGER[experiment][1]["curriculum"])
  assert {cell.optim.steps for cell in config.cells} == {steps}


def test_what_was_asked_for_here_is_no_size_of_the_paper():
  given = {"preset": "cpu", "task": "all", "features": 16, "curriculum": ((5, 5),), "seeds": 2}
  own, _, paper, _, longer = diagnostics_report._commands("occlusion", Path("suite"), given)
  assert "--features=16" in own
  assert "--curriculum=5:5" in own
  assert paper.split()[-3:-1] == ["--task=occlusion", "--seeds=2"]
  assert "--curriculum=6:1200" in longer
  assert "features" not in longer
