import itertools
import logging
import os
import zipfile

import pytest

from data import sources
from data.documents import SPLITS
from data.errors import DatasetError
from data.text import load_corpus

WIKITEXT = {
  "train": " \n = First = \n \n = = Part = = \n the <unk> cat \n \n = Second = \n \n the end \n",
  "valid": " \n = Third = \n \n the cat \n",
  "test": " \n = Fourth = \n \n the end \n",
}


def write_wikitext(data_dir, splits=SPLITS, text=WIKITEXT):
  path = data_dir / "wikitext-2-v1.zip"
  with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
    for split in splits:
      archive.writestr(f"wikitext-2/wiki.{split}.tokens", text[split])
  return path


def error_of(**arguments):
  with pytest.raises(DatasetError) as error:
    load_corpus(**arguments)
  message = str(error.value)
  assert "\n" not in message
  return message


def texts(splits):
  return {split: b"".join(d.text for d in splits[split]).decode() for split in SPLITS}


def test_stdlib_leaves_tests_caches_and_packages_out(tmp_path):
  kept = [f"package{i}/module.py" for i in range(200)]
  left_out = [
    "test/a.py",
    "unittest/test/b.py",
    "lib2to3/tests/c.py",
    "idlelib/idle_test/d.py",
    "site-packages/e.py",
    "__pycache__/f.py",
    "_sysconfigdata_linux.py",
    "notes.txt",
  ]
  for name in kept + left_out:
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text("x = 1\n")
  splits = sources.read_stdlib(tmp_path)
  names = [document.name for split in SPLITS for document in splits[split]]
  assert sorted(names) == sorted(kept)


def test_stdlib_sources_become_utf8_and_unreadable_ones_are_left_out(tmp_path):
  for i in range(200):
    (tmp_path / f"module{i}.py").write_text("x = 1\n")
  (tmp_path / "latin.py").write_bytes("# coding: latin-1\r\nx = 'é'".encode("latin-1"))
  (tmp_path / "broken.py").write_bytes(b"x = '\xff'\n")
  (tmp_path / "unknown.py").write_bytes(b"# coding: nonsense\n")
  (tmp_path / "nul.py").write_bytes(b"x = '\0'\n")
  (tmp_path / "empty.py").touch()
  splits = sources.read_stdlib(tmp_path)
  read = {d.name: d.text for split in SPLITS for d in splits[split]}
  assert read["latin.py"] == "# coding: latin-1\nx = 'é'\n".encode()
  assert not {"broken.py", "unknown.py", "nul.py", "empty.py"} & set(read)


def test_a_python_without_sources_is_told_of(tmp_path):
  with pytest.raises(DatasetError, match=r"only 0 Python source files.*--dataset=text"):
    sources.read_stdlib(tmp_path)


@pytest.mark.parametrize("packed", [True, False])
def test_wikitext_is_read_packed_and_unpacked(tmp_path, packed):
  path = write_wikitext(tmp_path)
  if not packed:
    zipfile.ZipFile(path).extractall(tmp_path)
    path.write_bytes(b"not looked at")
  splits = sources.read_wikitext2(tmp_path)
  assert texts(splits) == WIKITEXT
  assert [d.text.split(b"\n")[:2] for d in splits["train"]] == [
    [b" ", b" = First = "],
    [b" = Second = ", b" "],
  ]


@pytest.mark.parametrize(
  ("arguments", "parts"),
  [
    ({"name": "tiny_shakespeare"}, ["input.txt", "github.com/karpathy/char-rnn"]),
    ({"name": "shakespeare"}, ["TXT files", "folger.edu", "shakespeare/text"]),
    ({"name": "wikitext2"}, ["wikitext-2-v1.zip", "Salesforce"]),
  ],
)
def test_a_missing_data_set_says_what_to_do(tmp_path, arguments, parts):
  for data_dir, place in ((None, "DATA_DIR"), (tmp_path, str(tmp_path))):
    message = error_of(**arguments, data_dir=data_dir)
    assert message.startswith(f"{arguments['name']}: ")
    told = [f"put it at {place}/", f"set --data_dir={place} (or $TMEM_DATA_DIR)"]
    for part in [*parts, "download", *told]:
      assert part in message


def test_a_truncated_zip_is_named(tmp_path):
  path = write_wikitext(tmp_path)
  path.write_bytes(path.read_bytes()[:-40])
  assert error_of(name="wikitext2", data_dir=tmp_path) == (
    f"{path}: not a whole zip file (File is not a zip file); download wikitext-2-v1.zip again"
  )


def test_a_corrupt_zip_is_named(tmp_path):
  text = {split: text * 500 + str(os.urandom(2000)) for split, text in WIKITEXT.items()}
  path = write_wikitext(tmp_path, text=text)
  data = bytearray(path.read_bytes())
  data[200:260] = b"\x55" * 60
  path.write_bytes(data)
  message = error_of(name="wikitext2", data_dir=tmp_path)
  assert message.startswith(f"{path}: not a whole zip file (")


def test_a_zip_without_a_split_is_named(tmp_path):
  path = write_wikitext(tmp_path, splits=["train", "test"])
  message = error_of(name="wikitext2", data_dir=tmp_path)
  assert message.startswith(f"{path}: has no wiki.valid.tokens; expected the official wikitext-2")


