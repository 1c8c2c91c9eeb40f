"""Video files: which frames are chosen, sizes, and every kind of file that is none."""

import av
import numpy as np
import pytest

from data.errors import DatasetError
from data.video_file import read_frames, sample_frames


def levels_of(frames):
  return [float(frame.mean()) for frame in frames]


WIDE = (48, 32)


@pytest.fixture(scope="module")
def ramp(write_video, tmp_path_factory):
  return write_video(tmp_path_factory.mktemp("videos") / "ramp.avi", range(10, 210, 10), WIDE)


def test_frames_come_one_by_one_in_order_with_the_shorter_edge_asked_for(ramp):
  frames = list(read_frames(ramp, 16))
  assert {frame.shape for frame in frames} == {(16, 24, 3)}
  assert frames[0].dtype == np.uint8
  np.testing.assert_allclose(levels_of(frames), range(10, 210, 10), atol=4)


def test_a_sample_has_the_middles_of_equal_parts(ramp):
  frames = sample_frames(ramp, 4, 16)
  assert frames.shape == (4, 16, 24, 3)
  np.testing.assert_allclose(levels_of(frames), [30, 80, 130, 180], atol=4)  # 2, 7, 12, 17


def test_a_short_video_repeats_frames(write_video, tmp_path):
  path = write_video(tmp_path / "short.avi", [50, 150], WIDE)
  np.testing.assert_allclose(levels_of(sample_frames(path, 4, 8)), [50, 50, 150, 150], atol=4)


def test_the_longer_edge_may_be_the_upright_one(write_video, tmp_path):
  path = write_video(tmp_path / "tall.avi", [90], size=(32, 64))
  assert sample_frames(path, 1, 16).shape == (1, 32, 16, 3)


@pytest.mark.parametrize("name", ["count.mkv", "count.mp4", "count.mpg"])
def test_containers_of_many_kinds(write_video, tmp_path, name):
  codec = "mpeg1video" if name.endswith("mpg") else "mpeg4"
  path = write_video(tmp_path / name, range(10, 210, 10), WIDE, codec)
  np.testing.assert_allclose(levels_of(sample_frames(path, 2, 16)), [60, 160], atol=6)


def test_files_that_are_no_videos_are_refused_in_one_line(tmp_path, ramp):
  contents = {
    "empty.avi": b"",
    "text.avi": b"not a video at all" * 100,
    "header.avi": ramp.read_bytes()[:300],
    "half.avi": ramp.read_bytes()[: ramp.read_bytes().index(b"00dc") + 9],
    "whole_packets.avi": b"00dc".join(ramp.read_bytes().split(b"00dc")[:9]),
  }
  for name, content in contents.items():
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DatasetError, match=name) as caught:
      sample_frames(tmp_path / name, 2, 16)
    assert "\n" not in str(caught.value)
  with pytest.raises(DatasetError, match=r"whole_packets.avi: cut off, it has 7 of 20 frames"):
    sample_frames(tmp_path / "whole_packets.avi", 2, 16)
  with pytest.raises(DatasetError, match=r"absent.avi: not a video that can be read"):
    list(read_frames(tmp_path / "absent.avi", 16))


def test_a_container_that_knows_its_length_but_not_its_frames_is_seen_to_be_cut_off(
  write_video, tmp_path
):
  whole = write_video(tmp_path / "whole.mkv", [*range(10, 210, 2)], WIDE)
  cut = tmp_path / "cut.mkv"
  cut.write_bytes(whole.read_bytes()[: whole.stat().st_size * 2 // 3])
  with pytest.raises(DatasetError, match=r"cut.mkv: cut off, it has \d\.\d of \d\.\d seconds"):
    sample_frames(cut, 2, 16)


def test_frames_that_cannot_be_made_into_one_clip_are_refused(ramp, monkeypatch):
  sizes = iter([16, 8])

  def differ(frame, size):
    return np.zeros((next(sizes), 8, 3), np.uint8)

  monkeypatch.setattr("data.video_file._pixels", differ)
  with pytest.raises(DatasetError, match=r"ramp.avi: .*its frames differ in size"):
    sample_frames(ramp, 2, 8)


def test_sound_alone_is_no_video(tmp_path):
  path = tmp_path / "sound.mkv"
  with av.open(str(path), "w") as container:
    stream = container.add_stream("pcm_s16le", rate=8000)
    frame = av.AudioFrame.from_ndarray(np.zeros((1, 800), np.int16), layout="mono")
    frame.sample_rate = 8000
    container.mux(stream.encode(frame))
    container.mux(stream.encode())
  with pytest.raises(DatasetError, match="it has no pictures"):
    sample_frames(path, 2, 16)
