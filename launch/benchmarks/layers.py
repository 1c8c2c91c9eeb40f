"""One memory layer with its heads: the fast scan, the dynamics, windows, and drift."""

import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import tmem
from benchmarks.timing import least_seconds, measure
from tmem.config import DYNAMICS
from tmem.diagonal import sequential_depth


class Shape(NamedTuple):
  """One memory layer to measure."""

  name: str
  batch: int
  tokens: int
  features: int
  channels: int
  grid: tuple[int, ...]
  chunk_size: int


PUBLISHED = Shape("published", 8, 512, 384, 32, (8, 8, 8), 16)
MEMORY_SHAPES = (
  PUBLISHED,
  Shape("small grid", 8, 256, 128, 32, (3, 3, 3), 1),
  Shape("small batch", 4, 256, 128, 32, (8, 8, 8), 16),
)
VARIANT_SHAPES = (PUBLISHED, PUBLISHED._replace(name="fine chunks", chunk_size=2))
# By name, how a contestant's memory differs; the first is what the others are compared with.
IMPLEMENTATIONS = {"plain": {"implementation": "plain"}, "fast": {"implementation": "fast"}}
VARIANTS = {
  "convlstm": {},
  "parallel": {"dynamics": "parallel"},
  "selective": {"dynamics": "selective"},
  "convlstm, window": {"update": "window"},
  "selective, window": {"dynamics": "selective", "update": "window"},
}

WINDOWED_GRIDS = (8, 16, 32)
DRIFT_STEPS = 10_000
COMPILED_CHUNKS = (16, 1024)


def memory_layer(shape: Shape, changes: dict) -> dict:
  """Forward, and forward + backward, of one memory layer: kind -> (traced, arguments)."""
  config = tmem.MemoryConfig.published(
    channels=shape.channels, grid=shape.grid, chunk_size=shape.chunk_size, **changes
  )
  graphdef, params = nnx.split(tmem.TensorMemory(config, shape.features, rngs=nnx.Rngs(0)))
  x = jax.random.normal(jax.random.key(0), (shape.batch, shape.tokens, shape.features))

  def loss(params, x):
    memory = nnx.merge(graphdef, params)
    y, _ = memory(x, memory.init_state(shape.batch))
    return jnp.sum(jnp.square(y))

  gradient = jax.value_and_grad(loss, argnums=(0, 1))
  functions = {"forward": loss, "forward_backward": gradient}
  return {kind: (jax.jit(f).trace(params, x), (params, x)) for kind, f in functions.items()}


def measure_memory(options: Any) -> dict:
  """The fast scan against the plain one, and the growth of compile time, as JSON values."""
  shapes = [_memory_shape(shape, IMPLEMENTATIONS, options.repeats) for shape in MEMORY_SHAPES]
  seconds = [compile_seconds(chunks) for chunks in COMPILED_CHUNKS]
  growth = {f"seconds_{c}_chunks": s for c, s in zip(COMPILED_CHUNKS, seconds, strict=True)}
  return {
    "shapes": shapes,
    "compile_growth": {**growth, "ratio": seconds[1] / seconds[0]},
  }


def measure_variants(options: Any) -> dict:
  """Dynamics and windows against the published dynamics, and windows by grid, as JSON values."""
  shapes = [_memory_shape(shape, VARIANTS, options.repeats) for shape in VARIANT_SHAPES]
  depths = {
    f"{chunks}_chunks": sequential_depth(chunks)
    for chunks in (shape.tokens // shape.chunk_size for shape in VARIANT_SHAPES)
  }
  return {
    "shapes": shapes,
    "sequential_depth_selective": depths,
    "windowed_step_milliseconds": windowed_steps(options.repeats),
  }


def windowed_steps(repeats: int) -> dict:
  """Milliseconds of a windowed step, forward + backward, by cells per axis of the grid.

  The difference between twice as many tokens and once as many, so that what is done once for all
  steps, zeros for the state of a large grid above all, is not in it.
  """
  runs = {}
  for cells in WINDOWED_GRIDS:
    for times in (1, 2):
      tokens = times * PUBLISHED.tokens
      shape = PUBLISHED._replace(grid=(cells,) * 3, tokens=tokens)
      traced, arguments = memory_layer(shape, VARIANTS["convlstm, window"])["forward_backward"]
      runs[cells, times] = (traced.lower().compile(), arguments)
  seconds = least_seconds(runs, repeats)
  steps = PUBLISHED.tokens // PUBLISHED.chunk_size
  found = {
    f"grid_{cells}": 1e3 * (seconds[cells, 2] - seconds[cells, 1]) / steps
    for cells in WINDOWED_GRIDS
  }
  first, *_, last = found.values()
  return {**found, "ratio": last / first}


def measure_drift(options: Any) -> dict:
  """Largest difference of a float32 state from a float64 one, over its largest entry, by dynamics.

  Both compute in bfloat16 from the same tokens.
  """
  del options  # the same every time
  jax.config.update("jax_enable_x64", True)
  x = jax.random.normal(jax.random.key(0), (1, DRIFT_STEPS, 32), jnp.bfloat16)
  found = {}
  for dynamics in DYNAMICS:
    cells = []
    for state_dtype in ("float32", "float64"):
      config = tmem.MemoryConfig(
        channels=8, grid=(4, 4, 4), chunk_size=1, forget_bias=3.0, dynamics=dynamics,
        dtype="bfloat16", param_dtype="float32", state_dtype=state_dtype,
      )  # fmt: skip
      memory = tmem.TensorMemory(config, 32, rngs=nnx.Rngs(0))
      state = jax.jit(lambda x, memory=memory: memory(x, memory.init_state(1))[1])(x)
      cells.append(np.asarray(state.cell, np.float64))
    found[dynamics] = float(np.abs(cells[0] - cells[1]).max() / np.abs(cells[1]).max())
  return {f"state_drift_after_{DRIFT_STEPS}_steps": found}


def _memory_shape(shape: Shape, contestants: dict[str, dict], repeats: int) -> dict:
  traced = {name: memory_layer(shape, changes) for name, changes in contestants.items()}
  return measure(shape._asdict(), traced, repeats)


def compile_seconds(chunks: int) -> float:
  """Least CPU seconds, of three, to compile forward + backward over so many chunks."""
  shape = Shape("compile", 2, 16 * chunks, 32, 16, (4, 4, 4), 16)
  seconds = []
  for _ in range(3):
    jax.clear_caches()
    start = time.process_time()
    memory_layer(shape, {})["forward_backward"][0].lower().compile()
    seconds.append(time.process_time() - start)
  return min(seconds)
