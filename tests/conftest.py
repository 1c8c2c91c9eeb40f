"""What holds for every test."""

import os

# Compiling is what the tests' time goes into, and the programs are tiny: optimise none of them.
# JAX reads this once, so it has to be set before anything imports it.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")
