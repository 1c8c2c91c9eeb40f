"""Text as it comes, streams that go on later, and the score of a file of any length."""

import jax
import numpy as np
import pytest

from data.text_file import CHARACTERS, read_tokens
from data.tokenizers import ByteTokenizer, CharTokenizer, WordTokenizer
from tmem import interop
from train import generate, scoring
from train.errors import FlagError, RunError
from train.typewriter import Typewriter

TEXT = "die Größe 日本 🐻\n\nzwei  Worte\n \nund mehr"
TOKENIZERS = {
  "byte": ByteTokenizer(),
  "char": CharTokenizer.from_text([TEXT]),
  "word": WordTokenizer.from_text([TEXT]),
}


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_pieces_join_to_the_text_of_all_tokens(kind):
  tokenizer = TOKENIZERS[kind]
  tokens, typewriter = tokenizer.encode(TEXT).tolist(), Typewriter(tokenizer)
  pieces = [typewriter.type(token) for token in tokens]
  assert "".join(pieces) + typewriter.finish() == tokenizer.decode(tokens)
  assert sum(map(bool, pieces)) > 5


def test_a_character_that_is_cut_off_is_shown_as_such():
  typewriter = Typewriter(ByteTokenizer())
  assert [typewriter.type(token) for token in "ß".encode()[:1]] == [""]
  assert typewriter.finish() == "\ufffd"


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_a_file_in_pieces_is_the_file(kind, tmp_path, monkeypatch):
  path = tmp_path / "text.txt"
  path.write_bytes(b"\xef\xbb\xbf" + TEXT.replace("\n", "\r\n").encode())
  expected = TOKENIZERS[kind].encode(TEXT).tolist()
  for size in (1, 2, 7, CHARACTERS):
    monkeypatch.setattr("data.text_file.CHARACTERS", max(size, 3 if kind == "byte" else 1))
    ids, sizes = zip(*read_tokens(path, TOKENIZERS[kind]), strict=True)
    assert np.concatenate(ids).tolist() == expected
    assert sum(sizes) == len(TEXT.encode())


def test_a_text_continued_later_is_the_text_that_was_not_interrupted(
  finished, bare, tmp_path, capsys
):
  def text(**values):
    bare(workdir=finished, mode="generate", temperature=1.0, **values)
    return capsys.readouterr().out.removesuffix("\n")

  whole = text(prompt="grid", sample_tokens=30)
  state = tmp_path / "state"
  first = text(prompt="grid", sample_tokens=12, save_state=state)
  then = text(load_state=state, sample_tokens=18, save_state=state)
  assert first + then == whole
  with_prompt = text(load_state=state, prompt="cell", sample_tokens=3)
  assert with_prompt.startswith("cell")
  assert text(load_state=state, sample_tokens=3) != with_prompt


def test_states_that_cannot_be_used_are_named(finished, run, bare, tmp_path, capsys):
  def write(**values):
    bare(workdir=finished, mode="generate", sample_tokens=2, **values)

  with pytest.raises(FlagError, match=r"^--load_state: .*no such file"):
    write(load_state=tmp_path / "none")
  capsys.readouterr()
  with pytest.raises(FlagError, match=r"^--save_state: .*there is no folder"):
    write(save_state=tmp_path / "none" / "state")
  assert not capsys.readouterr().out  # said before anything is written
  write(save_state=tmp_path / "state")
  whole = (tmp_path / "state").read_bytes()
  (tmp_path / "half").write_bytes(whole[: len(whole) // 2])
  with pytest.raises(FlagError, match=r"^--load_state: .*broken or truncated"):
    write(load_state=tmp_path / "half")
  other = run(tmp_path / "other", steps=2, method="local")
  with pytest.raises(FlagError, match=r"^--load_state: .*of another model"):
    bare(workdir=other, mode="generate", load_state=tmp_path / "state")


def test_the_score_of_a_file_is_that_of_one_pass(finished, bare, tmp_path, capsys, monkeypatch):
  monkeypatch.setattr(scoring, "BLOCK", 16)
  path = tmp_path / "text.txt"
  path.write_bytes(b"grid cell state\r\nread write token query gate\n" * 3)
  bare(workdir=finished, mode="score", input=path)
  printed = dict(line.split(": ") for line in capsys.readouterr().out.splitlines())
  model = interop.load_model(finished / "model")
  tokens = np.frombuffer(path.read_bytes().replace(b"\r", b""), np.uint8).astype(np.int32)[None]
  logits, _ = model.onward(tokens[:, :-1], model.init_stream(1))
  nats = -np.take_along_axis(np.asarray(jax.nn.log_softmax(logits)), tokens[:, 1:, None], -1)
  np.testing.assert_allclose(float(printed["loss"]), nats.mean(), atol=1e-4)
  bits = nats.mean() / np.log(2) * tokens.size / len(path.read_bytes().replace(b"\r", b""))
  np.testing.assert_allclose(float(printed["bits per byte"]), bits, atol=1e-3)
  assert float(printed["tokens"]) == tokens.size - 1
  assert printed["protocol"] == "stream"


@pytest.mark.parametrize(
  ("content", "message"),
  [
    (None, "^--input: .*cannot be read"),
    (b"", "^--input: .*has no tokens"),
    (b"\xef\xbb\xbf", "^--input: .*has no tokens"),
    (b"g", "^--input: .*has one token, expected at least two"),
  ],
)
def test_files_that_cannot_be_scored_are_named(finished, bare, tmp_path, content, message):
  path = tmp_path / "text.txt"
  if content is not None:
    path.write_bytes(content)
  with pytest.raises(RunError, match=message):
    bare(workdir=finished, mode="score", input=path)


def test_a_binary_file_is_no_text_of_characters(tmp_path):
  path = tmp_path / "binary"
  path.write_bytes(b"ab\xff\x00")
  with pytest.raises(Exception, match=r"binary: not UTF-8 \(byte 0xff\)"):
    list(read_tokens(path, TOKENIZERS["char"]))
  path.write_text("die Katze")
  with pytest.raises(Exception, match="binary: character 'K'"):
    list(read_tokens(path, TOKENIZERS["char"]))
  path.write_bytes(b"a" * (3 * CHARACTERS))
  with pytest.raises(Exception, match="binary: a word of more than"):
    list(read_tokens(path, TOKENIZERS["word"]))


def test_scoring_needs_a_file(finished, bare):
  with pytest.raises(FlagError, match=r"^--input: missing, --mode=score needs a text file"):
    bare(workdir=finished, mode="score")


def test_sampling_depends_on_the_place_alone(finished):
  model = interop.load_model(finished / "model")
  place = generate.read(model, np.arange(5))
  sampling = generate.Sampling(temperature=1.0)
  tokens = [
    [t for t, _ in generate.generate(model, place, 6, sampling, seed)] for seed in (0, 0, 1)
  ]
  assert tokens[0] == tokens[1] != tokens[2]
