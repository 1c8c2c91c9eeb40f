"""Bytes that a training step needs, by length and by what is computed again; nothing is run."""

from typing import Any

import jax
import numpy as np

from benchmarks.steps import language_run, language_step
from benchmarks.timing import program_bytes
from train.language_flags import COMMAND

POLICIES = {
  "nothing": {},
  "memory steps": {"remat": True},
  "blocks": {"remat_blocks": True},
  "both": {"remat": True, "remat_blocks": True},
}
VOCABULARY = {"wikitext2": 33_278}  # of the presets' texts; bytes have 256


def measure_temporaries(options: Any) -> dict:
  """Bytes of a compiled training step, as JSON values: policy -> length -> bytes.

  "temporary" is what the compiler plans besides arguments and results; "all" is everything.
  """
  flags = {"preset": options.preset, **options.flags}
  found = {}
  for policy, more in POLICIES.items():
    if options.policy in (None, policy):
      found[f"recompute {policy}"] = {
        str(length): _bytes({**flags, **more, "max_length": length}) for length in options.lengths
      }
  return {"facts": flags, **found}


def _bytes(flags: dict[str, Any]) -> dict[str, int]:
  dataset = (COMMAND.values(flags["preset"]) | flags)["dataset"]
  config = language_run(flags, VOCABULARY.get(dataset, 256))
  training = language_step(config)
  shape = (config.run.batch_size, config.model.max_length)
  tokens = jax.ShapeDtypeStruct(shape, np.int32)
  batch = {"inputs": tokens, "targets": tokens}
  seed = jax.ShapeDtypeStruct((), np.uint32)
  compiled = training.step.func.lower(seed, training.setup.abstract, batch).compile()
  memory = compiled.memory_analysis()
  return {"temporary": memory.temp_size_in_bytes, "all": program_bytes(compiled)}
