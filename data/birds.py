"""The lists of CUB-200-2011: which images there are, and to which split each belongs."""

from collections.abc import Mapping
from pathlib import Path

from data.errors import DatasetError

FOLDER = "CUB_200_2011"
ARCHIVE = f"{FOLDER}.tgz"
SPLITS = ("train", "test")
LISTS = ("images.txt", "train_test_split.txt")


def by_split(lists: Mapping[str, bytes], where: Path) -> dict[str, list[str]]:
  """Names of the images, as below `images/`.

  Args:
    lists: contents of `LISTS`, by name.
    where: they are from, for messages.

  Returns:
    Names by split, in the order of the list.

  Raises:
    DatasetError: if a list is missing or damaged, or a split is empty.
  """
  images, splits = LISTS
  names, is_train = (_by_number(lists, name, where) for name in LISTS)
  found: dict[str, list[str]] = {split: [] for split in SPLITS}
  for number, name in names.items():
    kind = is_train.get(number)
    if kind not in ("0", "1"):
      raise DatasetError(f"{where}: {splits} says {kind} of image {number}, expected 0 or 1")
    found["train" if kind == "1" else "test"].append(name)
  for split, some in found.items():
    if not some:
      raise DatasetError(f"{where}: {images} has no images for {split}; download it anew")
  return found


def _by_number(lists: Mapping[str, bytes], name: str, where: Path) -> dict[str, str]:
  """Lines `number value` as a dict; numbers are unique."""
  if name not in lists:
    raise DatasetError(f"{where}: {name} is missing; expected the lists of {FOLDER}")
  found: dict[str, str] = {}
  try:
    lines = lists[name].decode().splitlines()
  except UnicodeDecodeError as error:
    raise DatasetError(f"{where}: {name} is not a list of text; download it anew") from error
  for index, line in enumerate(lines, start=1):
    parts = line.split(maxsplit=1)
    if not parts:
      continue
    if len(parts) != 2 or not parts[0].isdigit() or parts[0] in found:
      raise DatasetError(
        f"{where}: {name}, line {index} is {line!r}, expected a new number and a value"
      )
    found[parts[0]] = parts[1].strip()
  return found
