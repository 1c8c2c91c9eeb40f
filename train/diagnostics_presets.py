"""Sizes of the diagnostic experiments, by preset.

cpu    For two CPU cores (--jobs=2): one model for all difficulties, trained in stages, with what
       learnt fastest of what was tried (docs/diagnostics.md).
paper  Shapes and hyperparameters of arXiv 2605.27686, one model for each difficulty, forget bias 0:
       a GPU's work.
smoke  Seconds a cell: does everything work?
"""

import dataclasses
from typing import Any, NamedTuple

from tmem.config import MemoryConfig
from tmem.slots import SlotConfig
from train.cells import CONTESTANTS, Settings

PRESETS = ("cpu", "paper", "smoke")
METHODS = tuple(CONTESTANTS)
DISTANCES = (256, 1024, 4096, 16384)
CAPACITIES = (5, 10, 20, 50, 100, 200, 512)


def _cpu() -> dict[str, Settings]:
  binding = Settings(
    methods=METHODS,
    attention_window=("full", 4),
    seeds=3,
    # Slots are what costs most, and with open attention they have nothing to do.
    open_methods=("base", "base_wide", "tensor"),
    stages=((5, 300), (10, 300), (20, 600)),
    tested=(5, 10, 20, 50),
    out_of_reach=True,
    noise=(0.05, 0.0, 0.1),
    memory_every_n_layers=2,
    memory=MemoryConfig(
      channels=32,
      grid=(4, 4, 4),
      chunk_size=1,
      read_heads=1,
      forget_bias=8.0,
      sigma_scale=0.3,
    ),
    slots=SlotConfig(count=32, forget_bias=8.0),  # as many numbers as the grid shows to a read
    learning_rate=1.5e-3,
  )
  return {
    "coordinate_binding": binding,
    "map_building": dataclasses.replace(
      binding,
      stages=((4, 400), (8, 150), (16, 150), (32, 200)),
      tested=(16, 32, 64),
      lessons=True,
      memory=dataclasses.replace(binding.memory, grid=(8, 8)),
      slots=dataclasses.replace(binding.slots, count=22),
      open_methods=("base", "tensor"),
      features=96,
    ),
    # Lessons hide up to six frames.
    "occlusion": dataclasses.replace(
      binding,
      methods=("base", "slots", "tensor"),
      open_methods=("base",),
      stages=((6, 400),),
      tested=(0, 2, 4, 6),
      lessons=True,
      num_layers=3,
      memory_every_n_layers=3,
      memory=MemoryConfig(
        channels=64,
        grid=(3, 3),
        chunk_size=17,  # a frame and its query
        dynamics="convlstm",
        read_heads=1,
        read_query="token",
        forget_bias=5.0,
        sigma_scale=1.0,
        # Half of what two cells are apart: a narrower write can miss them all, and then learns
        # nothing any more (docs/diagnostics.md).
        sigma_min=1 / 2,
      ),
      slots=SlotConfig(count=9, forget_bias=5.0),
      positions=True,
      learning_rate=2e-3,
      coordinate_lr_factor=1.0,
      axes_weight=0.0,
    ),
    "no_harm": dataclasses.replace(
      binding, stages=((32, 150),), tested=(32,), positions=True, memory_every_n_layers=1
    ),
    "ablations": dataclasses.replace(
      binding,
      methods=("tensor",),
      attention_window=(4,),
      seeds=1,
      stages=((5, 150), (20, 250)),
      tested=(20,),
      noise=(0.05,),
    ),
    "long_recall": dataclasses.replace(
      binding,
      methods=("base", "slots", "tensor"),
      attention_window=(4,),
      seeds=1,
      stages=((5, 300), (10, 300), (10, 100)),
      tested=(),
      segments=(0, 1, 4),
      distances=DISTANCES,
      capacity_stages=((5, 200), (10, 200), (20, 300)),
      capacities=CAPACITIES,
      grids=((4, 4, 4), (3, 3, 3), (2, 2, 2)),
      memory=dataclasses.replace(binding.memory, forget_bias=12.0),
      eval_samples=64,
    ),
  }


