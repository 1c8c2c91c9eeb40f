"""Text on the terminal from a trained model, and streams that go on later."""

from pathlib import Path

from tmem import stream_file
from tmem.models import LanguageModel
from train import generate, language_task
from train.config import LanguageRun
from train.errors import FlagError
from train.typewriter import Typewriter


def write(config: LanguageRun) -> None:
  """Prints the prompt and, as it comes, what the trained model makes of it.

  Args:
    config: the run, and in its `sample` what to write.

  Raises:
    FlagError: if the prompt has no tokens or unknown ones, or a stream cannot be loaded or saved.
    RunError: if there is no trained model that can write.
  """
  sample = config.sample
  if sample.save_state is not None:
    _check_place(sample.save_state)  # before anything that would be lost is written
  model, tokenizer, start = language_task.read_trained(config)
  place, prompt = _loaded(model, sample.load_state), None
  if sample.prompt is not None:
    prompt = language_task.encode_prompt(tokenizer, sample.prompt)
  elif place is None:
    prompt = start
  typewriter = Typewriter(tokenizer)
  if prompt is not None:
    place = generate.read(model, prompt, None if place is None else place.stream)
    print("".join(typewriter.type(token) for token in prompt.tolist()), end="", flush=True)
  sampling = generate.Sampling(sample.temperature, sample.top_k)
  last = place
  for token, now in generate.generate(model, place, sample.tokens, sampling, config.run.seed):
    print(typewriter.type(token), end="", flush=True)
    last = now
  print(typewriter.finish())
  if sample.save_state is not None:
    _save(model, sample.save_state, last)


def _loaded(model: LanguageModel, path: str | None) -> generate.Place | None:
  """Where a saved text stands, None without a path; raises FlagError if the file is no such."""
  if path is None:
    return None
  try:
    stream, logits = stream_file.load_stream(path, model)
  except (OSError, ValueError) as error:
    raise FlagError(f"--load_state: {error}") from error
  if logits is None or len(stream.seen) != 1:
    raise FlagError(f"--load_state: {path}: expected one stream, written with --save_state")
  return generate.Place(stream, logits)


def _check_place(path: str) -> None:
  """Raises FlagError if no stream can be written there."""
  try:
    stream_file.check_place(Path(path))
  except (OSError, ValueError) as error:
    raise FlagError(f"--save_state: {error}") from error


def _save(model: LanguageModel, path: str, place: generate.Place) -> None:
  """Writes where a text stands; raises FlagError where that is not possible."""
  try:
    stream_file.save_stream(path, model, *place)
  except (OSError, ValueError) as error:
    raise FlagError(f"--save_state: {error}") from error