def test_an_empty_file_in_a_zip_is_named(tmp_path):
  path = write_wikitext(tmp_path, text={**WIKITEXT, "valid": " \n"})
  message = error_of(name="wikitext2", data_dir=tmp_path)
  assert message == f"{path}: wiki.valid.tokens: the file is empty; expected UTF-8 text"


def test_too_few_plays_are_told_of(tmp_path):
  directory = tmp_path / "shakespeare" / "text"
  directory.mkdir(parents=True)
  (directory / "hamlet.txt").write_text("To be\n")
  message = error_of(name="shakespeare", data_dir=tmp_path)
  assert message.startswith(f"{directory}: 1 text files (*.txt), too few to split by file")


@pytest.mark.parametrize(
  ("content", "message"),
  [
    (b"", "{path}: the file is empty; expected UTF-8 text"),
    (b" \r\n\n", "{path}: the file is empty; expected UTF-8 text"),
    (b"ab\0c" * 99, "{path}: a binary file or UTF-16 text (it has a NUL byte at 2); expected text"),
    (b"ab\n", "{path}: only 3 bytes of text, too few to split into train, valid and test"),
  ],
)
def test_bad_text_files_are_named(tmp_path, content, message):
  path = tmp_path / "book.txt"
  path.write_bytes(content)
  assert error_of(name="text", data_path=path).startswith(message.format(path=path))


@pytest.mark.parametrize("tokenizer", ["char", "word"])
def test_text_that_is_not_utf8_is_for_bytes_only(tmp_path, tokenizer):
  path = tmp_path / "latin.txt"
  path.write_bytes("é\n".encode("latin-1") * 100)
  assert error_of(name="text", data_path=path, tokenizer=tokenizer) == (
    "text: latin.txt is not UTF-8 (byte 0xe9); save it as UTF-8, or read it with --tokenizer=byte"
  )
  assert load_corpus("text", data_path=path).train[:3].tolist() == [0xE9, 10, 0xE9]


def test_paths_without_text_are_named(tmp_path):
  assert error_of(name="text").startswith("text: --data_path is not set; set it to a text file")
  missing = tmp_path / "missing"
  assert error_of(name="text", data_path=missing).startswith(f"{missing}: no such file")
  assert error_of(name="text", data_path=os.devnull).startswith(f"{os.devnull}: not a file")
  (tmp_path / "image.bin").write_bytes(b"\0\1")
  (tmp_path / "empty.txt").touch()
  (tmp_path / ".hidden").write_text("hidden\n" * 100)
  assert error_of(name="text", data_path=tmp_path).startswith(f"{tmp_path}: no text files")


def test_files_that_cannot_be_read_are_named(tmp_path):
  (tmp_path / "wikitext-2-v1.zip").mkdir()
  message = error_of(name="wikitext2", data_dir=tmp_path)
  assert message.startswith(f"{tmp_path}/wikitext-2-v1.zip: cannot be read (Is a directory)")
  message = error_of(name="text", data_path=tmp_path / ("x" * 300))
  assert "cannot be read (File name too long)" in message or "no such file" in message


def test_home_may_be_given_by_its_sign(tmp_path, monkeypatch):
  (tmp_path / "book.txt").write_text("a line\n" * 100)
  monkeypatch.setenv("HOME", str(tmp_path))
  assert load_corpus("text", data_path="~/book.txt").train.size == 630


def test_names_of_data_sets_and_tokenizers_are_checked():
  assert error_of(name="ptb") == (
    "--dataset: got 'ptb', expected one of stdlib, tiny_shakespeare, shakespeare, wikitext2, text"
  )
  assert error_of(name="stdlib", tokenizer="bpe") == (
    "--tokenizer: got 'bpe', expected one of byte, char, word"
  )
  assert error_of(name="stdlib", data_path="x").startswith("--data_path: is for --dataset=text")


def test_a_directory_is_read_in_order_and_split_by_file(tmp_path, caplog):
  for i in range(20):
    path = tmp_path / f"part{i % 2}" / f"{i:02d}.txt"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"\xef\xbb\xbf" + b"line %02d\r\n" % i * 50)
  (tmp_path / "image.bin").write_bytes(b"\0\1")
  with caplog.at_level(logging.WARNING):
    splits = sources.read_text(tmp_path)
  names = {split: [document.name for document in splits[split]] for split in SPLITS}
  assert sorted(itertools.chain(*names.values())) == sorted(
    f"part{i % 2}/{i:02d}.txt" for i in range(20)
  )
  assert all(names[split] == sorted(names[split]) for split in SPLITS)
  assert [len(names[split]) for split in SPLITS] == [18, 1, 1]
  number = int(names["valid"][0][-6:-4])
  assert splits["valid"][0].text == b"line %02d\n" % number * 50
  assert caplog.messages == [
    f"{tmp_path}: left out 1 binary files, the first is {tmp_path / 'image.bin'}"
  ]


def test_two_files_are_split_by_position(tmp_path):
  (tmp_path / "b.txt").write_text("b" * 99)
  (tmp_path / "a.txt").write_text("a" * 99 + "\n")
  assert texts(sources.read_text(tmp_path)) == {
    "train": "a" * 99 + "\n" + "b" * 80,
    "valid": "b" * 10,
    "test": "b" * 9 + "\n",
  }
