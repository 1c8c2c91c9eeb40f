"""Tensor Memory: a fixed-size recurrent voxel memory for Transformers, in JAX/Flax.

Reference: arXiv 2605.27686.
"""

from tmem.cell import GateParams, MemoryState, StepInputs, init_state, memory_step
from tmem.config import MemoryConfig
from tmem.grid import gaussian_volume, linear_sample
from tmem.memory import TensorMemory
from tmem.scan import memory_scan

__version__ = "0.1.0"

__all__ = [
  "GateParams",
  "MemoryConfig",
  "MemoryState",
  "StepInputs",
  "TensorMemory",
  "gaussian_volume",
  "init_state",
  "linear_sample",
  "memory_scan",
  "memory_step",
]
