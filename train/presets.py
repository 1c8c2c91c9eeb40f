"""Presets: one column per name. A flag given on the command line overrides its row."""

from typing import Any

PRESETS = ("quickstart", "cpu", "smoke", "paper")

# quickstart  Memory against its baseline in minutes on two CPU cores.
# cpu         One block more, trained twice as long.
# smoke       Seconds: does everything work?
# paper       The sizes and the memory of arXiv 2605.27686, one state per block (causal).
TABLE: dict[str, tuple[Any, Any, Any, Any]] = {
  "dataset": ("stdlib", "stdlib", "stdlib", "wikitext2"),
  "method": ("tensor_local", "tensor_local", "tensor_local", "tensor_local"),
  # Model.
  "num_layers": (2, 3, 2, 8),
  "features": (128, 128, 32, 384),
  "num_heads": (4, 4, 2, 8),
  "max_length": (256, 256, 32, 512),
  "window": (16, 16, 8, 64),
  "dropout": (0.0, 0.0, 0.1, 0.2),
  # Memory.
  "memory_channels": (16, 16, 4, 32),
  "grid": ((4, 4, 4), (4, 4, 4), (2, 2, 2), (8, 8, 8)),
  "chunk_size": (2, 2, 2, 16),
  "forget_bias": (3.0, 3.0, 3.0, 0.0),
  # Optimisation.
  "batch_size": (8, 8, 4, 32),
  "learning_rate": (1e-3, 1e-3, 1e-3, 3e-4),
  "steps": (600, 1200, 8, 10_000),
  "warmup_steps": (100, 100, 2, 1000),
  # Rhythm.
  "log_every": (20, 20, 2, 50),
  "eval_every": (150, 200, 4, 500),
  "eval_tokens": (32_768, 65_536, 2048, 0),
  "checkpoint_every": (150, 200, 4, 500),
  # Generation.
  "sample_tokens": (300, 300, 40, 200),
}


def preset_values(name: str) -> dict[str, Any]:
  """The column of one preset.

  Args:
    name: one of `PRESETS`.

  Returns:
    Value of every flag that the presets set.
  """
  column = PRESETS.index(name)
  return {flag: row[column] for flag, row in TABLE.items()}
