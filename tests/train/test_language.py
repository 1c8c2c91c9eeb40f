import functools
import json
import math
import re
import shlex

import jax
import numpy as np
import pytest
from flax import nnx

import tmem
from tmem import audit, interop
from tmem.models import LanguageConfig, LanguageModel
from train import cli, flags, generate, language, language_task
from train.errors import FlagError, RunError
from train.language_flags import COMMAND

RESULT_KEYS = {
  "task", "method", "dataset", "tokenizer", "preset", "seed", "steps", "params", "causal",
  "state_bytes",
  "tokens_per_second", "data_wait", "peak_memory_bytes", "wall_seconds", "versions", "protocol",
  "fusion_gates", "valid_loss", "valid_perplexity", "valid_bits_per_byte", "test_loss",
  "test_perplexity", "test_bits_per_byte", "valid_tokens", "test_loss_near", "test_loss_far",
}  # fmt: skip


def read(path):
  return json.loads(path.read_text())


def test_a_run_leaves_everything_it_promises(finished, records):
  names = {path.name for path in finished.iterdir()}
  assert names == {
    "config.json", "metrics.jsonl", "tensorboard", "checkpoints", "plots", "result.json",
    "model", "tokenizer.json", ".lock",
  }  # fmt: skip
  assert any((finished / "tensorboard").glob("events.out.tfevents.*"))
  assert (finished / "plots" / "loss.png").read_bytes().startswith(b"\x89PNG")
  steps = [r["step"] for r in records(finished)]
  assert steps == list(range(1, 9))
  assert all("valid_loss" in r for r in records(finished) if r["step"] % 4 == 0)


def test_the_result_says_what_was_measured(finished):
  result = read(finished / "result.json")
  assert result.keys() >= RESULT_KEYS
  assert (result["task"], result["method"], result["dataset"]) == (
    "language",
    "tensor_local",
    "text",
  )
  assert (result["steps"], result["seed"], result["causal"]) == (8, 0, True)
  assert result["protocol"] == "windows"
  assert result["tokens_per_second"] > 0
  assert result["peak_memory_bytes"] > 1e6
  np.testing.assert_allclose(result["test_perplexity"], math.exp(result["test_loss"]))
  # Bytes are the tokens, so bits per byte are nats in other units.
  np.testing.assert_allclose(result["test_bits_per_byte"], result["test_loss"] / math.log(2))
  assert list(result["fusion_gates"]) == ["block_0"]


def test_the_configuration_runs_it_again(finished, records, tmp_path):
  command = shlex.split(read(finished / "config.json")["command"])
  assert command[:3] == ["python", "-m", "train.language"]
  again = [f"--workdir={tmp_path / 'again'}" if "--workdir" in a else a for a in command[3:]]
  language.main(["language", *again])
  assert records(tmp_path / "again") == records(finished)


def test_the_loss_falls_on_text_with_structure(run, tmp_path):
  workdir = run(
    tmp_path / "run", method="local", steps=60, learning_rate=0.03, features=16, eval_every=30
  )
  result = read(workdir / "result.json")
  assert result["test_loss"] < 3.2  # letters at random would be 3.0, bytes at random 5.5


def test_the_exported_model_is_the_best_one_and_causal(finished):
  model = interop.load_model(finished / "model")
  tokens = np.arange(16, dtype=np.int32).reshape(2, 8)
  assert audit.future_influence(jax.jit(lambda t: model(t)), tokens) == 0.0
  params = nnx.to_pure_dict(nnx.split(model)[1])
  assert (
    sum(leaf.size for leaf in jax.tree.leaves(params)) == read(finished / "result.json")["params"]
  )


def test_evaluation_repeats_the_result(finished, bare, capsys):
  bare(workdir=finished, mode="eval", batch_size=8)
  measured, result = read(finished / "eval_windows.json"), read(finished / "result.json")
  (finished / "eval_windows.json").unlink()
  for name in ("valid_loss", "test_loss", "test_bits_per_byte"):
    np.testing.assert_allclose(measured[name], result[name], rtol=1e-6)
  assert measured["protocol"] == "windows"
  assert "test loss: " in capsys.readouterr().out


def test_generation_repeats_by_seed_and_differs_between_seeds(finished, bare, capsys):
  def text(**values):
    bare(workdir=finished, mode="generate", prompt="grid", **values)
    return capsys.readouterr().out

  sampled = [text(temperature=1.0, sample_tokens=20, top_k=k) for k in (0, 0, 1)]
  assert sampled[0] == sampled[1]
  assert sampled[0].startswith("grid")
  assert text(temperature=1.0, sample_tokens=20, seed=1) != sampled[0]
  greedy = text(temperature=0, sample_tokens=20)
  assert sampled[2] == greedy != sampled[0]


