"""Classes of videos as a task of the loop."""

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import nnx

from data import example_batches, moving_digits, video_clips, video_sources
from data.errors import DatasetError
from data.video_batches import Missing, clip_examples
from tmem import interop
from tmem.video_models import VideoClassifier, VideoConfig
from train import inference
from train.config import VideoDataConfig, VideoRun
from train.errors import RunError
from train.report_columns import SHARES
from train.task import HostBatch, Task
from train.video_losses import TOP, classification_quality, smoothed_loss
from train.video_plots import draw_confusion

TESTS = {
  "test": Missing(),
  **{f"test_blank_{percent}": Missing(frames=percent / 100) for percent in SHARES},
  **{f"test_covered_{percent}": Missing(area=percent / 100) for percent in SHARES},
}
MISSING_SEED = 20_260_527  # of evaluations, the same for every model


class ClipSet(NamedTuple):
  """The clips of a split.

  Attributes:
    clips: [frames, height, width, 3] uint8 each.
    labels: index of each one's class.
  """

  clips: Sequence[np.ndarray]
  labels: Sequence[int]


class Clips(NamedTuple):
  """The clips of a run.

  Attributes:
    classes: names, by label.
    splits: "train", "valid" and "test".
    augment: whether a random part of a clip, turned left to right or not, is of the same class.
  """

  classes: tuple[str, ...]
  splits: dict[str, ClipSet]
  augment: bool


def load_clips(config: VideoDataConfig, model: VideoConfig) -> Clips:
  """Finds and decodes the clips of a run, unless they have been decoded before.

  Raises:
    RunError: saying what is missing and what would be right.
  """
  if config.dataset == "digits":
    sets = {
      split: moving_digits.MovingDigits(split, model.num_frames, model.image_size)
      for split in moving_digits.SPLITS
    }
    splits = {split: ClipSet(found, found.labels) for split, found in sets.items()}
    return Clips(moving_digits.CLASSES, splits, augment=False)
  try:
    if config.dataset == "ucf101":
      videos = video_sources.read_ucf101(config.data_dir, config.split, config.allow_missing)
    else:
      videos = video_sources.read_folder(config.data_path)
    size = round(model.image_size * video_clips.ROOM)
    splits = {
      split: ClipSet(*video_clips.decoded(clips, model.num_frames, size))
      for split, clips in videos.clips.items()
    }
  except DatasetError as error:
    raise RunError(str(error)) from error
  return Clips(videos.classes, splits, augment=True)


def model_config(config: VideoRun, clips: Clips) -> VideoConfig:
  """The model's configuration with the classes of the data."""
  return dataclasses.replace(config.model, classes=len(clips.classes))


def make_task(config: VideoRun, clips: Clips) -> Task:
  """Describes a run on videos to the loop.

  Args:
    config: the run.
    clips: as from `load_clips`.

  Returns:
    The task; its splits are "valid", whole, and the test clips with more and less of them missing.
  """
  model, data, run = model_config(config, clips), config.data, config.run
  size = model.image_size

  def train_batches() -> Any:
    shown = clips.splits["train"]
    make = clip_examples(*shown, size, clips.augment, Missing(frames=data.blank_frames))
    host = {"host_index": jax.process_index(), "host_count": jax.process_count()}
    return example_batches.train_batches(make, len(shown.clips), run.batch_size, run.seed, **host)

  def eval_batches(split: str, limit: int) -> Iterable[HostBatch]:
    shown = clips.splits[split.partition("_")[0]]
    make = clip_examples(*shown, size, False, TESTS.get(split, Missing()))
    count = min(limit or len(shown.clips), len(shown.clips))
    return example_batches.eval_batches(make, count, run.batch_size, MISSING_SEED)

  def metrics(means: dict[str, float], split: str) -> dict[str, float]:
    del split
    kept = ("loss", "top1", "top5") if model.classes > TOP else ("loss", "top1")
    return {name: means[name] for name in kept} | {"clips": means["weight"]}

  def figures(folder: Path, trained: nnx.Module) -> None:
    predict = inference.compiled(trained, lambda model, frames: model(frames).argmax(axis=-1))
    told, labels = [], []
    for batch in eval_batches("test", 0):
      told += np.asarray(predict(batch["frames"]))[batch["mask"]].tolist()
      labels += batch["label"][batch["mask"]].tolist()
    draw_confusion(clips.classes, labels, told, folder)

  def describe(trained: nnx.Module) -> dict[str, Any]:
    return {
      "method": model.method,
      "dataset": data.dataset,
      "classes": model.classes,
      "clips": {split: len(found.clips) for split, found in clips.splits.items()},
      "frames": model.num_frames,
      "blank_frames": data.blank_frames,
      "causal": True,
      "state_bytes": trained.stream_bytes(),
      "fusion_gates": trained.fusion_gates(),
    }

  return Task(
    name="video",
    item="frames",
    count_items=lambda batch: batch["frames"].shape[0] * batch["frames"].shape[1],
    splits=("valid", *TESTS),
    protocol="middle crops, missing observations of a fixed seed",
    build=lambda rngs: VideoClassifier(model, rngs=rngs),
    loss_fn=smoothed_loss(data.label_smoothing),
    eval_loss_fn=classification_quality,
    train_batches=train_batches,
    eval_batches=eval_batches,
    metrics=metrics,
    shown=("loss", "top1"),
    describe=describe,
    export=interop.save_model,
    figures=figures,
  )
