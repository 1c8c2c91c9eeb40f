"""Training: one loop for every task, exact resume, one command per task."""

import os

# Read once, when jax loads its C++ part: informational messages do not belong on the terminal.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
