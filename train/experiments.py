"""The diagnostic experiments: which models are trained on what, and what they are asked."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from data.synthetic import (
  CoordinateBinding,
  Curriculum,
  LongRecall,
  MapBuilding,
  NoHarm,
  Occlusion,
  SyntheticTask,
)
from train.cells import Cell, Settings, Stages, make_cells

# Fields of the memory that `ablations` changes one at a time, from what the settings recommend. A
# number of cells stands for a grid with so many on each of its axes.
MEMORY_CHANGES: Mapping[str, Mapping[str, Any]] = {
  "recommended": {},
  "write_nearest": {"write": "nearest"},
  "coordinate_heads_separate": {"coordinate_heads": "separate"},
  "dynamics_parallel": {"dynamics": "parallel"},
  "dynamics_convlstm": {"dynamics": "convlstm"},
  "dynamics_convlstm_depthwise_false": {"dynamics": "convlstm", "depthwise": False},
  **{f"grid_{n}": {"grid": n} for n in (4, 6, 8)},
  "chunk_size_2": {"chunk_size": 2},
  "chunk_size_4": {"chunk_size": 4},
  "chunk_size_2_read_query_token": {"chunk_size": 2, "read_query": "token"},
  "forget_bias_0": {"forget_bias": 0.0},
  "forget_bias_1": {"forget_bias": 1.0},
  "forget_bias_3": {"forget_bias": 3.0},
  "sigma_scale_1": {"sigma_scale": 1.0},
}

LESSON = {"queries": 16}  # more than a test has


def coordinate_binding(settings: Settings) -> Iterator[Cell]:
  """Values bound to points; the difficulty is the number of writes."""
  tests = {
    f"writes_{writes}_noise_{noise:g}": CoordinateBinding(
      writes=writes, noise=noise, distractors=settings.gap
    )
    for noise in settings.noise
    for writes in settings.tested
  }
  training = _binding_curriculum(settings, settings.stages)
  yield from make_cells("coordinate_binding", "", settings, training, tests)


def _binding_curriculum(settings: Settings, stages: Stages) -> Curriculum:
  """Bindings in stages. Attention may help in the first of several: nothing is learnt without."""
  gaps = [settings.gap] * len(stages)
  if len(stages) > 1:
    gaps[0] = 0
  lesson = CoordinateBinding(noise=settings.noise[0], **LESSON if settings.lessons else {})
  return Curriculum(
    tuple(
      (dataclasses.replace(lesson, writes=writes, distractors=gap), steps)
      for (writes, steps), gap in zip(stages, gaps, strict=True)
    )
  )


def map_building(settings: Settings) -> Iterator[Cell]:
  """A hidden map seen in patches; the difficulty is the number of observations."""

  def lesson(observations: int) -> SyntheticTask:
    if not settings.lessons:
      return MapBuilding(observations=observations)
    # With fewer observations than in any test, most of the map is unknown.
    ask_shown = observations < min(settings.tested)
    return MapBuilding(observations=observations, ask_shown=ask_shown, **LESSON)

  tests = {f"observations_{count}": MapBuilding(observations=count) for count in settings.tested}
  yield from make_cells("map_building", "", settings, _curriculum(settings.stages, lesson), tests)


def occlusion(settings: Settings) -> Iterator[Cell]:
  """A moving ball out of sight; the difficulty is the number of hidden frames.

  The published variant, whose last frame shows the ball again, is no headline: one seed and, where
  there are two windows, the narrower one will do.
  """
  narrow = tuple(w for w in settings.attention_window if w != "full")[:1]
  published = dataclasses.replace(
    settings, seeds=1, attention_window=narrow or settings.attention_window
  )
  for variant, until_end, own in (("until_end", True, settings), ("middle", False, published)):

    def lesson(hidden: int, until_end: bool = until_end) -> SyntheticTask:
      if not settings.lessons:
        return Occlusion(hidden=hidden, until_end=until_end)
      return Occlusion(hidden=hidden, fewest_hidden=0, until_end=until_end, ask_each_frame=True)

    def exam(hidden: int, until_end: bool = until_end) -> SyntheticTask:
      return Occlusion(
        hidden=hidden, until_end=until_end, ask_each_frame=settings.lessons, count_last=True
      )

    training = _curriculum(own.stages, lesson)
    tests = {f"hidden_{count}": exam(count) for count in settings.tested}
    yield from make_cells("occlusion", variant, own, training, tests)


def no_harm(settings: Settings) -> Iterator[Cell]:
  """The next symbol of a cycle, which needs no memory; the difficulty is the number of tokens."""

  def task(tokens: int) -> SyntheticTask:
    return NoHarm(tokens=tokens)

  tests = {f"tokens_{count}": task(count) for count in settings.tested}
  yield from make_cells("no_harm", "", settings, _curriculum(settings.stages, task), tests)


def ablations(settings: Settings) -> Iterator[Cell]:
  """Coordinate binding with one part of the Tensor Memory changed at a time."""
  settings = dataclasses.replace(settings, methods=_only(settings, "tensor"))
  for variant, change in MEMORY_CHANGES.items():
    if "grid" in change:
      grid = (change["grid"],) * len(settings.memory.grid)
      variant, change = "grid_" + "x".join(map(str, grid)), {"grid": grid}
    memory = dataclasses.replace(settings.memory, **change)
    if variant == "recommended" or memory != settings.memory:
      changed = dataclasses.replace(settings, memory=memory)
      yield from _as_ablation(variant, coordinate_binding(changed))
  everywhere = dataclasses.replace(settings, memory_every_n_layers=1)
  yield from _as_ablation("memory_in_every_block", coordinate_binding(everywhere))
  for cell in _as_ablation("state_scope_depth", coordinate_binding(everywhere)):
    leaking = dataclasses.replace(cell.model, state_scope="depth", allow_future_leak=True)
    yield dataclasses.replace(cell, model=leaking)


def _as_ablation(variant: str, cells: Iterator[Cell]) -> Iterator[Cell]:
  for cell in cells:
    yield dataclasses.replace(cell, experiment="ablations", variant=variant)


def long_recall(settings: Settings) -> Iterator[Cell]:
  """Bindings asked for after a long distraction; and as many at once as grids of a size hold.

  Streams of the first kind are fed in segments, and attention sees its own segment only; the first
  of the grids is asked. The second kind compares all grids.
  """
  _check_recall(settings)
  settings = dataclasses.replace(
    settings,
    attention_window=tuple(
      dict.fromkeys(
        settings.segment if window == "full" else window for window in settings.attention_window
      )
    ),
  )
  for variant, own in _by_grid(dataclasses.replace(settings, grids=settings.grids[:1])):
    for cell in make_cells("long_recall", f"distance{variant}", own, *_recall(settings)):
      yield dataclasses.replace(cell, segment=settings.segment)
  for variant, own in _by_grid(settings):
    yield from make_cells("long_recall", f"capacity{variant}", own, *_capacity(settings))


def _check_recall(settings: Settings) -> None:
  """Raises ValueError unless streams, segments and chunks of `long_recall` fit together."""
  segment, chunk_size = settings.segment, settings.memory.chunk_size
  writes, queries = max(writes for writes, _ in settings.stages), CoordinateBinding().queries
  if segment % chunk_size:
    raise ValueError(f"segment: {segment} tokens are not whole chunks of chunk_size {chunk_size}")
  if segment <= writes + queries:
    raise ValueError(f"segment: {segment} tokens do not hold {writes} writes, {queries} queries")
  for distance in settings.distances:
    if distance <= writes:
      raise ValueError(
        f"distances: {distance} tokens from the first write to the first query do not hold"
        f" {writes} writes; use more tokens or fewer writes (curriculum)"
      )


def _recall(settings: Settings) -> tuple[Curriculum, dict[str, SyntheticTask]]:
  """Training and tests of recall from afar; the tests have the writes of the last stage."""
  noise, queries, segment = settings.noise[0], CoordinateBinding().queries, settings.segment

  def task(writes: int, distance: int) -> SyntheticTask:
    return LongRecall(writes=writes, noise=noise, distractors=distance - writes)

  def lesson(writes: int, count: int) -> SyntheticTask:
    if not count:
      return CoordinateBinding(writes=writes, noise=noise)
    return task(writes, count * segment - queries)

  # As in any binding, attention may help in the first of several stages.
  alone = len(settings.stages) == 1
  segments = settings.segments or (int(alone), *[1] * len(settings.stages))
  stages = tuple(
    (lesson(writes, count), steps)
    for (writes, steps), count in zip(settings.stages, segments, strict=False)
  )
  writes = settings.stages[-1][0]
  return Curriculum(stages), {f"distance_{d}": task(writes, d) for d in settings.distances}


def _capacity(settings: Settings) -> tuple[Curriculum, dict[str, SyntheticTask]]:
  """Training and tests of how many bindings a state holds."""
  tests = {
    f"writes_{writes}": CoordinateBinding(
      writes=writes, noise=settings.noise[0], distractors=settings.gap
    )
    for writes in settings.capacities
  }
  return _binding_curriculum(settings, settings.capacity_stages or settings.stages), tests


def _by_grid(settings: Settings) -> Iterator[tuple[str, Settings]]:
  """Settings of the tensor method by grid, and of all other methods, which have none."""
  others = tuple(method for method in settings.methods if method != "tensor")
  if others:
    yield "", dataclasses.replace(settings, methods=others)
  for grid in settings.grids if "tensor" in settings.methods else ():
    memory = dataclasses.replace(settings.memory, grid=grid)
    name = "-grid_" + "x".join(map(str, grid))
    yield name, dataclasses.replace(settings, methods=("tensor",), memory=memory)


def _only(settings: Settings, method: str) -> tuple[str, ...]:
  return tuple(name for name in settings.methods if name == method)


def _curriculum(stages: Stages, task: Callable[[int], SyntheticTask]) -> Curriculum:
  return Curriculum(tuple((task(difficulty), steps) for difficulty, steps in stages))


EXPERIMENTS: dict[str, Callable[[Settings], Iterator[Cell]]] = {
  "coordinate_binding": coordinate_binding,
  "map_building": map_building,
  "occlusion": occlusion,
  "no_harm": no_harm,
  "ablations": ablations,
  "long_recall": long_recall,
}
