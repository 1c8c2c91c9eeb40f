"""Clips as a frozen encoder of images sees them, computed once and kept in the data cache."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from data.example_batches import EVAL_SEED, MakeExample, stacked
from data.stored_arrays import StoredArrays, stored_arrays
from tmem import interop
from tmem.image_models import PatchEncoder
from tmem.patches import patchify
from tmem.stream_file import fingerprint
from train import inference, outputs
from train.errors import FlagError

FRAMES = 64  # encoded at once
VERSION = 1  # of how clips become features


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


def encoder_of(workdir: Path, run: str | None) -> PatchEncoder | None:
  """The encoder of a run of `train.video`: the copy that it keeps of the one it began with.

  Args:
    workdir: folder of the run.
    run: the run of `train.image` that it begins with; None: it has no encoder.

  Raises:
    FlagError: if there is no such model.
  """
  if run is None:
    return None
  has_begun = (workdir / outputs.CONFIG).is_file()
  return load_encoder(workdir, outputs.ENCODER) if has_begun else load_encoder(Path(run))


def keep_encoder(workdir: Path, encoder: PatchEncoder | None) -> None:
  """Copies the encoder that a run begins with into its folder; one process does."""
  has_begun = (workdir / outputs.CONFIG).is_file()
  if encoder is not None and not has_begun and jax.process_index() == 0:
    interop.save_model(workdir / outputs.ENCODER, encoder)


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


def encoded(encoder: PatchEncoder, make: MakeExample, keys: Sequence[Any]) -> StoredArrays:
  """The features of clips.

  Args:
    encoder: the encoder.
    make: makes examples with "frames", see `data.video_batches.clip_examples`.
    keys: what each example is made from, as JSON values. What is random in it is as in evaluations.

  Returns:
    Of each example, [frames, patches, features] float16.

  Raises:
    DatasetError: if there is no room for them.
  """
  encode = frame_encoder(encoder)

  def made(indices: Sequence[int]) -> Iterable[np.ndarray]:
    clips = stacked([make(i, np.random.default_rng((EVAL_SEED, i))) for i in indices])["frames"]
    features = encode(clips.reshape(-1, *clips.shape[2:]))
    yield from features.reshape(*clips.shape[:2], *features.shape[1:]).astype(np.float16)

  name = fingerprint(encoder)
  keys = [[VERSION, name, EVAL_SEED, index, key] for index, key in enumerate(keys)]
  return stored_arrays("video_features", keys, made)[0]
