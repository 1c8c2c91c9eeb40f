import hashlib
import json
import re
import sysconfig
from pathlib import Path

import numpy as np
import pytest

from data import sources, text
from data.documents import SPLITS
from data.errors import DatasetError


def sizes(corpus):
  return tuple(getattr(corpus, split).size for split in SPLITS)


def digest(array):
  return hashlib.sha256(array.astype("<i4").tobytes()).hexdigest()[:16]


def test_the_standard_library_needs_no_download():
  corpus = text.load_corpus("stdlib")
  assert corpus.name == "stdlib"
  assert corpus.vocab_size == 256
  assert corpus.train.dtype == np.int32
  assert corpus.train.size > 5_000_000
  assert min(corpus.valid.size, corpus.test.size) > 100_000
  assert max(corpus.valid.size, corpus.test.size) < 0.1 * corpus.train.size
  assert corpus.bytes_per_token("valid") == 1.0
  root = Path(sysconfig.get_path("stdlib"))
  for split, module in (("train", "argparse.py"), ("valid", "ast.py"), ("test", "inspect.py")):
    source = corpus.tokenizer.encode((root / module).read_text("utf-8")).tobytes()
    assert [source in getattr(corpus, s).tobytes() for s in SPLITS] == [s == split for s in SPLITS]


def test_the_standard_library_is_split_by_file():
  splits = sources.read_stdlib()
  names = {split: {document.name for document in splits[split]} for split in SPLITS}
  assert sum(map(len, names.values())) == len(set.union(*names.values()))
  assert not any("test" in Path(name).parts for name in set.union(*names.values()))
  assert {"ast.py", "importlib/_bootstrap.py"} <= names["valid"]
  assert {"inspect.py", "imaplib.py"} <= names["test"]


def test_wikitext2_has_its_known_counts(data_dir):
  corpus = text.load_corpus("wikitext2", data_dir)
  assert corpus.vocab_size == 33_278
  assert sizes(corpus) == (2_088_628, 217_646, 245_569)
  eos = int(corpus.tokenizer.encode("\n")[0])
  assert [(getattr(corpus, split) == eos).sum() for split in SPLITS] == [36_718, 3_760, 4_358]
  assert set(np.unique(corpus.valid)) <= set(np.unique(corpus.train))
  assert corpus.bytes_per_token("test") == 1_256_449 / 245_569
  assert corpus.tokenizer.decode(corpus.valid[:5]) == "\n= Homarus gammarus ="
  again = text.tokenizer_from_dict(json.loads(json.dumps(corpus.tokenizer.to_dict())))
  words = "Homarus no-such-word gammarus"
  assert again.decode(again.encode(words)) == "Homarus <unk> gammarus"


def test_wikitext2_as_the_code_of_the_paper_reads_it(data_dir):
  corpus = text.load_corpus("wikitext2", data_dir, vocabulary="reference")
  assert corpus.vocab_size == 30_000
  assert sizes(corpus) == (2_051_910, 213_886, 241_211)  # the standard ones without ends of lines
  assert corpus.tokenizer.words[:3] == ("the", ",", ".")
  with pytest.raises(DatasetError, match=r"^--vocabulary=reference: of words, and the tokens of"):
    text.load_corpus("stdlib", vocabulary="reference")


def test_documents_start_where_they_do(data_dir):
  corpus = text.load_corpus("wikitext2", data_dir)
  starts = corpus.document_starts["valid"]
  assert len(starts) == 60
  assert np.array_equal(corpus.borders("valid").nonzero()[0], starts)
  first = [corpus.tokenizer.decode(corpus.valid[s : s + 5]) for s in starts[:2]]
  assert all(re.match(r"\s*= [^=]", text) for text in first)


def test_wikitext2_as_characters_and_bytes(data_dir):
  assert sizes(text.load_corpus("wikitext2", data_dir, tokenizer="byte")) == (
    10_797_148,
    1_121_681,
    1_256_449,
  )
  assert text.load_corpus("wikitext2", data_dir, tokenizer="char").vocab_size == 283


def test_tiny_shakespeare_has_its_usual_split(data_dir):
  corpus = text.load_corpus("tiny_shakespeare", data_dir)
  assert corpus.vocab_size == 65
  assert sizes(corpus) == (1_003_854, 55_770, 55_770)
  whole = (data_dir / "tiny_shakespeare" / "input.txt").read_text()
  decoded = "".join(corpus.tokenizer.decode(getattr(corpus, split)) for split in SPLITS)
  assert decoded == whole


@pytest.mark.parametrize("tokenizer", text.TOKENIZERS)
def test_shakespeare_is_split_by_file(data_dir, tokenizer):
  corpus = text.load_corpus("shakespeare", data_dir, tokenizer=tokenizer)
  splits = sources.read_shakespeare(data_dir)
  assert [len(splits[split]) for split in SPLITS] == [37, 2, 3]
  for split in SPLITS:
    content = b"".join(document.text for document in splits[split])
    assert corpus.split_bytes[split] == len(content)
    assert corpus.bytes_per_token(split) == len(content) / getattr(corpus, split).size
    decoded = corpus.tokenizer.decode(getattr(corpus, split))
    assert decoded.split() == content.decode().split()
  raw = [p.read_bytes() for p in (data_dir / "shakespeare" / "text").glob("*.txt")]
  windows_ends = sum(play.count(b"\r\n") for play in raw)
  missing_ends = sum(not play.endswith(b"\n") for play in raw)
  assert sum(corpus.split_bytes.values()) == sum(map(len, raw)) - windows_ends + missing_ends


def test_a_directory_of_plays_is_the_same_text(data_dir):
  plays = text.load_corpus("shakespeare", data_dir)
  own = text.load_corpus("text", data_path=data_dir / "shakespeare" / "text")
  assert [digest(getattr(own, split)) for split in SPLITS] == [
    digest(getattr(plays, split)) for split in SPLITS
  ]


def test_unknown_splits_are_refused(tmp_path):
  path = tmp_path / "a.txt"
  path.write_text("a line\n" * 100)
  corpus = text.load_corpus("text", data_path=path, tokenizer="word")
  assert sizes(corpus) == (270, 15, 15)
  assert corpus.bytes_per_token("train") == 630 / 270
  with pytest.raises(ValueError, match="split: got 'dev', expected one of train, valid, test"):
    corpus.bytes_per_token("dev")
