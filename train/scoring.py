"""The loss of a language model on a text of any length."""

from collections.abc import Iterator

import numpy as np
from flax import nnx

from data.errors import DatasetError
from data.text_file import read_tokens
from train import language_task, result
from train.config import LanguageRun
from train.errors import RunError
from train.evaluate import make_evaluate
from train.losses import stream_loss
from train.metrics import language_metrics
from train.sharding import make_mesh
from train.task import HostBatch

BLOCK = 256  # tokens worked on at once


def score(config: LanguageRun) -> None:
  """Prints the loss of a trained model on a text file, read as one stream.

  The memory that takes does not depend on the length of the file. All tokens but the first count.

  Args:
    config: the run, and in `input` the file.

  Raises:
    RunError: if the file cannot be read or has no second token, or there is no trained model.
  """
  model, tokenizer, _ = language_task.read_trained(config)
  graphdef, params = nnx.split(model)
  evaluate = make_evaluate(graphdef, stream_loss, make_mesh((1, 1, 1), 1))
  size = 0

  def pieces() -> Iterator[np.ndarray]:
    nonlocal size
    for ids, content in read_tokens(config.input, tokenizer):
      size += content
      yield ids

  try:
    means = evaluate(params, _batches(pieces()))
  except DatasetError as error:
    raise RunError(f"--input: {error}") from error
  if not means["weight"]:
    raise RunError(f"--input: {config.input} has one token, expected at least two")
  metrics = language_metrics(means, size / (means["weight"] + 1))
  print("\n".join(["protocol: stream", *result.lines(metrics)]))


def _batches(pieces: Iterator[np.ndarray]) -> Iterator[HostBatch]:
  """One row of inputs and their targets; in the last batch some count for nothing."""
  rest = np.zeros(0, np.int32)
  for piece in pieces:
    rest = np.concatenate([rest, piece])
    while rest.size > BLOCK:
      yield _batch(rest[: BLOCK + 1])
      rest = rest[BLOCK:]
  yield _batch(rest)


def _batch(tokens: np.ndarray) -> HostBatch:
  targets = tokens.size - 1
  padded = np.pad(tokens, (0, BLOCK - targets))
  mask = np.arange(BLOCK) < targets
  return {"inputs": padded[None, :-1], "targets": padded[None, 1:], "mask": mask[None]}
