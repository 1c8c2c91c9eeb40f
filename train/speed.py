"""How fast a language model reads and writes a stream, and what that takes."""

import time
from typing import Any

import jax
import numpy as np

from tmem import streaming
from tmem.decoder import Stream
from tmem.models import LanguageModel

PROMPT = 1024  # tokens of the prompt that is timed
STEPS = 16  # tokens written in a round
ROUNDS = 3  # of which the fastest counts
CONTEXTS = (1024, 16_384, 131_072)  # tokens of context at which it writes


def measure(model: LanguageModel) -> dict[str, Any]:
  """Times one stream on this machine.

  Of contexts beyond the prompt the stream is told that it has seen so many tokens: its arrays, and
  with them the work of a step, are those of a stream that has.

  Args:
    model: a causal language model.

  Returns:
    "prefill_tokens_per_second" and "decode_tokens_per_second_<context>".
  """
  rng = np.random.default_rng(0)
  prompt = rng.integers(0, model.config.vocab_size, size=(1, PROMPT)).astype(np.int32)
  model = streaming.frozen(model)
  empty = streaming.init(model, 1)
  seconds, (_, stream) = _fastest(lambda: streaming.prefill(model, prompt, empty))
  found: dict[str, Any] = {"prefill_tokens_per_second": PROMPT / seconds}
  for context in CONTEXTS:
    late = at_context(stream, context)

    def write(late=late):
      logits, now = None, late
      for index in range(STEPS):
        logits, now = streaming.step(model, prompt[:, index : index + 1], now)
      return logits, now

    seconds, _ = _fastest(write)
    found[f"decode_tokens_per_second_{context}"] = STEPS / seconds
  return found


def at_context(stream: Stream, context: int) -> Stream:
  """A stream that is told that it has seen so many tokens."""
  return stream._replace(seen=0 * stream.seen + context, age=0 * stream.age + context)


def _fastest(call) -> tuple[float, Any]:
  """Seconds of the fastest of some calls, and what the last returned; the first compiles."""
  result = jax.block_until_ready(call())
  seconds = []
  for _ in range(ROUNDS):
    began = time.perf_counter()
    result = jax.block_until_ready(call())
    seconds.append(time.perf_counter() - began)
  return min(seconds), result
