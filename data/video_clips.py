"""The clips of a split, decoded once and kept in the data cache."""

import logging
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from data.errors import DatasetError
from data.stored_arrays import StoredArrays, stored_arrays
from data.video_file import sample_frames
from data.video_sources import Clip

_log = logging.getLogger(__name__)

ROOM = 8 / 7  # of the stored edge to the one that models see, for crops


class Decoded(NamedTuple):
  """Clips that could be decoded.

  Attributes:
    frames: [frames, height, width, 3] uint8 each.
    labels: index of each one's class.
    keys: of each, a JSON value that changes when it does.
  """

  frames: StoredArrays
  labels: tuple[int, ...]
  keys: tuple[list, ...]


def decoded(clips: Sequence[Clip], frames: int, size: int) -> Decoded:
  """Decodes clips, or reads what has been decoded before.

  A warning counts the files that cannot be read and names the first.

  Args:
    clips: the files, all of them there.
    frames: of each, at equal distances.
    size: pixels along their shorter edge.

  Returns:
    Those that can be read, in order.

  Raises:
    DatasetError: if none can, or there is no room for them.
  """

  def make(indices: Sequence[int]) -> Iterable[np.ndarray | DatasetError]:
    with ThreadPoolExecutor(os.cpu_count()) as pool:
      yield from pool.map(_frames_or_reason, [(clips[i], frames, size) for i in indices])

  keys = [[*_identity(clip), frames, size] for clip in clips]
  arrays, problems = stored_arrays("videos", keys, make)
  if problems:
    first = next(iter(problems.values()))
    if len(problems) == len(clips):
      raise DatasetError(f"none of {len(clips)} videos can be read; the first: {first}")
    _log.warning("skipped %d of %d videos; the first: %s", len(problems), len(clips), first)
  kept = [index for index in range(len(clips)) if index not in problems]
  return Decoded(arrays, tuple(clips[i].label for i in kept), tuple(keys[i] for i in kept))


def _frames_or_reason(job: tuple[Clip, int, int]) -> np.ndarray | DatasetError:
  clip, frames, size = job
  try:
    return sample_frames(clip.path, frames, size)
  except DatasetError as error:
    return error


def _identity(clip: Clip) -> list:
  """What changes when the file does."""
  stat = clip.path.stat()
  return [f"{clip.path.parent.name}/{clip.path.name}", stat.st_size, stat.st_mtime_ns]
