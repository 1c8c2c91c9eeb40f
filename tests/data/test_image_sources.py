"""Where images are, and to which split they belong."""

import shutil

import pytest
from PIL import Image

from data.errors import DatasetError
from data.image_sources import read_cub, read_folder, read_photographs


@pytest.fixture
def cub(tmp_path):
  folder = tmp_path / "CUB_200_2011"
  names = ["001.A/b.jpg", "001.A/a.jpg", "002.B/c.jpg"]
  for name in names:
    (folder / "images" / name).parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (2, 2)).save(folder / "images" / name)
  (folder / "images.txt").write_text("".join(f"{i} {n}\n" for i, n in enumerate(names, 1)))
  (folder / "train_test_split.txt").write_text("1 1\n2 0\n3 1\n")
  return folder


def names(files, folder):
  return {k: [p.relative_to(folder).as_posix() for p in paths] for k, paths in files.items()}


@pytest.mark.parametrize("inside", [True, False])
def test_birds_are_split_as_their_list_says(cub, inside):
  files = read_cub(cub if inside else cub.parent)
  assert names(files, cub / "images") == {
    "train": ["001.A/b.jpg", "002.B/c.jpg"],
    "test": ["001.A/a.jpg"],
  }


@pytest.mark.parametrize(
  ("harm", "message"),
  [
    (lambda f: (f / "images.txt").unlink(), "no CUB_200_2011/images.txt there; download"),
    (lambda f: (f / "train_test_split.txt").unlink(), r"train_test_split\.txt: missing"),
    (
      lambda f: (f / "images/001.A/a.jpg").unlink(),
      r"1 of its 3 images are not there, as .*a",
    ),
    (lambda f: (f / "train_test_split.txt").write_text("1 1\n2 2\n3 1\n"), "says 2 of image 2"),
    (lambda f: (f / "train_test_split.txt").write_text("1 1\n3 1\n"), "says None of image 2"),
    (lambda f: (f / "train_test_split.txt").write_text("1 1\n2 1\n3 1\n"), "no images for test"),
    (lambda f: (f / "images.txt").write_text("1 a.jpg\n1 b.jpg\n"), "line 2 is '1 b.jpg'"),
  ],
)
def test_damaged_birds_are_named(cub, harm, message):
  harm(cub)
  with pytest.raises(DatasetError, match=message):
    read_cub(cub.parent)


def test_birds_need_a_folder():
  with pytest.raises(DatasetError, match="needs --data_dir"):
    read_cub(None)


def test_a_folder_is_split_by_name_or_as_it_is(tmp_path):
  for index in range(60):
    path = tmp_path / f"kind_{index % 3}" / f"{index}.PNG"
    path.parent.mkdir(exist_ok=True)
    Image.new("RGB", (1, 1)).save(path)
  (tmp_path / "notes.txt").write_text("none")
  files = read_folder(tmp_path)
  assert {k: len(v) for k, v in files.items()} == {"train": 52, "test": 8}
  held_out = set(files["test"])
  files["train"][0].unlink()
  assert set(read_folder(tmp_path)["test"]) == held_out
  for split, paths in files.items():
    (tmp_path / "own" / split).mkdir(parents=True)
    for path in paths[1:4]:
      shutil.copy(path, tmp_path / "own" / split)
  own = read_folder(tmp_path / "own")
  assert [len(own[split]) for split in ("train", "test")] == [3, 3]


def test_folders_without_images_are_named(tmp_path):
  with pytest.raises(DatasetError, match="no such folder"):
    read_folder(tmp_path / "absent")
  with pytest.raises(DatasetError, match="no images for train, of 0 in all"):
    read_folder(tmp_path)


def test_photographs_come_with_the_package():
  files = read_photographs()
  assert [len(files[split]) for split in ("train", "test")] == [4, 2]
  assert not set(files["train"]) & set(files["test"])


def test_the_birds_that_are_here(data_dir):
  if not (data_dir / "CUB_200_2011").is_dir():
    pytest.skip(f"{data_dir} (TMEM_DATA_DIR) has no CUB_200_2011")
  files = read_cub(data_dir)
  lines = (data_dir / "CUB_200_2011" / "train_test_split.txt").read_text().split()
  assert len(files["train"]) == lines[1::2].count("1")
  assert len(files["test"]) == lines[1::2].count("0")
