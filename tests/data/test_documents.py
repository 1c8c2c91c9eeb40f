import itertools

import pytest

from data.documents import (
  SPLITS,
  Document,
  fingerprint,
  normalise,
  split_by_name,
  split_by_position,
  split_by_size,
)


def documents(sizes):
  return [Document(f"file{i}", b"x" * size) for i, size in enumerate(sizes)]


def names(splits):
  return {split: [document.name for document in splits[split]] for split in SPLITS}


@pytest.mark.parametrize(
  ("raw", "text"),
  [
    (b"a\r\nb\r\n", b"a\nb\n"),
    (b"a\rb", b"a\nb\n"),
    (b"\xef\xbb\xbfa\n", b"a\n"),
    (b"a\n\n", b"a\n\n"),
    (b"", b""),
  ],
)
def test_text_is_independent_of_the_system_that_wrote_it(raw, text):
  assert normalise(raw) == text


def test_a_document_keeps_its_split_when_others_come_or_go():
  many = documents([1] * 500)
  of_many, of_some = split_by_name(many, 5), split_by_name(many[::3], 5)
  assert sorted(itertools.chain(*names(of_many).values())) == sorted(d.name for d in many)
  assert 380 < len(of_many["train"]) < 480
  for split in SPLITS:
    assert names(of_some)[split] == [n for n in names(of_many)[split] if int(n[4:]) % 3 == 0]


def test_whole_files_are_held_out_by_size():
  splits = split_by_size(documents([100] * 40))
  # The very files, because a split that moves makes earlier results incomparable.
  assert names(splits) == {
    "train": [f"file{i}" for i in range(40) if i not in (6, 21, 29, 30)],
    "valid": ["file21", "file29"],
    "test": ["file6", "file30"],
  }


def test_the_largest_of_three_files_is_for_training():
  splits = split_by_size(documents([50, 900, 50]))
  assert names(splits)["train"] == ["file1"]
  assert sorted(names(splits)["valid"] + names(splits)["test"]) == ["file0", "file2"]


@pytest.mark.parametrize("sizes", [[], [9], [9, 9], [1, 1000, 1], [1000, 500, 1]])
def test_too_few_or_too_small_files_are_not_split_by(sizes):
  assert split_by_size(documents(sizes)) is None


def test_positions_are_cut_at_90_and_95_percent():
  text = bytes(range(100))
  splits = split_by_position(Document("a", text))
  assert [splits[split][0].text for split in SPLITS] == [text[:90], text[90:95], text[95:]]


@pytest.mark.parametrize("length", range(20, 45))
def test_cuts_never_fall_within_a_character(length):
  text = "a熊é🐻"[length % 4 :] + "熊é🐻" * length
  splits = split_by_position(Document("a", text.encode()))
  assert "".join(splits[split][0].text.decode() for split in SPLITS) == text


def test_the_fingerprint_changes_with_every_part():
  base = {"train": [Document("a", b"bc"), Document("d", b"e")], "valid": [], "test": []}
  variants = [
    {**base, "train": [Document("a", b"bX"), Document("d", b"e")]},
    {**base, "train": [Document("ab", b"c"), Document("d", b"e")]},
    {**base, "train": [Document("d", b"e"), Document("a", b"bc")]},
    {**base, "train": [Document("a", b"bc")], "valid": [Document("d", b"e")]},
    {**base, "train": [Document("a", b"bcde")]},
  ]
  assert fingerprint(base) == fingerprint({split: list(base[split]) for split in SPLITS})
  assert len({fingerprint(base), *map(fingerprint, variants)}) == 6
