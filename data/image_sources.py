"""Finds images: where each data set has them, and how they are split."""

import importlib.resources
import zlib
from collections.abc import Iterable
from pathlib import Path

from data.errors import DatasetError

SPLITS = ("train", "test")
SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"})
TEST_PERCENT = 10
# Photographs among what scikit-image brings along, in colour and of some size.
PHOTOGRAPHS = {
  "train": ("astronaut.png", "chelsea.png", "hubble_deep_field.jpg", "motorcycle_left.png"),
  "test": ("coffee.png", "rocket.jpg"),
}

Files = dict[str, list[Path]]


def read_photographs() -> Files:
  """The photographs that scikit-image ships, of which four are for training and two for tests.

  Raises:
    DatasetError: if scikit-image came without them.
  """
  folder = Path(str(importlib.resources.files("skimage") / "data"))
  files = {split: [folder / name for name in names] for split, names in PHOTOGRAPHS.items()}
  for path in (path for paths in files.values() for path in paths):
    if not path.is_file():
      raise DatasetError(f"{path}: missing; expected scikit-image with the images that it ships")
  return files


def read_cub(data_dir: str | Path | None) -> Files:
  """The images of CUB-200-2011 in its own layout and split.

  Args:
    data_dir: the folder `CUB_200_2011`, or one that has it: with `images.txt`,
      `train_test_split.txt` and `images/`.

  Raises:
    DatasetError: if a list is missing or damaged, or has images that are not there.
  """
  folder = _cub_folder(data_dir)
  names = _by_number(folder / "images.txt")
  is_train = _by_number(folder / "train_test_split.txt")
  files: Files = {split: [] for split in SPLITS}
  for number, name in names.items():
    kind = is_train.get(number)
    if kind not in ("0", "1"):
      raise DatasetError(
        f"{folder / 'train_test_split.txt'}: says {kind} of image {number}, expected 0 or 1"
      )
    files["train" if kind == "1" else "test"].append(folder / "images" / name)
  absent = [path for paths in files.values() for path in paths if not path.is_file()]
  if absent:
    raise DatasetError(
      f"{folder / 'images.txt'}: {len(absent)} of its {len(names)} images are not there, as"
      f" {absent[0]}; unpack the archive anew"
    )
  return _none_empty(files, folder)


def read_folder(path: str | Path) -> Files:
  """All images below a folder.

  If it has folders `train` and `test`, these are the splits; otherwise a tenth is for tests, by the
  hash of each name, so that an image stays in its split when others come or go.

  Raises:
    DatasetError: if it is no folder or has too few images.
  """
  folder = Path(path)
  if not folder.is_dir():
    raise DatasetError(f"{folder}: no such folder; expected one with images below it")
  if all((folder / split).is_dir() for split in SPLITS):
    return _none_empty({split: _images(folder / split) for split in SPLITS}, folder)
  files: Files = {split: [] for split in SPLITS}
  for image in _images(folder):
    name = image.relative_to(folder).as_posix().encode()
    files["test" if zlib.crc32(name) % 100 < TEST_PERCENT else "train"].append(image)
  return _none_empty(files, folder)


DATASETS = {
  "photographs": lambda data_dir, data_path: read_photographs(),
  "cub": lambda data_dir, data_path: read_cub(data_dir),
  "folder": lambda data_dir, data_path: read_folder(data_path),
}


def find(dataset: str, data_dir: str | None, data_path: str | None) -> Files:
  """The images of a data set of `DATASETS`, by split.

  Args:
    dataset: its name.
    data_dir: folder of downloaded data sets, for those that are.
    data_path: the folder of the data set "folder".

  Raises:
    DatasetError: as the reader of the data set.
  """
  return DATASETS[dataset](data_dir, data_path)


def _cub_folder(data_dir: str | Path | None) -> Path:
  if data_dir is None:
    raise DatasetError("cub: needs --data_dir, a folder with CUB_200_2011")
  for folder in (Path(data_dir), Path(data_dir) / "CUB_200_2011"):
    if (folder / "images.txt").is_file():
      return folder
  raise DatasetError(
    f"{data_dir}: no CUB_200_2011/images.txt there; download CUB_200_2011.tgz (Caltech-UCSD Birds,"
    " https://www.vision.caltech.edu/datasets/cub_200_2011) and unpack it"
  )


def _by_number(path: Path) -> dict[str, str]:
  """Lines `number value` as a dict; numbers are unique."""
  if not path.is_file():
    raise DatasetError(f"{path}: missing; expected the lists of CUB_200_2011 beside each other")
  found: dict[str, str] = {}
  for index, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
    parts = line.split(maxsplit=1)
    if not parts:
      continue
    if len(parts) != 2 or not parts[0].isdigit() or parts[0] in found:
      raise DatasetError(f"{path}: line {index} is {line!r}, expected a new number and a value")
    found[parts[0]] = parts[1].strip()
  return found


def _images(folder: Path) -> list[Path]:
  return sorted(p for p in folder.rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file())


def _none_empty(files: Files, folder: Path) -> Files:
  for split, paths in files.items():
    if not paths:
      raise DatasetError(
        f"{folder}: no images for {split}, of {_total(files.values())} in all; expected files"
        f" {', '.join(sorted(SUFFIXES))}, in folders train and test or so many that a tenth can be"
        " kept for tests"
      )
  return files


def _total(groups: Iterable[list[Path]]) -> int:
  return sum(len(group) for group in groups)
