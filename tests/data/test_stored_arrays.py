"""Arrays on disk: made once, also when interrupted, damaged, or asked for by two processes."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from data import stored_arrays as module
from data.errors import DatasetError
from data.stored_arrays import SHARD, stored_arrays

COUNT = SHARD + 8


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
  monkeypatch.setenv("TMEM_CACHE_DIR", str(tmp_path / "cache"))
  return tmp_path / "cache" / "things"


class Maker:
  """Makes arrays that tell their index, but for index 3, and counts."""

  def __init__(self):
    self.made = []

  def __call__(self, indices):
    for index in indices:
      self.made.append(index)
      yield DatasetError("three is broken") if index == 3 else np.full((2, index % 3 + 1), index)


def check(arrays):
  assert [int(array[0, 0]) for array in arrays] == [i for i in range(COUNT) if i != 3]
  assert arrays[4].shape == (2, 5 % 3 + 1)


def test_arrays_are_made_once():
  first, again = Maker(), Maker()
  arrays, problems = stored_arrays("things", list(range(COUNT)), first)
  check(arrays)
  assert problems == {3: "three is broken"}
  arrays, problems = stored_arrays("things", list(range(COUNT)), again)
  check(arrays)
  assert problems == {3: "three is broken"}
  assert first.made == list(range(COUNT))
  assert again.made == []


def test_a_changed_source_is_made_again_and_no_other():
  stored_arrays("things", list(range(COUNT)), Maker())
  again = Maker()
  stored_arrays("things", [*range(COUNT - 1), "changed"], again)
  assert again.made == list(range(SHARD, COUNT))


def test_what_was_made_before_an_interruption_is_kept():
  class Interrupted(Maker):
    def __call__(self, indices):
      for array in super().__call__(indices):
        if len(self.made) > SHARD + 3:
          raise KeyboardInterrupt
        yield array

  with pytest.raises(KeyboardInterrupt):
    stored_arrays("things", list(range(COUNT)), Interrupted())
  again = Maker()
  check(stored_arrays("things", list(range(COUNT)), again)[0])
  assert again.made == list(range(SHARD, COUNT))


def test_damaged_files_are_made_again(cache):
  stored_arrays("things", list(range(COUNT)), Maker())
  short, other = sorted(cache.glob("*.array_record"))
  short.write_bytes(short.read_bytes()[:100])
  other.write_bytes(b"")
  again = Maker()
  check(stored_arrays("things", list(range(COUNT)), again)[0])
  assert again.made == list(range(COUNT))
  assert not list(cache.glob("*.partial"))


def test_damage_inside_a_file_is_named(cache):
  stored_arrays("things", list(range(COUNT)), Maker())
  for path in cache.glob("*.array_record"):
    content = bytearray(path.read_bytes())
    content[200:800] = bytes(600)  # some of the first records
    path.write_bytes(content)
  arrays, _ = stored_arrays("things", list(range(COUNT)), Maker())
  with pytest.raises(DatasetError, match=r"array_record: record \d+ cannot be read .*delete"):
    list(arrays)


def test_a_cache_that_can_only_be_read_is_read(cache, monkeypatch):
  stored_arrays("things", list(range(COUNT)), Maker())

  def refuse(*_):
    raise PermissionError("read-only")

  monkeypatch.setattr(module, "locked", refuse)
  again = Maker()
  check(stored_arrays("things", list(range(COUNT)), again)[0])
  assert again.made == []


def test_few_files_are_open_at_once(monkeypatch):
  monkeypatch.setattr(module, "OPEN_FILES", 2)
  monkeypatch.setattr(module, "SHARD", 4)
  opened = []
  really_open = module._open
  monkeypatch.setattr(module, "_open", lambda path: opened.append(path) or really_open(path))
  arrays, _ = stored_arrays("things", list(range(40)), Maker())
  opened.clear()
  assert [int(array[0, 0]) for array in arrays] == [i for i in range(40) if i != 3]
  assert len(opened) == 10
  assert arrays._reader.cache_info().currsize == 2


PROGRAM = """
import sys, time
import numpy as np
from data.stored_arrays import stored_arrays

def make(indices):
  for index in indices:
    time.sleep(0.02)
    print(index)
    yield np.full(2, index)

arrays, _ = stored_arrays("things", list(range(40)), make)
assert [int(a[0]) for a in arrays] == list(range(40))
"""


def test_two_processes_share_the_work():
  root = Path(__file__).parents[2]
  processes = [
    subprocess.Popen([sys.executable, "-c", PROGRAM], cwd=root, stdout=subprocess.PIPE, text=True)
    for _ in range(2)
  ]
  made = [int(line) for process in processes for line in process.communicate()[0].split()]
  assert [process.returncode for process in processes] == [0, 0]
  assert sorted(made) == list(range(40))


def test_where_nothing_can_be_written_a_temporary_folder_serves(monkeypatch, tmp_path, caplog):
  (tmp_path / "file").write_text("in the way")
  monkeypatch.setenv("TMEM_CACHE_DIR", str(tmp_path / "file"))
  check(stored_arrays("things", list(range(COUNT)), Maker())[0])
  assert "cannot use the data cache" in caplog.text


def test_a_full_disk_is_told_in_one_line(monkeypatch):
  class Full:
    def __init__(self, *args):
      raise RuntimeError("No space left on device")

  monkeypatch.setattr(module, "ArrayRecordWriter", Full)
  with pytest.raises(DatasetError, match=r"cannot be written .No space left on device.; free"):
    stored_arrays("things", [1], Maker())
