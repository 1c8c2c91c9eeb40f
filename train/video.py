"""Trains a classifier of videos, evaluates it, or lets it watch a video.

  python -m train.video --workdir=runs/digits
  python -m train.video --dataset=ucf101 --data_dir=DIR --method=joint --workdir=runs/actions
  python -m train.video --encoder=runs/birds --workdir=runs/frozen
  python -m train.video --workdir=runs/actions --mode=eval
  python -m train.video --workdir=runs/actions --mode=online --input=video.mp4

The same command again resumes a run that was stopped. A flag overrides the preset.
"""

from collections.abc import Sequence

from train import (
  cli,
  dry_run,
  flags,
  inference,
  loop,
  outputs,
  processes,
  result,
  same_data,
  video_task,
  watching,
)
from train.config import VideoRun
from train.task import Task
from train.video_data import TESTS, load_clips
from train.video_features import encoder_of, keep_encoder
from train.video_flags import COMMAND

SPLITS = ("valid", *TESTS)


def main(argv: Sequence[str]) -> None:
  """Runs the command.

  Args:
    argv: the command line, program name first.
  """
  config = flags.parse(COMMAND, argv, __doc__)
  if config is not None:
    modes = {"train": train, "eval": evaluate, "online": watching.watch}
    if config.mode == "online" or config.run.dry_run:
      processes.refuse_many("--dry_run" if config.run.dry_run else "--mode=online")
    (plan if config.run.dry_run else modes[config.mode])(config)


def plan(config: VideoRun) -> None:
  """Says what training would need."""

  def make_task(config: VideoRun) -> Task:
    encoder = encoder_of(config.run.workdir, config.data.encoder)
    clips = load_clips(config.data, config.model, encoder)
    model = video_task.model_config(config.model, len(clips.classes), encoder)
    return video_task.make_task(config, model, clips)

  dry_run.show(config, make_task)


def train(config: VideoRun) -> None:
  """Trains to the end, or says that this has been done."""
  workdir = config.run.workdir
  if result.is_finished(workdir, SPLITS):
    return
  outputs.make_workdir(workdir)
  encoder = encoder_of(workdir, config.data.encoder)
  clips = load_clips(config.data, config.model, encoder)
  model = video_task.model_config(config.model, len(clips.classes), encoder)
  data, dataset, source = clips.fingerprint(), config.data.dataset, config.run.init_from
  if source is not None:
    same_data.check(outputs.run_of(source), dataset, data, ("classes",))
  record = {
    "task": "video",
    "command": flags.command_line(COMMAND, workdir, config.flags),
    "flags": config.flags,
    "model": model.to_dict(),
    "data": same_data.check(workdir, dataset, data),
    "versions": result.versions(),
  }
  task = video_task.make_task(config, model, clips)
  keep_encoder(workdir, encoder)
  loop.train(task, config.run, config.optim, record)


def evaluate(config: VideoRun) -> None:
  """Evaluates on whole splits, prints that and writes it to the workdir."""
  encoder = encoder_of(config.run.workdir, config.data.encoder)
  clips = load_clips(config.data, config.model, encoder)
  same_data.check(config.run.workdir, config.data.dataset, clips.fingerprint(), ("classes",))
  model = video_task.model_config(config.model, len(clips.classes), encoder)
  inference.evaluate(video_task.make_task(config, model, clips), config.run, "eval")


if __name__ == "__main__":
  cli.run(main, can_share=True)
