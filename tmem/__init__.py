"""Tensor Memory: a fixed-size recurrent voxel memory for Transformers, in JAX/Flax.

Reference: arXiv 2605.27686.
"""

from tmem.cell import MemoryState, StepInputs, init_state, memory_step
from tmem.config import MemoryConfig
from tmem.convlstm import GateParams
from tmem.flow import FlowParams
from tmem.grid import gaussian_volume, linear_sample
from tmem.memory import TensorMemory
from tmem.parallel import ParallelParams
from tmem.scan import memory_scan
from tmem.selective import SelectiveParams

__version__ = "0.1.0"

__all__ = [
  "FlowParams",
  "GateParams",
  "MemoryConfig",
  "MemoryState",
  "ParallelParams",
  "SelectiveParams",
  "StepInputs",
  "TensorMemory",
  "gaussian_volume",
  "init_state",
  "linear_sample",
  "memory_scan",
  "memory_step",
]
