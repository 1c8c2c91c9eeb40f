"""What the next token of a stream costs, by how many stand before it."""

from typing import Any

import numpy as np
from flax import nnx

from benchmarks.steps import language_run
from benchmarks.timing import least_seconds
from tmem import streaming
from tmem.models import LanguageModel
from train.speed import at_context

METHODS = {
  "base": {"method": "base"},
  "local": {"method": "local"},
  "tensor_local": {"method": "tensor_local"},
}
TOKENS = 8  # written at once


def measure_decode(options: Any) -> dict:
  """Milliseconds of a token, and bytes that a stream keeps, of a preset, as JSON values.

  Attention over everything, `base`, gets as many positions as there are tokens; the others keep the
  same whatever is before them.
  """
  runs, kept, models = {}, {}, {}
  for context in options.contexts:
    for method, flags in METHODS.items():
      longer = {"max_length": context} if method == "base" else {}
      config = language_run({"preset": options.preset, **flags, **longer}, 256)
      if config.model not in models:  # one for all contexts: to tell equal ones apart takes time
        model = LanguageModel(config.model, rngs=nnx.Rngs(0))
        models[config.model] = model, streaming.frozen(model)
      model, fast = models[config.model]
      kept[method, context] = model.state_bytes()
      runs[method, context] = (_write, (fast, at_context(streaming.init(model, 1), context)))
  seconds = least_seconds(runs, options.repeats)
  return {
    f"decode_{method}": {
      str(context): {
        "milliseconds_per_token": 1e3 * seconds[method, context] / TOKENS,
        "tokens_per_second": TOKENS / seconds[method, context],
        "state_bytes": kept[method, context],
      }
      for context in options.contexts
    }
    for method in METHODS
  }


def _write(model: streaming.Frozen, stream: Any) -> Any:
  token, logits = np.zeros((1, 1), np.int32), None
  for _ in range(TOKENS):
    logits, stream = streaming.step(model, token, stream)
  return logits
