"""The clips of a split, decoded once and kept in the data cache."""

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from data.errors import DatasetError
from data.files import warn_of_skipped
from data.stored_arrays import stored_arrays
from data.video_batches import ClipSet
from data.video_file import sample_frames
from data.video_sources import Clip

VERSION = 1  # of how frames are chosen and shrunk
ROOM = 8 / 7  # of the stored edge to the one that models see, for crops


def decoded(clips: Sequence[Clip], frames: int, size: int) -> ClipSet:
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

  how = {"version": VERSION, "frames": frames, "edge": size}
  keys = [_identity(clip) | how for clip in clips]
  arrays, problems = stored_arrays("videos", keys, make)
  warn_of_skipped("videos", problems, len(clips))
  kept = [index for index in range(len(clips)) if index not in problems]
  return ClipSet(arrays, tuple(clips[i].label for i in kept), tuple(keys[i] for i in kept))


def _frames_or_reason(job: tuple[Clip, int, int]) -> np.ndarray | DatasetError:
  clip, frames, size = job
  try:
    return sample_frames(clip.path, frames, size)
  except DatasetError as error:
    return error


def _identity(clip: Clip) -> dict[str, Any]:
  """What changes when the file does."""
  stat = clip.path.stat()
  name = f"{clip.path.parent.name}/{clip.path.name}"
  return {"name": name, "bytes": stat.st_size, "modified": stat.st_mtime_ns}
