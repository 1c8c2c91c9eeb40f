"""Language modelling as a task of the loop: text in, next-token loss out."""

import dataclasses
import json
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx

from data import loader, stream_loader, text
from data.errors import DatasetError
from tmem import interop
from tmem.models import LanguageConfig, LanguageModel
from train import inference, outputs, same_data
from train.config import DataConfig, LanguageRun
from train.errors import FlagError, RunError
from train.health import Health
from train.losses import language_loss, stream_loss
from train.metrics import language_metrics
from train.sharding import make_mesh
from train.task import HostBatch, Task, TrainBatches

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
    return text.load_corpus(
      config.dataset, config.data_dir, config.data_path, config.tokenizer, config.vocabulary
    )
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
  return same_data.check(config.run.workdir, config.data.dataset, fingerprint(corpus))


def check_same_tokens(init_from: Path | None, corpus: text.Corpus) -> None:
  """Raises FlagError if the run to start from knows its tokens by other ids."""
  if init_from is None:
    return
  path = outputs.run_of(init_from) / outputs.TOKENIZER
  known = outputs.read_json(path)
  if known is not None and known != json.loads(json.dumps(corpus.tokenizer.to_dict())):
    raise FlagError(
      f"--init_from={init_from}: was trained with other tokens ({path}) than those of"
      f" --dataset={corpus.name}; its embeddings mean something else here"
    )


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


def read_trained(config: LanguageRun) -> tuple[LanguageModel, text.Tokenizer, np.ndarray]:
  """The trained model of a run, for streams, and as `read_run` its tokenizer and tokens.

  Raises:
    RunError: as `read_run`, and if there is no checkpoint or the model is not causal.
  """
  model, tokenizer, prompt = read_run(config.run.workdir)
  if not model.causal:
    raise RunError(
      f"--mode={config.mode}: the model in {config.run.workdir} reads what later tokens write"
      f" (state_scope={model.state_scope}), and a stream has no end"
    )
  graphdef, params, _ = inference.restore_trained(
    lambda rngs: LanguageModel(model, rngs=rngs), config.run, make_mesh((1, 1, 1), 1)
  )
  return nnx.merge(graphdef, params), tokenizer, prompt


def make_task(config: LanguageRun, corpus: text.Corpus) -> Task:
  """Describes a language run to the loop.

  Args:
    config: the run.
    corpus: its text.

  Returns:
    The task.

  Raises:
    FlagError: if the text is shorter than a batch needs.
  """
  model, stream = model_config(config, corpus), config.stream
  for split in ("valid", "test"):
    if getattr(corpus, split).size < 2:
      raise FlagError(f"--dataset={config.data.dataset}: the {split} split has no two tokens")

  def metrics(means: dict[str, float], split: str) -> dict[str, float]:
    return language_metrics(means, corpus.bytes_per_token(split))

  def describe(trained: nnx.Module) -> dict[str, Any]:
    return {
      "method": model.method,
      "dataset": corpus.name,
      "tokenizer": corpus.tokenizer.to_dict()["kind"],
      "vocabulary": config.data.vocabulary,
      "carry_state": stream.carry_state,
      **({"eval_streams": config.run.batch_size} if stream.protocol == "stream" else {}),
      "causal": trained.causal,
      "state_bytes": trained.state_bytes(),
      "fusion_gates": trained.fusion_gates(),
    }

  return Task(
    name="language",
    item="tokens",
    count_items=lambda batch: batch["targets"].size,
    splits=("valid", "test"),
    protocol=stream.protocol,
    build=lambda rngs: LanguageModel(model, rngs=rngs),
    loss_fn=stream_loss if stream.carry_state else language_loss,
    eval_loss_fn=stream_loss if stream.protocol == "stream" else language_loss,
    train_batches=lambda: train_batches(config, corpus),
    eval_batches=lambda split, limit: eval_batches(config, corpus, split, limit),
    metrics=metrics,
    shown=("loss", "perplexity", "bits_per_byte"),
    describe=describe,
    export=interop.save_model,
    watch=Health(
      lambda: next(iter(eval_batches(config, corpus, "valid", 0))),
      lambda model, batch: model(batch["inputs"], reset=batch.get("reset")),
    ),
  )


def train_batches(config: LanguageRun, corpus: text.Corpus) -> TrainBatches:
  """Batches of shuffled windows, or of streams that go on from batch to batch.

  Raises:
    FlagError: if the text is shorter than a batch needs.
  """
  stream, run, length = config.stream, config.run, config.model.max_length
  host = {"host_index": jax.process_index(), "host_count": jax.process_count()}
  borders = corpus.borders("train") if stream.packing else None
  try:
    if stream.carry_state:
      length *= stream.tbptt
      return stream_loader.stream_batches(
        corpus.train, run.batch_size, length, borders=borders, **host
      )
    return loader.train_batches(
      corpus.train, run.batch_size, length, run.seed, borders=borders, **host
    )
  except ValueError as error:
    problem = str(error).partition(": ")[2].replace("the split", "the train split", 1)
    raise FlagError(f"--max_length={config.model.max_length}: {problem}") from error


def eval_batches(
  config: LanguageRun, corpus: text.Corpus, split: str, limit: int
) -> Iterable[HostBatch]:
  """The batches of a split, or of about its first `limit` tokens, by the run's protocol."""
  stream, rows, length = config.stream, config.run.batch_size, config.model.max_length
  size = limit + 1 if limit else None
  tokens = getattr(corpus, split)[:size]
  more = {
    "borders": corpus.borders(split)[:size] if stream.packing else None,
    "reach": config.model.window,
  }
  if stream.protocol == "stream":
    return stream_loader.eval_stream_batches(tokens, rows, length, **more)
  # Short batches are evaluated several at a time; what is measured does not depend on it.
  rows *= max(1, EVAL_TOKENS // (rows * length))
  return loader.eval_batches(tokens, rows, length, **more)