def _paper() -> dict[str, Settings]:
  binding = Settings(
    methods=METHODS,
    attention_window=("full", 4),
    seeds=3,
    per_test=True,
    stages=((10, 2000),),
    tested=(5, 10, 20, 50),
    noise=(0.0, 0.05, 0.1),
    memory=MemoryConfig.published(channels=16, grid=(6, 6, 6), chunk_size=1),
    slots=SlotConfig(count=16, forget_bias=0.0),
    eval_samples=2048,
    batch_size=128,
    learning_rate=3e-4,
    coordinate_lr_factor=1.0,
    axes_weight=0.0,
  )
  return {
    "coordinate_binding": binding,
    "map_building": dataclasses.replace(
      binding,
      stages=((32, 1500),),
      tested=(16, 32, 64),
      features=96,
      num_layers=3,
      batch_size=64,
    ),
    "occlusion": dataclasses.replace(
      binding,
      attention_window=("full", 16),
      stages=((4, 1500),),
      tested=(0, 2, 4, 6),
      memory=dataclasses.replace(binding.memory, chunk_size=16),
      positions=True,
    ),
    "no_harm": dataclasses.replace(binding, stages=((32, 500),), tested=(32,), positions=True),
    "ablations": dataclasses.replace(
      binding,
      methods=("tensor",),
      attention_window=(4,),
      stages=((20, 2000),),
      tested=(20,),
      noise=(0.05,),
    ),
    "long_recall": dataclasses.replace(
      binding,
      methods=("base", "slots", "tensor"),
      attention_window=(4,),
      per_test=False,
      stages=((10, 1000), (10, 1000), (10, 500)),
      tested=(),
      noise=(0.05,),
      segments=(0, 1, 8),
      distances=DISTANCES,
      capacity_stages=((5, 500), (10, 500), (20, 1000), (50, 2000)),
      capacities=CAPACITIES,
      grids=((8, 8, 8), (6, 6, 6), (4, 4, 4)),
      eval_samples=256,
    ),
  }


def _smoke() -> dict[str, Settings]:
  return {
    name: dataclasses.replace(
      settings,
      seeds=1,
      stages=((3, 4),),
      tested=(3,),
      noise=(0.1,),
      segment=8,
      segments=(2,) if settings.segments else (),
      distances=(16,) if settings.distances else (),
      capacity_stages=((3, 4),) if settings.capacities else (),
      capacities=(4,) if settings.capacities else (),
      grids=((2, 2, 2),) if settings.grids else (),
      features=8,
      num_layers=2,
      num_heads=2,
      batch_size=8,
      eval_samples=8,
      warmup_steps=1,
      memory=dataclasses.replace(settings.memory, channels=2, grid=(2, 2, 2)),
      slots=dataclasses.replace(settings.slots, count=2),
    )
    for name, settings in _cpu().items()
  }


SETTINGS: dict[str, dict[str, Settings]] = {"cpu": _cpu(), "paper": _paper(), "smoke": _smoke()}


class Longer(NamedTuple):
  """A longer run that the report of the cpu preset names.

  Attributes:
    name: of the run.
    what: what it is, a sentence.
    flags: the flags that make it what it is.
    goes_on: whether it starts from the parameters of the suite that is reported.
  """

  name: str
  what: str
  flags: dict[str, Any]
  goes_on: bool = False


LONGER: dict[str, tuple[Longer, ...]] = {
  "coordinate_binding": (
    Longer(
      "published_shape",
      "The published shape with the settings recommended here, ten minutes a seed on one core:",
      {
        "methods": ("base", "tensor"),
        "preset": "paper",
        "attention_window": (4,),
        "out_of_reach": True,
        "dynamics": "selective",
        "memory_every_n_layers": 2,
        "forget_bias": 8,
        "learning_rate": 1.5e-3,
        "sigma_scale": 0.3,
        "coordinate_lr_factor": 0.1,
        "axes_weight": 0.1,
        "curriculum": ((5, 500), (10, 1500)),
        "tested": (5, 10, 20),
        "noise": (0.05,),
      },
    ),
    Longer(
      "fine_grid",
      "Hundreds of bindings: training goes on where this suite has stopped, on a grid of 64 times"
      " as many cells, with windowed writes; eight minutes a seed on one core:",
      {
        "methods": ("tensor",),
        "attention_window": (4,),
        "grid": (16, 16, 16),
        "memory_update": "window",
        "write_window": (4, 4, 4),
        "sigma_scale": 0.1,
        "lessons": True,
        "curriculum": ((20, 100), (50, 500), (128, 400)),
        "tested": (5, 10, 20, 50, 100, 128, 200, 512),
        "noise": (0.05, 0.0),
      },
      goes_on=True,
    ),
  ),
  "occlusion": (
    Longer(
      "longer",
      "Three times as many steps, of which every seed learns to follow the hidden ball:",
      {"methods": ("slots", "tensor"), "attention_window": (4,), "curriculum": ((6, 1200),)},
    ),
  ),
}
