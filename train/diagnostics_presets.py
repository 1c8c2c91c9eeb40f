"""Sizes of the diagnostic experiments, by preset.

cpu    All of it within an hour on two CPU cores.
paper  The shapes that arXiv 2605.27686 gives: a GPU's work.
smoke  Seconds: does everything work?
"""

import dataclasses

from tmem.config import MemoryConfig
from tmem.slots import SlotConfig
from train.experiments import METHODS, Settings

PRESETS = ("cpu", "paper", "smoke")
_SLOTS = SlotConfig(count=16)  # its chunks are those of the memory


def _memory(size: int, **changes) -> MemoryConfig:
  """What learns coordinates fastest of what was tried, see docs/diagnostics.md."""
  settings = {"channels": 32, "chunk_size": 1, "forget_bias": 8.0, "sigma_scale": 0.3, **changes}
  return MemoryConfig(grid=(size, size, size), **settings)


def _cpu() -> dict[str, Settings]:
  binding = Settings(
    methods=METHODS,
    attention_window=("full", 4),
    seeds=3,
    stages=((5, 200), (10, 400), (20, 600)),
    tested=(5, 10, 20, 50),
    noise=(0.05, 0.0, 0.1),
    memory_every_n_layers=2,
    memory=_memory(4),
    slots=_SLOTS,
  )
  frames = _memory(4, chunk_size=16)
  return {
    "coordinate_binding": binding,
    "map_building": dataclasses.replace(
      binding, stages=((16, 400), (32, 400)), tested=(16, 32, 64), features=96, num_layers=2
    ),
    "occlusion": dataclasses.replace(
      binding,
      attention_window=("full", 16),
      stages=((2, 200), (4, 200), (6, 400)),
      tested=(0, 2, 4, 6),
      memory=frames,
      positions=True,
    ),
    "no_harm": dataclasses.replace(
      binding, seeds=1, stages=((32, 150),), tested=(32,), positions=True
    ),
    "ablations": dataclasses.replace(
      binding,
      methods=("tensor",),
      attention_window=(4,),
      seeds=1,
      stages=((5, 200), (20, 300)),
      tested=(20,),
      noise=(0.05,),
    ),
    "long_recall": dataclasses.replace(
      binding,
      methods=("tensor",),
      attention_window=(4,),
      seeds=1,
      stages=((5, 200), (10, 400)),
      segment=32,
      tested=(5, 10, 20, 50, 100, 200, 512),
      distances=(256, 1024, 4096, 16384),
      grids=((2, 2, 2), (3, 3, 3), (4, 4, 4)),
      eval_samples=32,
    ),
  }


def _paper() -> dict[str, Settings]:
  memory = MemoryConfig(channels=16, grid=(6, 6, 6), chunk_size=1, forget_bias=8.0, sigma_scale=0.3)
  binding = Settings(
    methods=METHODS,
    attention_window=("full", 4),
    seeds=3,
    stages=((10, 2000),),
    tested=(5, 10, 20, 50),
    noise=(0.0, 0.05, 0.1),
    eval_samples=2048,
    batch_size=128,
    memory=memory,
    slots=_SLOTS,
  )
  frames = dataclasses.replace(memory, chunk_size=16)
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
      memory=frames,
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
      methods=("tensor",),
      attention_window=(4,),
      tested=(5, 10, 20, 50, 100, 200, 512),
      distances=(256, 1024, 4096, 16384),
      grids=((4, 4, 4), (6, 6, 6), (8, 8, 8)),
      eval_samples=256,
    ),
  }


def _smoke() -> dict[str, Settings]:
  sizes = {
    "seeds": 1,
    "stages": ((3, 4),),
    "features": 8,
    "num_layers": 1,
    "num_heads": 2,
    "batch_size": 4,
    "eval_samples": 8,
    "warmup_steps": 1,
  }
  return {
    name: dataclasses.replace(
      settings,
      **sizes,
      tested=(3,),
      noise=(0.05,),
      memory=dataclasses.replace(settings.memory, channels=2, grid=(2, 2, 2)),
      slots=dataclasses.replace(settings.slots, count=2),
      segment=8,
      distances=(16, 32) if settings.distances else (),
      grids=((2, 2, 2),) if settings.grids else (),
    )
    for name, settings in _cpu().items()
  }


SETTINGS: dict[str, dict[str, Settings]] = {"cpu": _cpu(), "paper": _paper(), "smoke": _smoke()}
