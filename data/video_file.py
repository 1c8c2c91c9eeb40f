"""Video files of any kind as RGB frames."""

from collections.abc import Iterator
from pathlib import Path

import av
import numpy as np

from data.errors import DatasetError

COMPLETE = 0.95  # of the frames or the time that a file says it has; with less it is cut off


def read_frames(path: Path, size: int) -> Iterator[np.ndarray]:
  """Decodes a video frame by frame, at constant memory.

  Args:
    path: the file: whatever FFmpeg reads.
    size: pixels along the shorter edge; the longer one keeps the ratio.

  Yields:
    [height, width, 3] uint8.

  Raises:
    DatasetError: if the file is no video, has no frame or is damaged; also if it has been cut off,
      as far as its head says how many frames it should have, or how long it should be.
  """
  for _, frame in _decoded(path, size):
    yield frame


def sample_frames(path: Path, count: int, size: int) -> np.ndarray:
  """Frames at equal distances: the middles of `count` equal parts of a video.

  A video with fewer frames has some of them several times.

  Args:
    path: as in `read_frames`.
    count: frames.
    size: as in `read_frames`.

  Returns:
    [count, height, width, 3] uint8.

  Raises:
    DatasetError: as `read_frames`.
  """
  expected = _frames_in_header(path)
  chosen, found = _pick(path, _middles(expected, count), size)
  if found != expected:  # files may not know how many they have
    chosen, _ = _pick(path, _middles(found, count), size)
  if len({frame.shape for frame in chosen}) > 1:
    raise DatasetError(f"{path}: not a video that can be read (its frames differ in size)")
  return np.stack(chosen)


def _middles(frames: int, count: int) -> list[int]:
  return [int((part + 0.5) * frames / count) for part in range(count)]


def _pick(path: Path, wanted: list[int], size: int) -> tuple[list[np.ndarray], int]:
  """`(frames, how many there are)`: the wanted ones, in order, as far as they exist."""
  found, total = {}, 0
  for index, frame in _decoded(path, size, frozenset(wanted)):
    total = index + 1
    if frame is not None:
      found[index] = frame
  return [found[index] for index in wanted if index in found], total


def _frames_in_header(path: Path) -> int:
  with _opened(path) as container:
    return container.streams.video[0].frames


def _opened(path: Path) -> av.container.InputContainer:
  try:
    container = av.open(str(path))
  except (av.error.FFmpegError, OSError, ValueError) as error:
    raise _refused(path, error) from error
  if not container.streams.video:
    container.close()
    raise DatasetError(f"{path}: not a video that can be read (it has no pictures)")
  return container


def _decoded(
  path: Path, size: int, wanted: frozenset[int] | None = None
) -> Iterator[tuple[int, np.ndarray | None]]:
  """Every frame's index and its pixels; None in place of those of frames that are not wanted."""
  with _opened(path) as container:
    stream = container.streams.video[0]
    total, end = 0, None
    try:
      for index, frame in enumerate(container.decode(stream)):
        total, end = index + 1, frame.time
        yield index, _pixels(frame, size) if wanted is None or index in wanted else None
    except (av.error.FFmpegError, OSError, ValueError) as error:
      raise _refused(path, error) from error
    if not total:
      raise DatasetError(f"{path}: not a video that can be read (it has no frames)")
    if total < COMPLETE * stream.frames:
      raise DatasetError(f"{path}: cut off, it has {total} of {stream.frames} frames")
    length = _seconds(container)
    # The last frame begins when all but its own time has passed.
    if length and end is not None and total > 1 and end * total / (total - 1) < COMPLETE * length:
      raise DatasetError(f"{path}: cut off, it has {end:.1f} of {length:.1f} seconds")


def _seconds(container: av.container.InputContainer) -> float | None:
  """How long a file says its pictures last, from its first one on; None: it does not say."""
  stream = container.streams.video[0]
  if stream.duration is not None:
    return float(stream.duration * stream.time_base)
  if container.duration is None or len(container.streams) > 1:  # sound may last longer
    return None
  return container.duration / av.time_base


def _pixels(frame: av.VideoFrame, size: int) -> np.ndarray:
  edge = min(frame.width, frame.height)
  width, height = (max(1, round(n * size / edge)) for n in (frame.width, frame.height))
  shrunk = frame.reformat(width=width, height=height, format="rgb24", interpolation="AREA")
  return np.ascontiguousarray(np.rot90(shrunk.to_ndarray(), frame.rotation // 90))


def _refused(path: Path, error: Exception) -> DatasetError:
  reason = " ".join(str(getattr(error, "strerror", None) or error).split())
  return DatasetError(f"{path}: not a video that can be read ({reason or type(error).__name__})")
