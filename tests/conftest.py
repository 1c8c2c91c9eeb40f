"""What holds for every test."""

import importlib.metadata
import os

# Compiling is what the tests' time goes into, and the programs are tiny: optimise none of them.
FLAGS = "--xla_backend_optimization_level=0"
if importlib.metadata.version("jaxlib").startswith("0.10."):
  # Code by the older emitters takes half the time to compile. Later versions have them no more,
  # and stop at flags that they do not know.
  FLAGS += " --xla_cpu_use_fusion_emitters=false"

# JAX reads this once, so it has to be set before anything imports it.
os.environ.setdefault("XLA_FLAGS", FLAGS)
