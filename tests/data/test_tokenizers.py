import json

import numpy as np
import pytest

from data.tokenizers import (
  ByteTokenizer,
  CharTokenizer,
  WordTokenizer,
  make_tokenizer,
  tokenizer_from_dict,
)

TEXT = "Der Bär – 熊 🐻\n\n  zwei  Worte\n"


def test_byte_ids_are_the_utf8_bytes():
  ids = ByteTokenizer().encode("aé")
  assert ids.tolist() == [97, 0xC3, 0xA9]
  assert ids.dtype == np.int32


def test_byte_tokenizer_takes_bytes_that_are_not_utf8():
  tokenizer = ByteTokenizer()
  assert tokenizer.encode_bytes(b"a\xff").tolist() == [97, 255]
  assert tokenizer.encode("a\udcff").tolist() == [97, 255]
  assert tokenizer.decode([97, 255]) == "a�"


def test_char_ids_follow_the_code_points():
  tokenizer = CharTokenizer.from_text(["banana", "🐻 b"])
  assert tokenizer.characters == " abn🐻"
  assert tokenizer.encode("nab🐻").tolist() == [3, 1, 2, 4]
  assert tokenizer.vocab_size == 5


def test_word_ids_count_every_line_end():
  tokenizer = WordTokenizer.from_text([" = A = \n \n the <unk> A\n"])
  assert tokenizer.words == ("=", "A", "<eos>", "the", "<unk>")
  assert tokenizer.encode(" = A = \n \n the <unk> A\n").tolist() == [0, 1, 0, 2, 2, 3, 4, 1, 2]
  assert tokenizer.encode("the A").tolist() == [3, 1]  # a prompt goes on within its line


def test_the_most_frequent_words_are_known_and_all_others_are_one():
  tokenizer = WordTokenizer.most_frequent("b a\nb c <unk> a b\nd\n", 4)
  assert tokenizer.words == ("b", "a", "c", "<unk>")
  assert tokenizer.encode("a d\nb\n").tolist() == [1, 3, 0]
  assert tokenizer.decode([1, 3, 0]) == "a <unk> b"
  assert tokenizer_from_dict(tokenizer.to_dict()) == tokenizer


def test_only_a_line_feed_ends_a_line_of_words():
  assert WordTokenizer.from_text(["a\u2028b\x85c\n"]).words == ("a", "b", "c", "<eos>")


@pytest.mark.parametrize("kind", ["byte", "char"])
def test_text_survives_a_round_trip(kind):
  tokenizer = make_tokenizer(kind, [TEXT])
  assert tokenizer.decode(tokenizer.encode(TEXT)) == TEXT


def test_words_survive_a_round_trip_but_for_spacing():
  tokenizer = make_tokenizer("word", [TEXT])
  ids = tokenizer.encode(TEXT)
  assert tokenizer.decode(ids) == "Der Bär – 熊 🐻\n\nzwei Worte\n"
  assert tokenizer.encode(tokenizer.decode(ids)).tolist() == ids.tolist()


@pytest.mark.parametrize("kind", ["byte", "char", "word"])
def test_tokenizers_survive_json(kind):
  tokenizer = make_tokenizer(kind, [TEXT])
  again = tokenizer_from_dict(json.loads(json.dumps(tokenizer.to_dict())))
  assert again == tokenizer
  assert again.encode(TEXT).tolist() == tokenizer.encode(TEXT).tolist()


@pytest.mark.parametrize("kind", ["byte", "char", "word"])
def test_empty_text_has_no_tokens(kind):
  tokenizer = make_tokenizer(kind, [TEXT])
  assert tokenizer.encode("").shape == (0,)
  assert tokenizer.decode([]) == ""


def test_unknown_characters_are_named():
  with pytest.raises(ValueError, match=r"character 'x' \(U\+0078\).*--tokenizer=byte"):
    CharTokenizer("abc").encode("abxy")
  with pytest.raises(ValueError, match=r"character '🐻' \(U\+1F43B\)"):
    CharTokenizer("abc").encode("a🐻")


def test_unknown_words_become_unk_or_are_named():
  assert WordTokenizer(("a", "<unk>", "<eos>")).encode("a b\n").tolist() == [0, 1, 2]
  with pytest.raises(ValueError, match=r"word 'bee' is not among the 2 words.*--tokenizer=byte"):
    WordTokenizer(("a", "<eos>")).encode("a bee\n")


@pytest.mark.parametrize("kind", ["byte", "char", "word"])
@pytest.mark.parametrize("wrong", [-1, 256])
def test_ids_outside_the_vocabulary_are_refused(kind, wrong):
  with pytest.raises(ValueError, match=rf"ids: got the id {wrong}, expected ids in \[0, \d+\)"):
    make_tokenizer(kind, [TEXT]).decode([0, wrong])


@pytest.mark.parametrize(
  ("kind", "field", "wrong", "expected"),
  [
    ("char", "characters", None, "a string of different characters"),
    ("char", "characters", 5, "a string of different characters"),
    ("char", "characters", "aba", "a string of different characters"),
    ("word", "words", None, "a list of different strings"),
    ("word", "words", "ab", "a list of different strings"),
    ("word", "words", ["a", 1], "a list of different strings"),
    ("word", "words", ["a", "a"], "a list of different strings"),
  ],
)
def test_broken_descriptions_are_refused(kind, field, wrong, expected):
  with pytest.raises(ValueError, match=f"tokenizer {field}: expected {expected}"):
    tokenizer_from_dict({"kind": kind, field: wrong})


def test_unknown_kinds_are_refused():
  with pytest.raises(ValueError, match="tokenizer: got 'bpe', expected one of byte, char, word"):
    make_tokenizer("bpe", [TEXT])
  with pytest.raises(ValueError, match="tokenizer kind: got None, expected one of"):
    tokenizer_from_dict({})
