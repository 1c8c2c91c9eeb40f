"""Trains a masked autoencoder of images, or evaluates it.

  python -m train.image --workdir=runs/photographs
  python -m train.image --dataset=cub --data_dir=DIR --method=base --workdir=runs/birds
  python -m train.image --workdir=runs/birds --mode=eval

The same command again resumes a run that was stopped. A flag overrides the preset.
"""

from collections.abc import Sequence

from train import cli, dry_run, flags, image_task, inference, loop, outputs, result, same_data
from train.config import ImageRun
from train.image_flags import COMMAND
from train.task import Task

SPLITS = ("valid", *image_task.RATIOS)


def main(argv: Sequence[str]) -> None:
  """Runs the command.

  Args:
    argv: the command line, program name first.
  """
  config = flags.parse(COMMAND, argv, __doc__)
  if config is not None:
    (plan if config.run.dry_run else {"train": train, "eval": evaluate}[config.mode])(config)


def plan(config: ImageRun) -> None:
  """Says what training would need."""

  def make_task(config: ImageRun) -> Task:
    return image_task.make_task(config, image_task.load_images(config.data))

  dry_run.show(config, make_task)


def train(config: ImageRun) -> None:
  """Trains to the end, or says that this has been done."""
  workdir = config.run.workdir
  if result.is_finished(workdir, SPLITS):
    return
  outputs.make_workdir(workdir)
  images = image_task.load_images(config.data)
  record = {
    "task": "image",
    "command": flags.command_line(COMMAND, workdir, config.flags),
    "flags": config.flags,
    "model": config.model.to_dict(),
    "data": same_data.check(workdir, config.data.dataset, image_task.fingerprint(images)),
    "versions": result.versions(),
  }
  loop.train(image_task.make_task(config, images), config.run, config.optim, record)


def evaluate(config: ImageRun) -> None:
  """Evaluates on whole splits, prints that and writes it to the workdir."""
  images = image_task.load_images(config.data)
  same_data.check(config.run.workdir, config.data.dataset, image_task.fingerprint(images))
  task = image_task.make_task(config, images)
  inference.evaluate(task, config.run, "eval")


if __name__ == "__main__":
  cli.run(main, can_share=True)