@pytest.mark.parametrize("tokenizer", ["byte", "char", "word"])
def test_any_tokenizer_continues_the_prompt_and_needs_none(run, bare, tmp_path, tokenizer, capsys):
  workdir = run(tmp_path / "run", tokenizer=tokenizer, method="local", steps=2)
  capsys.readouterr()
  write = functools.partial(bare, workdir=workdir, mode="generate", sample_tokens=4)
  write(prompt="grid cell")
  assert re.match("grid cell[ \n]" if tokenizer == "word" else "grid cell", capsys.readouterr().out)
  write()
  config = flags.parse(COMMAND, ["language", f"--workdir={workdir}"])
  corpus = language_task.load_corpus(config.data)
  start = corpus.tokenizer.decode(corpus.valid[:16])
  assert capsys.readouterr().out.startswith(start)
  assert len(start) > 10


def test_greedy_text_is_what_the_whole_model_finds_likeliest():
  """Token for token, whatever the stream carries; the prompt may be longer than the positions."""
  memory = tmem.MemoryConfig(channels=2, grid=(2, 2), chunk_size=2)
  config = LanguageConfig(
    vocab_size=7, features=8, num_heads=2, num_layers=2, max_length=12, memory=memory
  )
  model = LanguageModel(config, rngs=nnx.Rngs(0))
  text = [1, 5, 2]
  for _ in range(9):
    text.append(int(model(np.asarray([text]))[0, -1].argmax()))

  def written(prompt, count, sampling):
    place = generate.read(model, np.asarray(prompt))
    return [token for token, _ in generate.generate(model, place, count, sampling)]

  assert written(text[:3], 9, generate.Sampling(temperature=0)) == text[3:]
  assert len(written(np.arange(30) % 7, 5, generate.Sampling())) == 5


def test_a_model_that_sees_the_future_does_not_write(run, bare, tmp_path):
  workdir = run(tmp_path / "run", steps=2, state_scope="depth", allow_future_leak=True)
  for mode in ({"mode": "generate"}, {"mode": "score", "input": __file__}):
    with pytest.raises(RunError, match=rf"--mode={mode['mode']}: .* \(state_scope=depth\)"):
      bare(workdir=workdir, **mode)


@pytest.mark.parametrize("mode", ["eval", "generate"])
def test_a_trained_model_is_not_used_as_another_one(finished, bare, mode):
  with pytest.raises(FlagError, match=r"--features: .* started with 8, this command has 16"):
    bare(workdir=finished, mode=mode, features=16)


@pytest.mark.parametrize("mode", ["eval", "generate"])
def test_without_a_run_there_is_nothing_to_evaluate(bare, tmp_path, mode):
  with pytest.raises(RunError, match=f"no run there for --mode={mode}; train one first"):
    bare(workdir=tmp_path / "none", mode=mode)


@pytest.mark.parametrize("mode", ["eval", "generate"])
def test_without_a_checkpoint_that_is_said(finished, bare, tmp_path, mode):
  for name in ("config.json", "tokenizer.json"):
    (tmp_path / name).write_bytes((finished / name).read_bytes())
  with pytest.raises(RunError, match=r"no checkpoint there; train first"):
    bare(workdir=tmp_path, mode=mode)


def test_a_checkpoint_is_used_by_its_name(run, bare, tmp_path, capsys):
  workdir = run(tmp_path / "run", keep=3)

  def evaluated(name="eval_windows.json", **which):
    capsys.readouterr()
    bare(mode="eval", **which)
    return capsys.readouterr().out, json.loads((workdir / name).read_text())

  best, measured = evaluated(workdir=workdir)
  assert evaluated(checkpoint=workdir) == (best, measured)
  steps = [folder.name for folder in sorted((workdir / "checkpoints").iterdir())]
  assert len(steps) == 2
  found = [
    evaluated(f"eval_windows_{step}.json", checkpoint=workdir / "checkpoints" / step)[1]
    for step in steps
  ]
  assert json.loads((workdir / "eval_windows.json").read_text()) == measured
  assert [one["step"] for one in found] == [int(step) for step in steps]
  assert found[0]["valid_loss"] != found[1]["valid_loss"]
  assert measured in found


@pytest.mark.parametrize(
  ("changes", "error", "message"),
  [
    ({"mode": "train"}, FlagError, "^--checkpoint: for what uses a trained model"),
    ({"workdir": "a"}, FlagError, "^--checkpoint: names a run, and so does --workdir"),
    ({"checkpoint": "none"}, RunError, "^--checkpoint=none: no run there for --mode=eval"),
  ],
)
def test_a_checkpoint_of_no_use_is_named(finished, bare, changes, error, message):
  with pytest.raises(error, match=message):
    bare(**{"checkpoint": finished, "mode": "eval", **changes})


def test_a_checkpoint_that_is_not_there_is_named(finished, bare):
  with pytest.raises(RunError, match=r"^--checkpoint=.*/checkpoints/00000001: no checkpoint there"):
    bare(checkpoint=finished / "checkpoints" / "00000001", mode="eval")


