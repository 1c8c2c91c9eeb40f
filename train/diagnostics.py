"""Diagnostic tasks that show when a persistent state helps, and when it does not.

  python -m train.diagnostics --workdir=runs/diagnostics
  python -m train.diagnostics --task=coordinate_binding --methods=base,tensor --workdir=runs/binding
  python -m train.diagnostics --preset=smoke --workdir=/tmp/smoke

The same command again goes on at the first cell that is not finished. A flag overrides the
preset, for every task; without it each task has its own value. On a CPU, `--jobs=2` and more use
the cores better than one process does.
"""

from collections.abc import Sequence

from train import cli, diagnostics_report, flags, outputs, result, sweep, workers
from train.diagnostics_flags import COMMAND
from train.errors import RunError


def main(argv: Sequence[str]) -> None:
  """Runs the suite and writes its report.

  Args:
    argv: the command line, program name first.

  Raises:
    RunError: if a cell failed; the report has the others.
  """
  config = flags.parse(COMMAND, argv, __doc__)
  if config is None:
    return
  outputs.make_workdir(config.workdir)
  if config.is_worker:
    sweep.run_cells(config.cells, config.workdir, config.preset, debug=config.debug)
    return
  record = {
    "task": COMMAND.name,
    "command": flags.command_line(COMMAND, config.workdir, config.flags),
    "flags": config.flags,
    "versions": result.versions(),
  }
  outputs.write_json(config.workdir / outputs.CONFIG, record)
  if config.jobs > 1:
    workers.run_workers("train.diagnostics", [*argv[1:], "--worker"], config.jobs)
  else:
    sweep.run_cells(config.cells, config.workdir, config.preset, debug=config.debug)
  outcomes = sweep.collect(config.cells, config.workdir)
  print(diagnostics_report.write(config.workdir, record, outcomes))
  failed = [outcome for outcome in outcomes if outcome.error is not None]
  if failed:
    raise RunError(
      f"{len(failed)} of {len(outcomes)} cells failed, the first with: {failed[0].error};"
      " the same command tries them again"
    )


if __name__ == "__main__":
  cli.run(main)
