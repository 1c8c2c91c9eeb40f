"""The clips of a run on videos: as pixels, or as a frozen encoder sees them."""

import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from data import moving_digits, video_clips, video_sources
from data.errors import DatasetError
from data.example_batches import MakeExample
from data.video_batches import ClipSet, Missing, clip_examples, feature_examples
from tmem.image_models import PatchEncoder
from tmem.video_models import VideoConfig
from train.config import VideoDataConfig
from train.errors import RunError
from train.report_columns import SHARES
from train.video_features import encoded, frame_encoder

TESTS = {
  "test": Missing(),
  **{f"test_blank_{percent}": Missing(frames=percent / 100) for percent in SHARES},
  **{f"test_covered_{percent}": Missing(area=percent / 100) for percent in SHARES},
}


class Features(NamedTuple):
  """What a frozen encoder makes of clips.

  Attributes:
    clips: by split, and of tests in which frames are covered: [frames, patches, features] each.
    empty: [patches, features], of a frame on which nothing is seen.
  """

  clips: Mapping[str, Sequence[np.ndarray]]
  empty: np.ndarray


class Clips(NamedTuple):
  """The clips of a run.

  Attributes:
    classes: names, by label.
    splits: "train", "valid" and "test".
    size: pixels along an edge of the frames that are shown.
    augment: whether a random part of a clip, turned left to right or not, is of the same class.
    features: what a frozen encoder makes of them; None: there is no encoder.
  """

  classes: tuple[str, ...]
  splits: dict[str, ClipSet]
  size: int
  augment: bool
  features: Features | None = None

  def count(self, split: str) -> int:
    """How many clips a split, or a test of `TESTS`, has."""
    return len(self.splits[_base(split)].clips)

  def examples(self, split: str, missing: Missing, training: bool = False) -> MakeExample:
    """Makes examples of a split, or of a test of `TESTS`, for `data.example_batches`."""
    shown = self.splits[_base(split)]
    if self.features is not None:
      found, empty = self.features
      own = found[split if split in found else _base(split)]
      return feature_examples(own, shown.labels, empty, missing)
    return clip_examples(shown, self.size, training and self.augment, missing)

  def fingerprint(self) -> dict[str, Any]:
    """What tells these clips from others, as JSON: the classes and every split's clips."""
    found: dict[str, Any] = {"classes": list(self.classes)}
    for split, shown in self.splits.items():
      # When a file was changed tells nothing: a copy of the same clip is the same clip.
      clips = [
        (key["name"], key.get("bytes"), int(of))
        for key, of in zip(shown.keys, shown.labels, strict=True)
      ]
      found[split] = {"clips": len(clips), "crc32": zlib.crc32(repr(clips).encode())}
    return found


def load_clips(config: VideoDataConfig, model: VideoConfig, encoder: PatchEncoder | None) -> Clips:
  """Finds and decodes the clips of a run, unless they have been decoded before.

  Args:
    config: which clips.
    model: how many frames of them, and how large.
    encoder: what sees the frames in place of the model, at the size of its own; None: nothing does.

  Raises:
    RunError: saying what is missing and what would be right.
  """
  size = model.image_size if encoder is None else encoder.config.image_size
  try:
    clips = _pixels(config, model.num_frames, size)
    if encoder is None:
      return clips
    return clips._replace(features=_features(clips, encoder))
  except DatasetError as error:
    raise RunError(str(error)) from error


def _pixels(config: VideoDataConfig, frames: int, size: int) -> Clips:
  if config.dataset == "digits":
    sets = {
      split: moving_digits.MovingDigits(split, frames, size) for split in moving_digits.SPLITS
    }
    splits = {split: ClipSet(found, found.labels, found.keys) for split, found in sets.items()}
    return Clips(moving_digits.CLASSES, splits, size, augment=False)
  if config.dataset == "ucf101":
    videos = video_sources.read_ucf101(config.data_dir, config.split, config.allow_missing)
  else:
    videos = video_sources.read_folder(config.data_path)
  stored = round(size * video_clips.ROOM)
  splits = {
    split: video_clips.decoded(clips, frames, stored) for split, clips in videos.clips.items()
  }
  return Clips(videos.classes, splits, size, augment=True)


def _features(clips: Clips, encoder: PatchEncoder) -> Features:
  shown = {split: Missing() for split in clips.splits}
  shown |= {split: missing for split, missing in TESTS.items() if missing.area}
  found = {
    split: encoded(
      encoder,
      clips.examples(split, missing),
      [[clips.size, missing.area, key] for key in clips.splits[_base(split)].keys],
    )
    for split, missing in shown.items()
  }
  nothing = np.zeros((1, clips.size, clips.size, encoder.config.input_channels), np.float32)
  return Features(found, frame_encoder(encoder, at_once=1)(nothing)[0])


def _base(split: str) -> str:
  return split.partition("_")[0]
