"""Finds videos: where each data set has them, their classes, and how they are split."""

import itertools
import logging
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from data.errors import DatasetError
from data.files import files_below, is_for_tests

_log = logging.getLogger(__name__)

SPLITS = ("train", "test")
SUFFIXES = frozenset({
  ".3gp", ".avi", ".flv", ".gif", ".m2ts", ".m4v", ".mkv", ".mov", ".mp4", ".mpeg", ".mpg", ".mts",
  ".ogv", ".ts", ".webm", ".wmv",
})  # fmt: skip
VALID_EVERY = 10  # of a class's groups, the first one of so many is for validation
LISTS = "ucfTrainTestlist"
_TAKE = re.compile(r"(_g\d+)_c\d+$")  # v_Punch_g08_c05 is the fifth clip cut from video 8


class Clip(NamedTuple):
  """A video file.

  Attributes:
    path: the file.
    label: index of its class.
  """

  path: Path
  label: int


class Videos(NamedTuple):
  """The videos of a data set.

  Attributes:
    classes: names, by label.
    clips: by split: "train", "valid", "test".
  """

  classes: tuple[str, ...]
  clips: dict[str, list[Clip]]


def read_ucf101(data_dir: str | Path | None, split: int, allow_missing: bool) -> Videos:
  """UCF-101 in its official layout.

  Args:
    data_dir: the folder with `UCF-101/<Class>/*.avi` and `ucfTrainTestlist/`, or one that has such
      a folder `ucf101`.
    split: which of the official splits, 1 to 3.
    allow_missing: whether to go on without clips that the lists name and that are not there;
      classes of which none is there for training are then left out.

  Raises:
    DatasetError: if a list is missing or damaged, or clips are.
  """
  folder = _ucf_folder(data_dir)
  lists = {name: folder / LISTS / f"{name}list{split:02}.txt" for name in SPLITS}
  classes = _class_names(folder / LISTS / "classInd.txt")
  named = {
    name: [(folder / "UCF-101" / line, line.partition("/")[0]) for line in _listed(path)]
    for name, path in lists.items()
  }
  for name, clips in named.items():
    unknown = sorted({of for _, of in clips} - set(classes))
    if unknown:
      raise DatasetError(f"{lists[name]}: names the class {unknown[0]}, which classInd.txt has not")
  there = {
    name: [(path, of) for path, of in clips if path.is_file()] for name, clips in named.items()
  }
  absent = [path for name in SPLITS for path, _ in named[name] if not path.is_file()]
  if absent:
    counts = ", ".join(
      f"{len(named[name]) - len(there[name])} of {len(named[name])} for {name}" for name in SPLITS
    )
    message = f"{folder}: clips are not there that the lists name ({counts}), as {absent[0]}"
    if not allow_missing:
      raise DatasetError(f"{message}; --allow_missing uses the others")
    _log.warning("%s; using the others", message)
  kept = [name for name in classes if any(of == name for _, of in there["train"])]
  return _videos(kept, there, folder)


def read_folder(path: str | Path | None) -> Videos:
  """A folder with a folder of videos for each class.

  If it has folders `train` and `test`, with one per class in each, these are the splits; otherwise
  a tenth is for tests, by the hash of each name, so that a video stays in its split when others
  come or go; clips of one video that are named as UCF-101's are stay together.

  Raises:
    DatasetError: if it is no such folder or has too few videos.
  """
  folder = Path(path or "")
  if not path or not folder.is_dir():
    raise DatasetError(f"{path}: no such folder; expected one with a folder of videos per class")
  found: dict[str, list[tuple[Path, str]]] = {split: [] for split in SPLITS}
  if all((folder / split).is_dir() for split in SPLITS):
    for split in SPLITS:
      for of in _folders(folder / split):
        found[split] += [(file, of.name) for file in files_below(of, SUFFIXES)]
  else:
    for of in _folders(folder):
      for file in files_below(of, SUFFIXES):
        name = _TAKE.sub(r"\1", file.relative_to(folder).with_suffix("").as_posix())
        found["test" if is_for_tests(name) else "train"].append((file, of.name))
  classes = sorted({of for _, of in found["train"]})
  return _videos(classes, found, folder)


