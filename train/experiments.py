"""The diagnostic experiments: which models are trained on what, and what they are asked."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
from flax import nnx

from data.synthetic import (
  CoordinateBinding,
  Curriculum,
  LongRecall,
  MapBuilding,
  NoHarm,
  Occlusion,
  SyntheticTask,
)
from tmem.config import MemoryConfig
from tmem.models import SequenceConfig, SequenceModel
from tmem.slots import SlotConfig
from train.config import OptimConfig

METHODS = ("base", "base_wide", "slots", "tensor")


@dataclasses.dataclass(frozen=True)
class Settings:
  """Sizes of one experiment.

  Attributes:
    methods: names of `METHODS`.
    attention_window: windows of the attention, in tokens; "full" sees the whole stream.
    seeds: runs that differ by nothing but the seed, of what the report is about: attention in a
      window, and not `base_wide`. Of the rest there is one run.
    stages: the curriculum: (difficulty, steps) pairs. Difficulty is what the experiment varies:
      writes, observations, hidden frames, or tokens.
    tested: difficulties that a trained model is asked about.
    memory: the Tensor Memory.
    slots: the slot memory.
    noise: noise of the queries in each test of a binding; training has the first.
    distances: tokens between the first write and the first query in `long_recall`.
    segment: tokens of a segment of `long_recall`.
    grids: grids that `long_recall` compares.
    eval_samples: samples of each test.
    features: width of the model.
    num_layers: blocks.
    num_heads: attention heads.
    batch_size: samples per step.
    positions: whether tokens have learned positions.
    learning_rate: peak of the learning rate.
    warmup_steps: steps of linear warm-up.
    gate_init: start of the fusion gates.
    memory_every_n_layers: every n-th block has memory.
  """

  methods: tuple[str, ...]
  attention_window: tuple[int | str, ...]
  seeds: int
  stages: tuple[tuple[int, int], ...]
  tested: tuple[int, ...]
  memory: MemoryConfig
  slots: SlotConfig
  noise: tuple[float, ...] = (0.05,)
  distances: tuple[int, ...] = ()
  segment: int = 64
  grids: tuple[tuple[int, ...], ...] = ()
  eval_samples: int = 512
  features: int = 64
  num_layers: int = 2
  num_heads: int = 4
  positions: bool = False
  batch_size: int = 32
  learning_rate: float = 3e-3
  warmup_steps: int = 50
  gate_init: float = 0.0
  memory_every_n_layers: int = 1

  def __post_init__(self):
    writes = max(difficulty for difficulty, _ in self.stages)
    for distance in self.distances:
      if distance <= writes:
        raise ValueError(
          f"distances: {distance} tokens from the first write to the first query do not hold"
          f" {writes} writes; use more tokens or fewer writes (curriculum)"
        )

  @property
  def steps(self) -> int:
    """Training steps in all."""
    return sum(steps for _, steps in self.stages)


@dataclasses.dataclass(frozen=True)
class Cell:
  """One training run of the suite and what its model is asked.

  Attributes:
    experiment: name of the experiment.
    variant: which of the experiment's variants; "" if it has none.
    method: name of `METHODS`.
    window: tokens that attention sees, or "full".
    seed: seed of parameters and samples.
    model: the model.
    training: what it is trained on.
    tests: what it is asked, by name. "valid", what it was trained on last, chooses the best
      checkpoint.
    optim: the optimizer.
    batch_size: samples per step.
    eval_samples: samples of each test.
    segment: tokens of a segment, if streams are fed in segments.
  """

  experiment: str
  variant: str
  method: str
  window: int | str
  seed: int
  model: SequenceConfig
  training: Curriculum
  tests: Mapping[str, SyntheticTask]
  optim: OptimConfig
  batch_size: int
  eval_samples: int
  segment: int | None = None

  @property
  def name(self) -> str:
    """What tells it from the other cells of its experiment: the name of its folder."""
    variant = f"{self.variant}-" if self.variant else ""
    return f"{variant}{self.method}-window_{self.window}-seed_{self.seed}"


def coordinate_binding(settings: Settings) -> Iterator[Cell]:
  """Values bound to points; the difficulty is the number of writes."""

  def task(writes: int, noise: float) -> SyntheticTask:
    return CoordinateBinding(writes=writes, noise=noise)

  tests = {
    f"writes_{writes}_noise_{noise:g}": task(writes, noise)
    for noise in settings.noise
    for writes in settings.tested
  }
  training = _curriculum(settings, lambda writes: task(writes, settings.noise[0]))
  yield from _cells("coordinate_binding", "", settings, training, tests)


def map_building(settings: Settings) -> Iterator[Cell]:
  """A hidden map seen in patches; the difficulty is the number of observations."""

  def task(observations: int) -> SyntheticTask:
    return MapBuilding(observations=observations)

  tests = {f"observations_{count}": task(count) for count in settings.tested}
  yield from _cells("map_building", "", settings, _curriculum(settings, task), tests)


def occlusion(settings: Settings) -> Iterator[Cell]:
  """A moving ball out of sight; the difficulty is the number of hidden frames.

  The published variant, whose last frame shows the ball again, is no headline: one seed will do.
  """
  for variant, until_end, seeds in (("until_end", True, settings.seeds), ("middle", False, 1)):

    def task(hidden: int, until_end: bool = until_end) -> SyntheticTask:
      return Occlusion(hidden=hidden, until_end=until_end)

    tests = {f"hidden_{count}": task(count) for count in settings.tested}
    own = dataclasses.replace(settings, seeds=seeds)
    yield from _cells("occlusion", variant, own, _curriculum(settings, task), tests)


def no_harm(settings: Settings) -> Iterator[Cell]:
  """The next symbol of a cycle, which needs no memory; the difficulty is the number of tokens."""

  def task(tokens: int) -> SyntheticTask:
    return NoHarm(tokens=tokens)

  tests = {f"tokens_{count}": task(count) for count in settings.tested}
  yield from _cells("no_harm", "", settings, _curriculum(settings, task), tests)


def ablations(settings: Settings) -> Iterator[Cell]:
  """Coordinate binding with one part of the memory changed at a time."""
  changes: dict[str, dict[str, Any]] = {
    "recommended": {},
    "write_nearest": {"write": "nearest"},
    "coordinate_heads_separate": {"coordinate_heads": "separate"},
    "depthwise_false": {"depthwise": False},
    **{f"grid_{n}x{n}x{n}": {"grid": (n, n, n)} for n in (4, 6, 8)},
    "chunk_size_2": {"chunk_size": 2},
    "chunk_size_4": {"chunk_size": 4},
    "read_query_token": {"chunk_size": 2, "read_query": "token"},
    "forget_bias_0": {"forget_bias": 0.0},
    "forget_bias_1": {"forget_bias": 1.0},
    "forget_bias_3": {"forget_bias": 3.0},
    "sigma_scale_1": {"sigma_scale": 1.0},
  }
  for variant, change in changes.items():
    memory = dataclasses.replace(settings.memory, **change)
    if variant != "recommended" and memory == settings.memory:
      continue
    for cell in coordinate_binding(dataclasses.replace(settings, memory=memory)):
      yield dataclasses.replace(cell, experiment="ablations", variant=variant)
  for cell in coordinate_binding(settings):
    leaking = dataclasses.replace(cell.model, state_scope="depth", allow_future_leak=True)
    yield dataclasses.replace(
      cell, experiment="ablations", variant="state_scope_depth", model=leaking
    )


def long_recall(settings: Settings) -> Iterator[Cell]:
  """Bindings asked for after a long distraction, and many of them at once, for several grids."""
  noise, queries = settings.noise[0], CoordinateBinding().queries

  def near(writes: int) -> SyntheticTask:
    distractors = settings.segment - writes - queries
    if distractors < 1:
      return CoordinateBinding(writes=writes, noise=noise)
    return LongRecall(writes=writes, noise=noise, distractors=distractors)

  writes = settings.stages[0][0]
  tests: dict[str, SyntheticTask] = {
    f"distance_{distance}": LongRecall(writes=writes, noise=noise, distractors=distance - writes)
    for distance in settings.distances
  }
  tests |= {
    f"writes_{count}": CoordinateBinding(writes=count, noise=noise) for count in settings.tested
  }
  for grid in settings.grids:
    changed = dataclasses.replace(settings, memory=dataclasses.replace(settings.memory, grid=grid))
    variant = "grid_" + "x".join(map(str, grid))
    for cell in _cells("long_recall", variant, changed, _curriculum(settings, near), tests):
      yield dataclasses.replace(cell, segment=settings.segment)


EXPERIMENTS: dict[str, Callable[[Settings], Iterator[Cell]]] = {
  "coordinate_binding": coordinate_binding,
  "map_building": map_building,
  "occlusion": occlusion,
  "no_harm": no_harm,
  "ablations": ablations,
  "long_recall": long_recall,
}


def _curriculum(settings: Settings, task: Callable[[int], SyntheticTask]) -> Curriculum:
  return Curriculum(tuple((task(difficulty), steps) for difficulty, steps in settings.stages))


def _cells(
  experiment: str,
  variant: str,
  settings: Settings,
  training: Curriculum,
  tests: Mapping[str, SyntheticTask],
) -> Iterator[Cell]:
  optim = OptimConfig(
    learning_rate=settings.learning_rate,
    warmup_steps=min(settings.warmup_steps, settings.steps),
    steps=settings.steps,
    weight_decay=0.01,
  )
  tests = {"valid": training.stages[-1][0], **tests}
  longest = max(task.length for task in [*tests.values(), *(t for t, _ in training.stages)])
  for window in settings.attention_window:
    for method in settings.methods:
      model = _model(settings, training, method, window, longest)
      is_headline = window != "full" and method != "base_wide"
      for seed in range(settings.seeds if is_headline else 1):
        yield Cell(
          experiment=experiment,
          variant=variant,
          method=method,
          window=window,
          seed=seed,
          model=model,
          training=training,
          tests=tests,
          optim=optim,
          batch_size=settings.batch_size,
          eval_samples=settings.eval_samples,
        )


def _model(
  settings: Settings, training: Curriculum, method: str, window: int | str, longest: int
) -> SequenceConfig:
  """The model of a method; raises ValueError if the settings do not fit together."""
  chunk_size = settings.memory.chunk_size
  if chunk_size > longest:
    raise ValueError(f"chunk_size: got {chunk_size}, but a stream has {longest} tokens")
  kind = "base" if method == "base_wide" else method
  local = {"base": "local", "slots": "slots_local", "tensor": "tensor_local"}
  config = SequenceConfig(
    input_features=training.input_features,
    classes=training.classes,
    features=settings.features,
    num_heads=settings.num_heads,
    num_layers=settings.num_layers,
    method=kind if window == "full" else local[kind],
    window=1 if window == "full" else window,
    positions=settings.positions,
    max_length=longest,
    gate_init=settings.gate_init,
    memory_every_n_layers=settings.memory_every_n_layers,
    memory=settings.memory,
    slots=settings.slots,
  )
  if method != "base_wide":
    return config
  return _widened(config, count_params(dataclasses.replace(config, method="tensor")))


def _widened(config: SequenceConfig, params: int) -> SequenceConfig:
  """The configuration with the MLP width that comes nearest to a number of parameters."""
  per_unit = config.num_layers * (2 * config.features + 1)
  extra = round((params - count_params(config)) / per_unit)
  return dataclasses.replace(config, mlp_features=config.mlp_features + extra)


def count_params(config: SequenceConfig) -> int:
  """Number of parameters of a model, without making it."""
  model = nnx.eval_shape(lambda: SequenceModel(config, rngs=nnx.Rngs(0)))
  return sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model, nnx.Param)))
