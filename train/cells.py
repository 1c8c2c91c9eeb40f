"""The cells of the diagnostic suite: what a training run is made of, and how it is sized."""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
from flax import nnx

from data.synthetic import Curriculum, SyntheticTask
from tmem.config import MemoryConfig
from tmem.models import SequenceConfig, SequenceModel
from tmem.slots import SlotConfig
from train.config import OptimConfig

VALID = "valid"  # the test that chooses the best checkpoint
# What is compared: the methods of `tmem.decoder_config` with open and with closed attention.
CONTESTANTS = {
  "base": ("base", "local"),
  "base_wide": ("base", "local"),
  "slots": ("slots", "slots_local"),
  "tensor": ("tensor", "tensor_local"),
}
Stages = tuple[tuple[int, int], ...]


@dataclasses.dataclass(frozen=True)
class Settings:
  """Sizes of one experiment.

  Attributes:
    methods: names of `CONTESTANTS`.
    attention_window: windows of the attention, in tokens; "full" sees the whole stream.
    open_methods: those of the methods that are also trained with "full"; None: all.
    seeds: runs that differ by nothing but the seed, of what the report is about: attention in a
      window, and not `base_wide`. Of the rest there is one run.
    stages: the curriculum: (difficulty, steps) pairs. Difficulty is what the experiment varies:
      writes, observations, hidden frames, or tokens.
    tested: difficulties that a trained model is asked about.
    memory: the Tensor Memory.
    slots: the slot memory; it has the chunks of the other.
    per_test: whether each test has a model of its own, trained on it alone for as many steps as
      the last stage has, in place of one model that goes through the stages.
    out_of_reach: whether distractors part the writes of a binding from its queries, so many that
      attention in a window reaches no write when the first query comes.
    lessons: whether training asks more often than the tests do, where an experiment can: one
      answer per sample teaches little. Lessons on the hidden ball also hide it for any number of
      frames up to the difficulty.
    noise: noise of the queries in each test of a binding; training has the first.
    distances: tokens between the first write and the first query in `long_recall`.
    segment: tokens of a segment of `long_recall`.
    segments: segments of a training stream in each stage of `long_recall`; 0: the queries follow
      the writes at once.
    capacity_stages: the curriculum behind the capacity curve of `long_recall`.
    capacities: writes on that curve.
    grids: grids whose capacity `long_recall` compares; the first is also asked from afar.
    eval_samples: samples of each test.
    features: width of the model.
    num_layers: blocks.
    num_heads: attention heads.
    positions: whether tokens have learned positions.
    batch_size: samples per step.
    learning_rate: peak of the learning rate.
    warmup_steps: steps of linear warm-up.
    coordinate_lr_factor: learning rate of coordinate heads over that of the rest.
    axes_weight: weight of `tmem.places.axes_penalty` in the loss.
    gate_init: start of the fusion gates.
    memory_every_n_layers: every n-th block has memory.
  """

  methods: tuple[str, ...]
  attention_window: tuple[int | str, ...]
  seeds: int
  stages: Stages
  tested: tuple[int, ...]
  memory: MemoryConfig
  slots: SlotConfig
  open_methods: tuple[str, ...] | None = None
  per_test: bool = False
  out_of_reach: bool = False
  lessons: bool = False
  noise: tuple[float, ...] = (0.05,)
  distances: tuple[int, ...] = ()
  segment: int = 32
  segments: tuple[int, ...] = ()
  capacity_stages: Stages = ()
  capacities: tuple[int, ...] = ()
  grids: tuple[tuple[int, ...], ...] = ()
  eval_samples: int = 512
  features: int = 64
  num_layers: int = 2
  num_heads: int = 4
  positions: bool = False
  batch_size: int = 32
  learning_rate: float = 3e-3
  warmup_steps: int = 50
  coordinate_lr_factor: float = 0.1
  axes_weight: float = 0.1
  gate_init: float = 0.0
  memory_every_n_layers: int = 1

  @property
  def gap(self) -> int:
    """Distractors between writes and queries: block after block, attention sees that far."""
    closed = [window for window in self.attention_window if window != "full"]
    return self.num_layers * (max(closed) - 1) if closed and self.out_of_reach else 0


