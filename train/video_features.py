"""Clips as a frozen encoder of images sees them, computed once and kept in the data cache."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from data.example_batches import MakeExample, stacked
from data.stored_arrays import StoredArrays, stored_arrays
from tmem import interop
from tmem.image_models import PatchEncoder
from tmem.patches import patchify
from tmem.stream_file import fingerprint
from train import inference, outputs
from train.errors import FlagError

FRAMES = 64  # encoded at once


def load_encoder(run: Path, model: str = outputs.MODEL) -> PatchEncoder:
  """The encoder of a run of `train.image`.

  Args:
    run: folder of the run.
    model: folder of the model in it.

  Raises:
    FlagError: if there is no such model.
  """
  try:
    found = interop.load_model(run / model)
  except (FileNotFoundError, ValueError) as error:
    raise FlagError(f"--encoder: {error}") from error
  if not isinstance(found, PatchEncoder):
    raise FlagError(f"--encoder: the model in {run} is no encoder of images")
  return found


def frame_encoder(
  encoder: PatchEncoder, at_once: int = FRAMES
) -> Callable[[np.ndarray], np.ndarray]:
  """A function from frames to the features of their patches.

  Args:
    encoder: the encoder.
    at_once: frames that are worked on together.

  Returns:
    `encode(frames)`: [n, image_size, image_size, channels], normalised, to
    [n, patches, features] float32.
  """

  def patches_of(model: PatchEncoder, frames: np.ndarray) -> np.ndarray:
    return model.encode_patches(patchify(frames, model.config.patch_size))[1]

  run = inference.compiled(encoder, patches_of)

  def encode(frames: np.ndarray) -> np.ndarray:
    parts = []
    for start in range(0, len(frames), at_once):  # padded, so that one program does
      part = frames[start : start + at_once]
      padded = np.pad(part, [(0, at_once - len(part)), *[(0, 0)] * (frames.ndim - 1)])
      parts.append(np.asarray(run(padded), np.float32)[: len(part)])
    return np.concatenate(parts)

  return encode


def encoded(
  encoder: PatchEncoder, make: MakeExample, keys: Sequence[object], seed: int
) -> StoredArrays:
  """The features of clips.

  Args:
    encoder: the encoder.
    make: makes examples with "frames", see `data.video_batches.clip_examples`.
    keys: what each example is made from, as JSON values.
    seed: what is random in example i follows from it and i, as in `data.example_batches`.

  Returns:
    Of each example, [frames, patches, features] float16.

  Raises:
    DatasetError: if there is no room for them.
  """
  encode = frame_encoder(encoder)

  def made(indices: Sequence[int]) -> Iterable[np.ndarray]:
    clips = stacked([make(i, np.random.default_rng((seed, i))) for i in indices])["frames"]
    features = encode(clips.reshape(-1, *clips.shape[2:]))
    yield from features.reshape(*clips.shape[:2], *features.shape[1:]).astype(np.float16)

  name = fingerprint(encoder)
  return stored_arrays("video_features", [[name, key] for key in keys], made)[0]
