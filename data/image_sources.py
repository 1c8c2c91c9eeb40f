"""Finds images: where each data set has them, and how they are split."""

import importlib.resources
from collections.abc import Iterable
from pathlib import Path

from data import birds
from data.birds_builder import read_archive
from data.errors import DatasetError
from data.files import files_below, is_for_tests
from data.image_file import EncodedImage

SPLITS = ("train", "test")
SUFFIXES = frozenset({
  ".avif", ".bmp", ".gif", ".jfif", ".jp2", ".jpeg", ".jpg", ".pbm", ".pgm", ".png", ".ppm", ".tga",
  ".tif", ".tiff", ".webp",
})  # fmt: skip
# Photographs among what scikit-image brings along, in colour and of some size.
PHOTOGRAPHS = {
  "train": ("astronaut.png", "chelsea.png", "hubble_deep_field.jpg", "motorcycle_left.png"),
  "test": ("coffee.png", "rocket.jpg"),
}

Files = dict[str, list[EncodedImage]]
Paths = dict[str, list[Path]]


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
  return _files(files)


def read_cub(data_dir: str | Path | None) -> Files:
  """The images of CUB-200-2011 in its own layout and split.

  Args:
    data_dir: the folder `CUB_200_2011`, with `images.txt`, `train_test_split.txt` and `images/`, or
      a folder that has it, or its archive `CUB_200_2011.tgz`, which is then read into the data
      cache.

  Raises:
    DatasetError: if a list is missing or damaged, or has images that are not there.
  """
  if data_dir is None:
    raise DatasetError(f"cub: needs --data_dir, a folder with {birds.FOLDER}")
  for folder in (Path(data_dir), Path(data_dir) / birds.FOLDER):
    if (folder / birds.LISTS[0]).is_file():
      return _unpacked_cub(folder)
  archive = Path(data_dir) / birds.ARCHIVE
  if archive.is_file():
    return read_archive(archive)
  raise DatasetError(
    f"{data_dir}: neither {birds.FOLDER}/images.txt nor {birds.ARCHIVE} there; download"
    f" {birds.ARCHIVE} (Caltech-UCSD Birds, https://www.vision.caltech.edu/datasets/cub_200_2011)"
  )


def _unpacked_cub(folder: Path) -> Files:
  lists = {name: folder / name for name in birds.LISTS}
  contents = {name: path.read_bytes() for name, path in lists.items() if path.is_file()}
  names = birds.by_split(contents, folder)
  paths = {split: [folder / "images" / name for name in of] for split, of in names.items()}
  absent = [path for of in paths.values() for path in of if not path.is_file()]
  if absent:
    raise DatasetError(
      f"{folder}: {len(absent)} of its {sum(map(len, paths.values()))} images are not there, as"
      f" {absent[0]}; unpack the archive anew"
    )
  return _files(paths)


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
    return _none_empty({split: files_below(folder / split, SUFFIXES) for split in SPLITS}, folder)
  files: Paths = {split: [] for split in SPLITS}
  for image in files_below(folder, SUFFIXES):
    name = image.relative_to(folder).as_posix()
    files["test" if is_for_tests(name) else "train"].append(image)
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


def _none_empty(files: Paths, folder: Path) -> Files:
  for split, paths in files.items():
    if not paths:
      raise DatasetError(
        f"{folder}: no images for {split}, of {_total(files.values())} in all; expected files"
        f" {', '.join(sorted(SUFFIXES))}, in folders train and test or so many that a tenth can be"
        " kept for tests"
      )
  return _files(files)


def _total(groups: Iterable[list[Path]]) -> int:
  return sum(len(group) for group in groups)


def _files(paths: Paths) -> Files:
  return {split: [EncodedImage.at(path) for path in some] for split, some in paths.items()}
