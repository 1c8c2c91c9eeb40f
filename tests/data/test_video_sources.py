"""Where videos are found: the official lists, folders, and what is missing or damaged."""

import shutil

import numpy as np
import pytest

from data import video_clips
from data.errors import DatasetError
from data.video_sources import Clip, read_folder, read_ucf101

CLASSES = ("Archery", "Punch", "Surfing")


def name_of(of, group, take):
  return f"{of}/v_{of}_g{group:02}_c{take:02}.avi"


@pytest.fixture
def ucf(tmp_path):
  """Three classes; groups 1 and 2 are for tests of the first split, 3 to 5 for training."""
  lists = tmp_path / "ucf101" / "ucfTrainTestlist"
  lists.mkdir(parents=True)
  (lists / "classInd.txt").write_text("".join(f"{i} {n}\r\n" for i, n in enumerate(CLASSES, 1)))
  for split in (1, 2):
    tests = (1, 2) if split == 1 else (4, 5)
    named = {"train": "", "test": ""}
    for label, of in enumerate(CLASSES, 1):
      for group in range(1, 6):
        for take in (1, 2):
          path = tmp_path / "ucf101" / "UCF-101" / name_of(of, group, take)
          path.parent.mkdir(parents=True, exist_ok=True)
          path.touch()
          of_split = "test" if group in tests else "train"
          number = f" {label}" if of_split == "train" else ""
          named[of_split] += f"{name_of(of, group, take)}{number}\n"
    for of_split, text in named.items():
      (lists / f"{of_split}list{split:02}.txt").write_text(text)
  return tmp_path / "ucf101"


def groups(clips):
  return {int(clip.path.stem.split("_g")[1][:2]) for clip in clips}


def test_the_official_split_is_kept_and_groups_stay_together(ucf):
  videos = read_ucf101(ucf, 1, allow_missing=False)
  assert videos.classes == CLASSES
  assert {split: len(clips) for split, clips in videos.clips.items()} == {
    "train": 12,
    "valid": 6,
    "test": 12,
  }
  assert groups(videos.clips["test"]) == {1, 2}
  assert groups(videos.clips["valid"]) == {3}
  assert groups(videos.clips["train"]) == {4, 5}
  for clips in videos.clips.values():
    assert all(clip.path.parent.name == CLASSES[clip.label] for clip in clips)
  second = read_ucf101(ucf.parent, 2, allow_missing=False)  # the folder above serves, too
  assert groups(second.clips["test"]) == {4, 5}


def test_absent_clips_are_counted_and_left_out_on_demand(ucf, caplog):
  shutil.rmtree(ucf / "UCF-101" / "Punch")
  (ucf / "UCF-101" / name_of("Surfing", 1, 2)).unlink()
  with pytest.raises(DatasetError, match=r"6 of 18 for train, 5 of 12 for test.*--allow_missing"):
    read_ucf101(ucf, 1, allow_missing=False)
  videos = read_ucf101(ucf, 1, allow_missing=True)
  assert "5 of 12 for test" in caplog.text
  assert videos.classes == ("Archery", "Surfing")
  assert len(videos.clips["test"]) == 7
  assert {clip.label for clip in videos.clips["test"]} == {0, 1}
  shutil.rmtree(ucf / "UCF-101")
  with pytest.raises(DatasetError, match="no videos for train"):
    read_ucf101(ucf, 1, allow_missing=True)


@pytest.mark.parametrize(
  ("file", "content", "message"),
  [
    ("classInd.txt", "1 Archery\n3 Punch\n", r"classInd.txt: line 2 is '3 Punch', expected '2 "),
    ("classInd.txt", "1 Archery\n2 Punch\n", r"trainlist01.txt: names the class Surfing"),
    ("trainlist01.txt", "", r"trainlist01.txt: empty"),
    ("testlist01.txt", "../../etc/passwd\n", r"testlist01.txt: line 1 is '../../etc/passwd'"),
    ("testlist01.txt", b"\xff\xfe\x00", r"testlist01.txt: not a list of text"),
    ("testlist01.txt", None, r"testlist01.txt: missing"),
  ],
)
def test_damaged_lists_are_named(ucf, file, content, message):
  path = ucf / "ucfTrainTestlist" / file
  if content is None:
    path.unlink()
  else:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
  with pytest.raises(DatasetError, match=message):
    read_ucf101(ucf, 1, allow_missing=True)


