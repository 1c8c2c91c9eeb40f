"""What a trained classifier says of a video while it watches: a class after every frame."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np
from flax import nnx

from data.errors import DatasetError
from data.image_crops import middle_view, normalised, part_of
from data.video_clips import ROOM
from data.video_file import read_frames
from tmem.video_models import VideoClassifier, VideoConfig
from train import inference, outputs
from train.config import VideoRun
from train.errors import RunError
from train.sharding import make_mesh
from train.video_features import frame_encoder, load_encoder


def watch(config: VideoRun) -> None:
  """Prints the likeliest class after every frame of a video, as it is decoded.

  Time per frame and memory do not depend on the video's length.

  Args:
    config: the run; in `input` the file, and in `every` how many frames to go on by.

  Raises:
    RunError: if the file cannot be read, or there is no trained model.
  """
  model, classes = read_trained(config)
  try:
    for index, chances in enumerate(told(model, _frames(config, model.config))):
      best = int(chances.argmax())
      frame = index * config.every
      print(f"frame {frame}: {classes[best]} {chances[best]:.3f}", flush=True)
  except DatasetError as error:
    raise RunError(f"--input: {error}") from error


def told(model: VideoClassifier, frames: Iterator[np.ndarray]) -> Iterator[np.ndarray]:
  """Probabilities of the classes after every frame.

  Args:
    model: the classifier.
    frames: of `model.config.frame_shape`, float32.

  Yields:
    [classes] float32.
  """

  def step(model, frame, stream):
    logits, stream = model.onward(frame[None, None], stream)
    return jax.nn.softmax(logits[0, 0]), stream

  step, stream = inference.compiled(model, step), model.init_stream(1)
  for frame in frames:
    chances, stream = step(frame, stream)
    yield np.asarray(chances)


def read_trained(config: VideoRun) -> tuple[VideoClassifier, list[str]]:
  """The trained model of a run and the names of its classes.

  Raises:
    RunError: naming the file that is missing or broken, or if there is no checkpoint.
  """
  path = config.run.workdir / outputs.CONFIG
  record = outputs.read_json(path) or {}
  try:
    model = VideoConfig.from_dict(record["model"])
    classes = [str(name) for name in record["data"]["classes"]]
  except (KeyError, TypeError, ValueError) as error:
    raise RunError(f"{path}: broken ({error}); restore it or use another --workdir") from error
  if len(classes) != model.classes:
    raise RunError(f"{path}: names {len(classes)} classes, its model tells {model.classes}")
  graphdef, params, _ = inference.restore_trained(
    lambda rngs: VideoClassifier(model, rngs=rngs), config.run, make_mesh((1, 1, 1), 1)
  )
  return nnx.merge(graphdef, params), classes


def _frames(config: VideoRun, model: VideoConfig) -> Iterator[np.ndarray]:
  """Frames of the video, as the model takes them."""
  size, encode = model.image_size, lambda frames: frames
  if model.frame_features is not None:
    encode = frame_encoder(load_encoder(config.run.workdir, outputs.ENCODER), at_once=1)
  frames = read_frames(Path(config.input), round(size * ROOM))
  for pixels in itertools.islice(frames, 0, None, config.every):
    frame = normalised(part_of(pixels, middle_view(*pixels.shape[:2]), size))
    yield encode(frame[None])[0]