def _videos(
  classes: Sequence[str], found: dict[str, list[tuple[Path, str]]], folder: Path
) -> Videos:
  """Numbers the classes and sets groups of clips for training aside for validation."""
  if len(classes) == 1:
    raise DatasetError(
      f"{folder}: videos of one class for training, {classes[0]}, expected two or more, in a folder"
      " per class"
    )
  labels = {name: label for label, name in enumerate(classes)}
  clips = {
    split: [Clip(path, labels[of]) for path, of in pairs if of in labels]
    for split, pairs in found.items()
  }
  strangers = sorted({of for _, of in found["test"]} - set(classes))
  if strangers:
    _log.warning(
      "%s: left out %d of %d videos for test, of classes of which none is for training, as %s",
      folder,
      len(found["test"]) - len(clips["test"]),
      len(found["test"]),
      strangers[0],
    )
  for split, some in clips.items():
    if not some:
      raise DatasetError(
        f"{folder}: no videos for {split}; expected files {', '.join(sorted(SUFFIXES))} in a folder"
        " per class, in folders train and test or so many that a tenth can be kept for tests"
      )
  train: list[Clip] = []
  valid: list[Clip] = []
  ordered = sorted(clips["train"], key=lambda clip: (clip.label, clip.path))
  for _, of_class in itertools.groupby(ordered, key=lambda clip: clip.label):
    groups = [list(group) for _, group in itertools.groupby(of_class, key=_group)]
    for index, group in enumerate(groups):
      is_valid = len(groups) > 1 and index % VALID_EVERY == 0
      (valid if is_valid else train).extend(group)
  if not valid:
    raise DatasetError(
      f"{folder}: every class has a single video for training, expected some with two or more, of"
      " which one can be kept for validation"
    )
  return Videos(tuple(classes), {"train": train, "valid": valid, "test": clips["test"]})


def _group(clip: Clip) -> str:
  """What clips that were cut from one video have in common."""
  return _TAKE.sub(r"\1", clip.path.stem)


def _ucf_folder(data_dir: str | Path | None) -> Path:
  if data_dir is None:
    raise DatasetError(f"ucf101: needs --data_dir, a folder with UCF-101 and {LISTS}")
  for folder in (Path(data_dir), Path(data_dir) / "ucf101"):
    if (folder / LISTS).is_dir():
      return folder
  raise DatasetError(
    f"{data_dir}: no folder {LISTS} there; download UCF101.rar and"
    " UCF101TrainTestSplits-RecognitionTask.zip (https://www.crcv.ucf.edu/data/UCF101.php) and"
    " unpack both there"
  )


def _class_names(path: Path) -> list[str]:
  names = []
  for index, line in enumerate(_lines(path), start=1):
    number, _, name = line.partition(" ")
    if number != str(index) or not name:
      raise DatasetError(f"{path}: line {index} is {line!r}, expected '{index} <class>'")
    names.append(name.strip())
  return names


def _listed(path: Path) -> list[str]:
  """Names of clips, `<Class>/<file>`; lists for training have a number behind each."""
  names = [line.split()[0] for line in _lines(path)]
  for index, name in enumerate(names, start=1):
    parts = Path(name).parts
    if len(parts) != 2 or ".." in parts or parts[0] == "/":
      raise DatasetError(f"{path}: line {index} is {name!r}, expected '<Class>/<file>.avi'")
  return names


def _lines(path: Path) -> list[str]:
  try:
    lines = path.read_text(encoding="utf-8").splitlines()
  except FileNotFoundError as error:
    raise DatasetError(f"{path}: missing; expected the official lists of UCF-101") from error
  except UnicodeDecodeError as error:
    raise DatasetError(f"{path}: not a list of text; unpack the archive anew") from error
  lines = [line.strip() for line in lines if line.strip()]
  if not lines:
    raise DatasetError(f"{path}: empty; unpack the archive anew")
  return lines


def _folders(folder: Path) -> Iterable[Path]:
  return sorted(path for path in folder.iterdir() if path.is_dir())
