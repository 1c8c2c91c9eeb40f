"""Classes of videos as a task of the loop."""

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx

from data import example_batches
from data.video_batches import Missing
from tmem import interop
from tmem.image_models import PatchEncoder
from tmem.video_models import VideoClassifier, VideoConfig, VideoStream
from train import inference
from train.config import VideoRun
from train.health import Health
from train.task import HostBatch, Task
from train.video_data import TESTS, Clips
from train.video_losses import TOP, classification_quality, smoothed_loss
from train.video_plots import draw_confusion

SHOWN, MOST_TIMES = 400, 10  # clips with missing observations in a test, and showings of one clip


def model_config(
  model: VideoConfig, classes: int, encoder: PatchEncoder | None = None
) -> VideoConfig:
  """A model's configuration with the classes of the data, and for the features of an encoder."""
  model = dataclasses.replace(model, classes=classes)
  if encoder is None:
    return model
  return dataclasses.replace(
    model,
    image_size=encoder.config.image_size,
    patch_size=encoder.config.patch_size,
    frame_features=encoder.config.features,
  )


def before_last(
  model: VideoClassifier, batch: Mapping[str, jax.Array]
) -> tuple[jax.Array, VideoStream]:
  """The last frame of clips, and what they have carried up to it."""
  frames, stream = batch["frames"], model.init_stream(len(batch["frames"]))
  if frames.shape[1] > 1:
    _, stream = model.onward(frames[:, :-1], stream)
  return frames[:, -1], stream


def make_task(config: VideoRun, model: VideoConfig, clips: Clips) -> Task:
  """Describes a run on videos to the loop.

  Args:
    config: the run.
    model: the model, as from `model_config`.
    clips: as from `train.video_data.load_clips`.

  Returns:
    The task; its splits are "valid", whole, and the test clips with more and less of them missing.
  """
  data, run = config.data, config.run

  def train_batches() -> Any:
    make = clips.examples("train", Missing(frames=data.blank_frames), training=True)
    host = {"host_index": jax.process_index(), "host_count": jax.process_count()}
    return example_batches.train_batches(
      make, clips.count("train"), run.batch_size, run.seed, **host
    )

  def eval_batches(split: str, limit: int) -> Iterable[HostBatch]:
    missing, count = TESTS.get(split, Missing()), clips.count(split)
    make = clips.examples(split, missing)
    # What is missing is random: where clips are few, each is shown several times.
    is_random = missing.frames or (missing.area and clips.features is None)
    times = min(MOST_TIMES, -(-SHOWN // count)) if is_random else 1
    return example_batches.eval_batches(
      lambda index, rng: make(index % count, rng), times * count, run.batch_size, limit
    )

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
      "clips": {split: clips.count(split) for split in clips.splits},
      "frames": model.num_frames,
      "blank_frames": data.blank_frames,
      "encoder": data.encoder,
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
    watch=Health(
      lambda: next(iter(eval_batches("valid", 0))),
      lambda model, now: model.next_frame(*now),
      before_last,
    ),
  )
