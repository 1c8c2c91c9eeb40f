import functools
import logging
import sys
import time
from pathlib import Path

import pytest

from data import cache as cache_module
from data.cache import cache_directory
from data.documents import SPLITS, Document
from data.errors import DatasetError
from data.text_builder import TextCorpus, TextCorpusConfig, cached_documents


def made_documents(marker=b""):
  return {
    split: [
      Document(f"{split}/{i}.txt", bytes(range(256)) * i + b"\xff\n" + marker) for i in range(4)
    ]
    for split in SPLITS
  }


@pytest.fixture
def cache(tmp_path, monkeypatch):
  directory = tmp_path / "cache"
  monkeypatch.setenv("TMEM_CACHE_DIR", str(directory))
  return directory


def prepared(cache):
  return sorted(path for path in cache.glob("text_corpus/*/*") if path.is_dir())


def refuse_to_prepare(*_):
  raise AssertionError("prepared again")


def test_documents_come_back_in_order_and_prepared_once(cache, monkeypatch):
  documents = made_documents()
  assert cached_documents("made", documents) == documents
  assert [path.name for path in prepared(cache)] == ["1.0.0"]
  monkeypatch.setattr(TextCorpus, "_generate_examples", refuse_to_prepare)
  assert cached_documents("made", documents) == documents


def test_records_are_served_at_random_access_without_tensorflow(cache):
  documents = made_documents()
  config = TextCorpusConfig(name="all", documents=documents)
  builder = TextCorpus(config=config, data_dir=cache, file_format="array_record")
  builder.download_and_prepare(file_format="array_record")
  source = builder.as_data_source(split="valid")
  assert len(source) == 4
  assert source[2] == {"name": b"valid/2.txt", "text": documents["valid"][2].text}
  assert [p.suffix for p in prepared(cache)[0].glob("text_corpus-valid*")] == [
    ".array_record-00000-of-00001"
  ]
  assert "tensorflow" not in sys.modules


def test_changed_documents_are_noticed(cache):
  cached_documents("made", made_documents())
  changed = made_documents(b"one more line\n")
  assert cached_documents("made", changed) == changed
  assert len(prepared(cache)) == 2