@dataclasses.dataclass(frozen=True)
class Cell:
  """One training run of the suite and what its model is asked.

  Attributes:
    experiment: name of the experiment.
    variant: which of the experiment's variants; "" if it has none.
    method: name of `CONTESTANTS`.
    window: tokens that attention sees, or "full".
    seed: seed of parameters and samples.
    model: the model.
    training: what it is trained on.
    tests: what it is asked, by name; `VALID` first, which is what it was trained on last.
    optim: the optimizer.
    batch_size: samples per step.
    eval_samples: samples of each test.
    axes_weight: weight of `tmem.places.axes_penalty` in the loss.
    segment: tokens of a segment, if streams are fed in segments.
    init_from: suite whose cell of the same name this one starts from, if any.
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
  axes_weight: float = 0.0
  segment: int | None = None
  init_from: str | None = None

  @property
  def folder(self) -> Path:
    """Where its run lies in the folder of a suite."""
    return Path("cells") / self.experiment / self.name

  @property
  def name(self) -> str:
    """What tells it from the other cells of its experiment: the name of its folder."""
    variant = f"{self.variant}-" if self.variant else ""
    return f"{variant}{self.method}-window_{self.window}-seed_{self.seed}"

  def to_dict(self) -> dict[str, Any]:
    """Everything that decides what comes out, as JSON values."""
    return {
      "experiment": self.experiment,
      "variant": self.variant,
      "method": self.method,
      "attention_window": self.window,
      "seed": self.seed,
      "model": self.model.to_dict(),
      "training": [[_task_dict(task), steps] for task, steps in self.training.stages],
      "tests": {name: _task_dict(task) for name, task in self.tests.items()},
      "optim": dataclasses.asdict(self.optim),
      "batch_size": self.batch_size,
      "eval_samples": self.eval_samples,
      "axes_weight": self.axes_weight,
      "segment": self.segment,
      **({} if self.init_from is None else {"init_from": self.init_from}),
    }


def _task_dict(task: SyntheticTask) -> dict[str, Any]:
  fields = dataclasses.asdict(task)
  return {"name": task.name, **{name: value for name, value in fields.items() if value is not None}}


def make_cells(
  experiment: str,
  variant: str,
  settings: Settings,
  training: Curriculum,
  tests: Mapping[str, SyntheticTask],
) -> Iterator[Cell]:
  """The cells of a variant: every window, method and seed.

  Args:
    experiment: its name.
    variant: its name; "" if there is one only.
    settings: sizes.
    training: what is trained on.
    tests: what is asked, by name.

  Yields:
    Cells that differ by nothing but window, method and seed.

  Raises:
    ValueError: if the settings do not fit together, naming the field.
  """
  if settings.per_test:
    steps = settings.stages[-1][1]
    for name, task in tests.items():
      own = dataclasses.replace(settings, per_test=False, stages=((1, steps),))
      alone = f"{variant}-{name}" if variant else name
      yield from make_cells(experiment, alone, own, Curriculum(((task, steps),)), {name: task})
    return
  steps = sum(steps for _, steps in training.stages)
  optim = OptimConfig(
    learning_rate=settings.learning_rate,
    warmup_steps=min(settings.warmup_steps, steps),
    steps=steps,
    weight_decay=0.01,
    coordinate_lr_factor=settings.coordinate_lr_factor,
  )
  tests = {VALID: training.stages[-1][0], **tests}
  longest = max(task.length for task in [*tests.values(), *(t for t, _ in training.stages)])
  # Cells that differ by their seed are one program. Of two that are trained at the same time, one
  # should not compile what the other does: what comes one after the other differs by more.
  for seed in range(settings.seeds):
    for window, method in itertools.product(settings.attention_window, settings.methods):
      is_open = window == "full"
      if is_open and method not in (settings.open_methods or settings.methods):
        continue
      if seed and (is_open or method == "base_wide"):  # not what the report is about
        continue
      yield Cell(
        experiment=experiment,
        variant=variant,
        method=method,
        window=window,
        seed=seed,
        model=_model(settings, training, method, window, longest),
        training=training,
        tests=tests,
        optim=optim,
        batch_size=settings.batch_size,
        eval_samples=settings.eval_samples,
        axes_weight=settings.axes_weight,
      )


def _model(
  settings: Settings, training: Curriculum, method: str, window: int | str, longest: int
) -> SequenceConfig:
  """The model of a method; raises ValueError if the settings do not fit together."""
  chunk_size = settings.memory.chunk_size
  if chunk_size > longest:
    raise ValueError(f"chunk_size: got {chunk_size}, but a stream has {longest} tokens")
  is_open = window == "full"
  config = SequenceConfig(
    input_features=training.input_features,
    classes=training.classes,
    features=settings.features,
    num_heads=settings.num_heads,
    num_layers=settings.num_layers,
    method=CONTESTANTS[method][not is_open],
    window=1 if is_open else window,
    positions=settings.positions,
    max_length=longest,
    gate_init=settings.gate_init,
    memory_every_n_layers=settings.memory_every_n_layers,
    memory=settings.memory,
    slots=dataclasses.replace(settings.slots, chunk_size=chunk_size),
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
