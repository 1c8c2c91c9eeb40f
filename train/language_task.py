"""Language modelling as a task of the loop: text in, next-token loss out."""

import dataclasses
import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx

from data import loader, text
from data.errors import DatasetError
from tmem import interop
from tmem.models import LanguageConfig, LanguageModel
from train import outputs
from train.config import DataConfig, LanguageRun
from train.errors import FlagError, RunError
from train.losses import language_loss
from train.metrics import language_metrics
from train.task import Task

EVAL_TOKENS = 2048


def load_corpus(config: DataConfig) -> text.Corpus:
  """Reads the text of a run.

  Args:
    config: which text.

  Returns:
    The corpus.

  Raises:
    RunError: saying what is missing and what would be right.
  """
  try:
    return text.load_corpus(config.dataset, config.data_dir, config.data_path, config.tokenizer)
  except DatasetError as error:
    raise RunError(str(error)) from error


def fingerprint(corpus: text.Corpus) -> dict[str, Any]:
  """What tells this text from another one, as JSON: every split's and the tokenizer's."""
  splits = {split: getattr(corpus, split) for split in ("train", "valid", "test")}
  tokenizer = json.dumps(corpus.tokenizer.to_dict()).encode()
  return {
    **{
      split: {"tokens": tokens.size, "crc32": zlib.crc32(tokens.tobytes())}
      for split, tokens in splits.items()
    },
    "tokenizer": {"vocab_size": corpus.vocab_size, "crc32": zlib.crc32(tokenizer)},
  }


def check_same_text(config: LanguageRun, corpus: text.Corpus) -> dict[str, Any]:
  """Returns the fingerprint of the text, or raises RunError if the run began with another."""
  record = outputs.read_json(config.run.workdir / outputs.CONFIG) or {}
  found = fingerprint(corpus)
  began_with = record.get("data", found)
  if not isinstance(began_with, dict):
    began_with = {}
  changed = [part for part in found if found[part] != began_with.get(part)]
  if changed:
    raise RunError(
      f"--dataset={config.data.dataset}: the text is not the one that the run in"
      f" {config.run.workdir} began with ({', '.join(changed)} changed); use another --workdir"
    )
  return found


def model_config(config: LanguageRun, corpus: text.Corpus) -> LanguageConfig:
  """The model's configuration with the vocabulary of the text."""
  return dataclasses.replace(config.model, vocab_size=corpus.vocab_size)


def read_run(workdir: Path) -> tuple[LanguageConfig, text.Tokenizer, np.ndarray]:
  """Reads what is needed to use a trained model without its text.

  Args:
    workdir: folder of the run.

  Returns:
    (configuration of the model, tokenizer, tokens to continue where no prompt is given).

  Raises:
    RunError: naming the file that is missing or broken.
  """
  remedy = "restore it or use another --workdir"

  def read(name: str, convert: Callable[[dict[str, Any]], Any]) -> Any:
    path = workdir / name
    content = outputs.read_json(path)
    if content is None:
      raise RunError(f"{path}: missing; train first")
    try:
      return convert(content)
    except KeyError as error:
      raise RunError(f"{path}: has no {error}; {remedy}") from error
    except (AttributeError, TypeError, ValueError) as error:
      raise RunError(f"{path}: broken ({error}); {remedy}") from error

  model = read(outputs.CONFIG, lambda content: LanguageConfig.from_dict(content["model"]))
  tokenizer = read(outputs.TOKENIZER, text.tokenizer_from_dict)
  if tokenizer.vocab_size != model.vocab_size:
    raise RunError(
      f"{workdir / outputs.TOKENIZER}: has {tokenizer.vocab_size} tokens, expected the"
      f" {model.vocab_size} of the model in {outputs.CONFIG}; {remedy}"
    )
  prompt = read(outputs.CONFIG, lambda content: _checked_prompt(content["prompt"], tokenizer))
  return model, tokenizer, prompt


def _checked_prompt(tokens: Any, tokenizer: text.Tokenizer) -> np.ndarray:
  known = range(tokenizer.vocab_size)
  if not isinstance(tokens, list) or not tokens or any(type(t) is not int for t in tokens):
    raise ValueError(f"prompt: got {tokens!r}, expected a list of token ids")
  if any(token not in known for token in tokens):
    raise ValueError(f"prompt: got {tokens}, expected token ids below {tokenizer.vocab_size}")
  return np.asarray(tokens, np.int32)


def encode_prompt(tokenizer: text.Tokenizer, prompt: str) -> np.ndarray:
  """Tokens of a prompt; raises FlagError if it has none or some that the model does not know."""
  try:
    tokens = tokenizer.encode(prompt)
  except ValueError as error:
    raise FlagError(f"--prompt: {error}") from error
  if not tokens.size:
    raise FlagError("--prompt: empty, expected at least one token of text")
  return tokens


def make_task(config: LanguageRun, corpus: text.Corpus) -> Task:
  """Describes a language run to the loop.

  Args:
    config: the run.
    corpus: its text.

  Returns:
    The task. Splits are cut into windows of `max_length` tokens that do not overlap.

  Raises:
    FlagError: if the text is shorter than a sequence.
  """
  model = model_config(config, corpus)
  batch_size, length = config.run.batch_size, model.max_length
  for split, least in (("train", length + 1), ("valid", 2), ("test", 2)):
    tokens = getattr(corpus, split).size
    if tokens < least:
      raise FlagError(
        f"--max_length={length}: the {split} split has {tokens} tokens, expected at least {least};"
        " use more text or a smaller length"
      )

  def train_batches():
    return loader.train_batches(
      corpus.train,
      batch_size,
      length,
      config.run.seed,
      jax.process_index(),
      jax.process_count(),
    )

  def eval_batches(split: str, limit: int) -> Any:
    tokens = getattr(corpus, split)
    # Short batches are evaluated several at a time; what is measured does not depend on it.
    rows = batch_size * max(1, EVAL_TOKENS // (batch_size * length))
    return loader.eval_batches(tokens[: limit + 1] if limit else tokens, rows, length)

  def metrics(means: dict[str, float], split: str) -> dict[str, float]:
    return language_metrics(means["loss"], corpus.bytes_per_token(split))

  def describe(trained: nnx.Module) -> dict[str, Any]:
    return {
      "method": model.method,
      "dataset": corpus.name,
      "tokenizer": corpus.tokenizer.to_dict()["kind"],
      "causal": trained.causal,
      "state_bytes": trained.state_bytes(),
      "fusion_gates": trained.fusion_gates(),
    }

  return Task(
    name="language",
    item="tokens",
    count_items=lambda batch: batch["targets"].size,
    splits=("valid", "test"),
    protocol="windows",
    build=lambda rngs: LanguageModel(model, rngs=rngs),
    loss_fn=language_loss,
    train_batches=train_batches,
    eval_batches=eval_batches,
    metrics=metrics,
    describe=describe,
    export=interop.save_model,
  )