def test_no_folder_says_where_to_get_it(tmp_path):
  with pytest.raises(DatasetError, match=r"ucf101: needs --data_dir"):
    read_ucf101(None, 1, allow_missing=False)
  with pytest.raises(DatasetError, match=r"no folder ucfTrainTestlist there; download UCF101.rar"):
    read_ucf101(tmp_path, 1, allow_missing=False)


def test_folders_per_class(tmp_path):
  for of in ("run", "jump"):
    for index in range(30):
      path = tmp_path / of / "more" / f"{index:03}.MP4"
      path.parent.mkdir(parents=True, exist_ok=True)
      path.touch()
    (tmp_path / of / "notes.txt").touch()
  videos = read_folder(tmp_path)
  assert videos.classes == ("jump", "run")
  counts = {split: len(clips) for split, clips in videos.clips.items()}
  assert sum(counts.values()) == 60
  assert min(counts.values()) > 1
  (tmp_path / "run" / "more" / "000.MP4").unlink()
  again = read_folder(tmp_path)  # others stay in their split
  assert set(again.clips["test"]) <= set(videos.clips["test"])


def test_one_class_alone_is_refused(tmp_path):
  for name in "abcdefghijklmnop":
    (tmp_path / "all").mkdir(exist_ok=True)
    (tmp_path / "all" / f"{name}.avi").touch()
  with pytest.raises(DatasetError, match="one class for training, all, expected two or more"):
    read_folder(tmp_path)


def test_folders_may_have_their_own_split(tmp_path):
  for split, count in (("train", 3), ("test", 2)):
    for of in ("run", "jump"):
      for index in range(count):
        path = tmp_path / split / of / f"{index}.avi"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
  videos = read_folder(tmp_path)
  assert {split: len(clips) for split, clips in videos.clips.items()} == {
    "train": 4,
    "valid": 2,
    "test": 4,
  }
  shutil.rmtree(tmp_path / "test" / "jump")
  shutil.rmtree(tmp_path / "test" / "run")
  with pytest.raises(DatasetError, match="no videos for test"):
    read_folder(tmp_path)
  for absent in (None, "", tmp_path / "absent"):
    with pytest.raises(DatasetError, match="no such folder"):
      read_folder(absent)


def test_classes_for_tests_alone_are_left_out_and_said(tmp_path, caplog):
  for split, of in (("train", "run"), ("train", "walk"), ("test", "run"), ("test", "jump")):
    for index in range(2):
      path = tmp_path / split / of / f"{index}.avi"
      path.parent.mkdir(parents=True, exist_ok=True)
      path.touch()
  videos = read_folder(tmp_path)
  assert videos.classes == ("run", "walk")
  assert len(videos.clips["test"]) == 2
  assert "left out 2 of 4 videos for test" in caplog.text
  assert "as jump" in caplog.text


def test_clips_that_cannot_be_read_are_counted(tmp_path, caplog, monkeypatch):
  monkeypatch.setenv("TMEM_CACHE_DIR", str(tmp_path / "cache"))

  def frames(path, count, size):
    if "bad" in path.name:
      raise DatasetError(f"{path}: broken")
    return np.full((count, size, size, 3), int(path.stem), np.uint8)

  monkeypatch.setattr(video_clips, "sample_frames", frames)
  clips = [Clip(tmp_path / f"{name}.avi", label) for label, name in enumerate(["7", "bad", "9"])]
  for clip in clips:
    clip.path.touch()
  found = video_clips.decoded(clips, 2, 4)
  assert found.labels == (0, 2)
  assert [int(clip[0, 0, 0, 0]) for clip in found.clips] == [7, 9]
  assert found.clips[0].shape == (2, 4, 4, 3)
  assert caplog.messages[-1].startswith("skipped 1 of 3 videos; the first: ")
  with pytest.raises(DatasetError, match="none of 1 videos can be read"):
    video_clips.decoded(clips[1:2], 2, 4)
