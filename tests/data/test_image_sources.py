"""Where images are, and to which split they belong."""

import shutil
import tarfile
from pathlib import Path

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


def names(found, folder):
  return {
    k: [Path(file.name).relative_to(folder).as_posix() for file in files]
    for k, files in found.items()
  }


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
    (
      lambda f: (f / "images.txt").unlink(),
      "neither CUB_200_2011/images.txt nor CUB_200_2011.tgz",
    ),
    (lambda f: (f / "train_test_split.txt").unlink(), "train_test_split.txt is missing"),
    (
      lambda f: (f / "images/001.A/a.jpg").unlink(),
      r"1 of its 3 images are not there, as .*a",
    ),
    (lambda f: (f / "train_test_split.txt").write_text("1 1\n2 2\n3 1\n"), "says 2 of image 2"),
    (lambda f: (f / "train_test_split.txt").write_text("1 1\n3 1\n"), "says None of image 2"),
    (lambda f: (f / "train_test_split.txt").write_text("1 1\n2 1\n3 1\n"), "no images for test"),
    (lambda f: (f / "images.txt").write_text("1 a.jpg\n1 b.jpg\n"), "line 2 is '1 b.jpg'"),
    (lambda f: (f / "images.txt").write_bytes(b"1 \xff.jpg\n"), "images.txt is not a list of text"),
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

  def found(folder):
    return {split: [Path(f.name) for f in some] for split, some in read_folder(folder).items()}

  files = found(tmp_path)
  assert {k: len(v) for k, v in files.items()} == {"train": 52, "test": 8}
  files["train"][0].unlink()
  assert found(tmp_path)["test"] == files["test"]
  for split, paths in files.items():
    (tmp_path / "own" / split).mkdir(parents=True)
    for path in paths[1:4]:
      shutil.copy(path, tmp_path / "own" / split)
  own = found(tmp_path / "own")
  assert [len(own[split]) for split in ("train", "test")] == [3, 3]


def test_folders_without_images_are_named(tmp_path):
  with pytest.raises(DatasetError, match="no such folder"):
    read_folder(tmp_path / "absent")
  with pytest.raises(DatasetError, match="no images for train, of 0 in all"):
    read_folder(tmp_path)


def test_photographs_come_with_the_package():
  files = read_photographs()
  assert [len(files[split]) for split in ("train", "test")] == [4, 2]
  assert not {file.name for file in files["train"]} & {file.name for file in files["test"]}


def test_the_birds_that_are_here(data_dir):
  if not (data_dir / "CUB_200_2011").is_dir():
    pytest.skip(f"{data_dir} (TMEM_DATA_DIR) has no CUB_200_2011")
  files = read_cub(data_dir)
  lines = (data_dir / "CUB_200_2011" / "train_test_split.txt").read_text().split()
  assert len(files["train"]) == lines[1::2].count("1")
  assert len(files["test"]) == lines[1::2].count("0")


def pack(cub, archive):
  with tarfile.open(archive, "w:gz") as file:
    file.add(cub, "CUB_200_2011")


@pytest.fixture
def archive(cub, tmp_path, monkeypatch):
  monkeypatch.setenv("TMEM_CACHE_DIR", str(tmp_path / "cache"))
  path = tmp_path / "packed" / "CUB_200_2011.tgz"
  path.parent.mkdir()
  pack(cub, path)
  return path


def test_an_archive_has_what_its_folder_has(cub, archive, monkeypatch):
  unpacked, packed = read_cub(cub), read_cub(archive.parent)
  for split, files in unpacked.items():
    assert sorted(f.read() for f in files) == sorted(f.read() for f in packed[split])
  monkeypatch.setattr("data.birds_builder._members", None)  # read once, then from the cache
  again = read_cub(archive.parent)
  assert [f.read() for f in again["train"]] == [f.read() for f in packed["train"]]
  assert packed["train"][1].name == f"{archive}: train, image 1"


@pytest.mark.parametrize(
  ("harm", "message"),
  [
    (lambda cub, archive: archive.write_bytes(archive.read_bytes()[:200]), "not an archive that"),
    (lambda cub, archive: archive.write_bytes(b"no archive"), "not an archive that can be read"),
    (lambda cub, archive: (cub / "images.txt").unlink(), "images.txt is missing"),
    (lambda cub, archive: (cub / "images/001.A/a.jpg").unlink(), "lacks 1 of 1 images, as images/"),
  ],
)
def test_damaged_archives_are_named_in_one_line(cub, archive, harm, message):
  before = archive.read_bytes()
  harm(cub, archive)
  if archive.read_bytes() == before:
    pack(cub, archive)
  with pytest.raises(DatasetError, match=f"{archive}: {message}") as caught:
    read_cub(archive.parent)
  assert "\n" not in str(caught.value)


def test_links_to_folders_are_followed_and_loops_end(tmp_path):
  (tmp_path / "elsewhere").mkdir()
  for index in range(40):
    Image.new("RGB", (4, 4), (index, 0, 0)).save(tmp_path / "elsewhere" / f"{index}.pgm")
  (tmp_path / "root").mkdir()
  (tmp_path / "root" / "link").symlink_to(tmp_path / "elsewhere")
  (tmp_path / "elsewhere" / "loop").symlink_to(tmp_path / "root")
  files = read_folder(tmp_path / "root")
  assert sum(map(len, files.values())) == 40
