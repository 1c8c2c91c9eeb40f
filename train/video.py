"""Trains a classifier of videos, evaluates it, or lets it watch a video.

  python -m train.video --workdir=runs/digits
  python -m train.video --dataset=ucf101 --data_dir=DIR --method=joint --workdir=runs/actions
  python -m train.video --workdir=runs/actions --mode=eval
  python -m train.video --workdir=runs/actions --mode=online --input=video.mp4

The same command again resumes a run that was stopped. A flag overrides the preset.
"""

from collections.abc import Sequence

from train import cli, flags, inference, loop, outputs, result, video_task, watching
from train.config import VideoRun
from train.video_flags import COMMAND

SPLITS = ("valid", *video_task.TESTS)


def main(argv: Sequence[str]) -> None:
  """Runs the command.

  Args:
    argv: the command line, program name first.
  """
  config = flags.parse(COMMAND, argv, __doc__)
  if config is not None:
    {"train": train, "eval": evaluate, "online": watching.watch}[config.mode](config)


def train(config: VideoRun) -> None:
  """Trains to the end, or says that this has been done."""
  workdir = config.run.workdir
  if result.is_finished(workdir, SPLITS):
    return
  outputs.make_workdir(workdir)
  clips = video_task.load_clips(config.data, config.model)
  record = {
    "task": "video",
    "command": flags.command_line(COMMAND, workdir, config.flags),
    "flags": config.flags,
    "model": video_task.model_config(config, clips).to_dict(),
    "classes": list(clips.classes),
    "versions": result.versions(),
  }
  loop.train(video_task.make_task(config, clips), config.run, config.optim, record)


def evaluate(config: VideoRun) -> None:
  """Evaluates on whole splits, prints that and writes it to the workdir."""
  task = video_task.make_task(config, video_task.load_clips(config.data, config.model))
  inference.evaluate(task, config.run, "eval")


if __name__ == "__main__":
  cli.run(main)