@pytest.mark.parametrize("name", ["dataset_info.json", "features.json", "train", "test"])
@pytest.mark.parametrize("damage", ["truncated", "zeroed", "emptied", "deleted"])
def test_damaged_records_are_prepared_anew(cache, name, damage):
  documents = made_documents()
  cached_documents("made", documents)
  (path,) = prepared(cache)[0].glob(f"*{name}*")
  data = path.read_bytes()
  path.write_bytes(
    {"truncated": data[: len(data) // 2], "zeroed": bytes(len(data))}.get(damage, b"")
  )
  if damage == "deleted":
    path.unlink()
  assert cached_documents("made", documents) == documents


def test_whole_records_of_other_documents_are_prepared_anew(cache):
  documents = made_documents()
  cached_documents("made", documents)
  (valid,), (test,) = (prepared(cache)[0].glob(f"text_corpus-{s}*") for s in ("valid", "test"))
  test.write_bytes(valid.read_bytes())
  assert cached_documents("made", documents) == documents


KILLED = """
import os, signal
from data import text_builder
from data.documents import SPLITS, Document
def generate(self, documents):
  yield 0, {"name": b"a", "text": b"b"}
  os.kill(os.getpid(), signal.SIGKILL)
text_builder.TextCorpus._generate_examples = generate
text_builder.cached_documents("made", {s: [Document("a.txt", b"text\\n")] for s in SPLITS})
"""


def test_a_killed_preparation_leaves_nothing_that_counts(cache, start_python):
  process = start_python(KILLED, TMEM_CACHE_DIR=str(cache))
  process.communicate(timeout=60)
  assert process.returncode == -9
  assert [path.name.partition(".")[0] for path in prepared(cache)] == ["incomplete"]
  documents = {split: [Document("a.txt", b"text\n")] for split in SPLITS}
  assert cached_documents("made", documents) == documents
  assert [path.name for path in prepared(cache)] == ["1.0.0"]


AT_ONCE = """
import pathlib, sys, time
from data import text_builder
from data.documents import SPLITS, Document
here, me = pathlib.Path(sys.argv[1]), sys.argv[2]
generate = text_builder.TextCorpus._generate_examples
def slowly(self, documents):
  with (here / "prepared").open("a") as log:
    log.write("prepared\\n")
  time.sleep(0.2)
  yield from generate(self, documents)
text_builder.TextCorpus._generate_examples = slowly
documents = {s: [Document(f"{s}{i}", b"text %d\\n" % i) for i in range(9)] for s in SPLITS}
(here / f"ready{me}").touch()
while not (here / "go").exists():
  time.sleep(0.01)
assert text_builder.cached_documents("made", documents) == documents
print("same")
"""


def test_processes_that_prepare_at_once_agree(cache, tmp_path, start_python):
  processes = [
    start_python(AT_ONCE, tmp_path, number, TMEM_CACHE_DIR=str(cache)) for number in range(3)
  ]
  deadline = time.monotonic() + 60
  while len(list(tmp_path.glob("ready*"))) < 3 and time.monotonic() < deadline:
    time.sleep(0.01)
  (tmp_path / "go").touch()
  assert [process.communicate(timeout=60) for process in processes] == [("same\n", "")] * 3
  assert (tmp_path / "prepared").read_text() == "prepared\n" * len(SPLITS)  # by one of them
  assert [path.name for path in prepared(cache)] == ["1.0.0"]


def test_a_temporary_directory_serves_where_none_can_be_written(tmp_path, monkeypatch, caplog):
  (tmp_path / "file").touch()
  monkeypatch.setenv("TMEM_CACHE_DIR", str(tmp_path / "file" / "cache"))
  monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
  monkeypatch.setattr(
    cache_module, "_temporary", functools.cache(cache_module._temporary.__wrapped__)
  )
  documents = made_documents()
  with caplog.at_level(logging.WARNING):
    assert cached_documents("made", documents) == documents
  (message,) = caplog.messages
  assert message.startswith("cannot use the data cache (")
  assert message.endswith("set TMEM_CACHE_DIR to a directory that can be written")
  assert "\n" not in message
  (temporary,) = (path for path in tmp_path.iterdir() if path.name != "file")
  cache_module._temporary().cleanup()  # as the end of the process does
  assert not temporary.exists()


def test_a_full_disk_is_one_clear_line(cache, monkeypatch):
  def full(*_, **__):
    raise RuntimeError("write() failed: No space left\non device")

  monkeypatch.setattr(TextCorpus, "download_and_prepare", full)
  with pytest.raises(DatasetError) as error:
    cached_documents("made", made_documents())
  assert str(error.value) == (
    "made: cannot prepare the data set (write() failed: No space left on device); free some disk"
    " space, or set TMEM_CACHE_DIR to a directory with room"
  )


@pytest.mark.parametrize(
  ("environment", "expected"),
  [
    ({"TMEM_CACHE_DIR": "/a", "XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/a"),
    ({"XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/b/tmem"),
    ({"HOME": "/c"}, "/c/.cache/tmem"),
  ],
)
def test_where_the_cache_lies(monkeypatch, environment, expected):
  for name in ("TMEM_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
    monkeypatch.delenv(name, raising=False)
  for name, value in environment.items():
    monkeypatch.setenv(name, value)
  assert cache_directory() == Path(expected)


@pytest.mark.parametrize("home", ["", None])
def test_the_cache_does_without_home(monkeypatch, home):
  for name in ("TMEM_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
    monkeypatch.delenv(name, raising=False)
  if home is not None:
    monkeypatch.setenv("HOME", home)
  directory = cache_directory()
  assert directory.is_absolute()
  assert directory.parts[-2:] == (".cache", "tmem")


QUIET = """
import sys
from data import loader, text
corpus = text.load_corpus("stdlib")
next(loader.train_batches(corpus.train, batch_size=2, length=8))
next(iter(loader.eval_batches(corpus.valid, batch_size=2, length=8)))
assert "tensorflow" not in sys.modules
"""


def test_a_new_user_sees_nothing_of_all_this(tmp_path, start_python):
  process = start_python(QUIET, HOME=str(tmp_path))
  assert process.communicate(timeout=60) == ("", "")
  assert process.returncode == 0
  assert len(prepared(tmp_path / ".cache" / "tmem")) == 1