@pytest.mark.parametrize(
  ("name", "content", "message"),
  [
    ("tokenizer.json", '{"kind": "runes"}', r"tokenizer.json: broken \(.*'runes'"),
    ("tokenizer.json", "{", r"tokenizer.json: not a JSON file"),
    ("config.json", '{"flags": {"bogus": 1}}', r"config.json: not written by this version"),
    ("config.json", '{"flags": {"steps": "x"}}', r"config.json: --steps=x: expected an integer"),
    (
      "config.json",
      '{"flags": {"steps": null}}',
      r"config.json: --steps=None: expected an integer",
    ),
    ("config.json", '{"flags": {"debug": 3}}', r"config.json: --debug=3: expected true or false"),
    ("config.json", '{"flags": {}}', r"config.json: has no 'model'; restore it or use another"),
    ("tokenizer.json", '{"kind": "char", "characters": 5}', r"tokenizer.json: broken \(.*string"),
    ("tokenizer.json", '{"kind": "char", "characters": "ab"}', r"has 2 tokens, expected the 256"),
  ],
)
def test_broken_files_are_named(finished, bare, tmp_path, name, content, message):
  for copied in ("config.json", "tokenizer.json"):
    (tmp_path / copied).write_bytes((finished / copied).read_bytes())
  (tmp_path / name).write_text(content)
  with pytest.raises(RunError, match=message):
    bare(workdir=tmp_path, mode="generate")


def test_early_stopping_ends_the_run_and_reports_the_best_step(run, records, tmp_path, capsys):
  hasty = {"learning_rate": 1.0, "warmup_steps": 0, "method": "local"}
  patient = {"steps": 40, "eval_every": 1, "patience": 2}
  workdir = run(tmp_path / "run", **hasty, **patient)
  result = read(workdir / "result.json")
  losses = [r["valid_loss"] for r in records(workdir)]
  assert result["stopped_early"]
  assert result["steps"] < 40
  assert result["best_step"] == 1 + int(np.argmin(losses)) == result["steps"] - 2
  capsys.readouterr()
  run(workdir, **hasty, **patient)
  assert "is finished" in capsys.readouterr().out


def test_too_many_steps_that_are_not_finite_stop_the_run(run, tmp_path):
  broken = {"learning_rate": 1e30, "warmup_steps": 0, "max_skipped_steps": 2, "method": "local"}
  for _ in range(2):  # resuming does not help
    with pytest.raises(RunError, match=r"3 steps had a loss or gradient that is not finite"):
      run(tmp_path / "run", **broken)


def test_a_workdir_that_is_a_file_is_refused(run, tmp_path):
  path = tmp_path / "file"
  path.write_text("")
  with pytest.raises(FlagError, match=r"--workdir=.*file: is a file, expected a folder"):
    run(path)


def test_a_text_that_is_too_short_is_refused(run, tmp_path):
  path = tmp_path / "short.txt"
  path.write_text("word " * 30)
  with pytest.raises(FlagError, match=r"--max_length=\d+: the \w+ split has \d+ tokens"):
    run(tmp_path / "run", data_path=path, max_length=5000)


@pytest.mark.parametrize(
  ("error", "status", "line"),
  [
    (FlagError("--steps=0: expected more"), 2, "error: --steps=0: expected more"),
    (RunError("x.json: broken"), 1, "error: x.json: broken"),
    (OSError(13, "Permission denied", "/x"), 1, "error: /x: Permission denied"),
    (ZeroDivisionError("oh\nmore"), 1, "error: ZeroDivisionError: oh (--debug shows where"),
    (KeyboardInterrupt(), 130, "interrupted"),
  ],
)
def test_errors_end_in_one_line_and_a_status(monkeypatch, capsys, error, status, line):
  def fail(argv):
    raise error

  for arguments in ([], ["--debug"]):
    monkeypatch.setattr("sys.argv", ["language", *arguments])
    with pytest.raises(SystemExit) as caught:
      cli.run(fail)
    assert caught.value.code == status
    shown = capsys.readouterr().err
    assert shown.splitlines()[-1].startswith(line)
    assert ("Traceback" in shown) == bool(arguments)
    assert arguments or shown.count("\n") == 1


def test_the_command_ends_with_its_status_and_keeps_quiet(start, finished, tmp_path):
  bad = start("train.language", f"--workdir={tmp_path}", "--steps=many")
  missing = start(
    "train.language", f"--workdir={tmp_path / 'a'}", "--dataset=wikitext2", f"--data_dir={tmp_path}"
  )
  assert bad.communicate(timeout=60)[1].startswith("error: --steps=many: expected an integer")
  assert bad.returncode == 2
  out, err = missing.communicate(timeout=60)
  assert (missing.returncode, err.count("\n"), out) == (1, 1, "")
  assert err.startswith("error: ")
