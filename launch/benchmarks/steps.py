"""Training steps of language models: with memory against without, and over more devices."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
import optax
from flax import nnx

from benchmarks.timing import least_seconds, measure, rates
from tmem.models import LanguageModel
from train import language_task
from train.assembly import Training, assemble
from train.config import LanguageRun
from train.language_flags import COMMAND
from train.losses import language_loss
from train.optim import make_optimizer
from train.sharding import put_global_batch

# A training step with memory against "local". At the second shape the authors' code takes 4.6
# times its own "local".
STEPS = {
  "local": {"method": "local"},
  "selective": {"method": "tensor_local", "dynamics": "selective"},
  "convlstm": {"method": "tensor_local", "dynamics": "convlstm"},
  "convlstm, window": {"method": "tensor_local", "dynamics": "convlstm", "memory_update": "window"},
}
STEP_SHAPES = {
  "cpu preset": {"preset": "cpu"},
  "four blocks": {
    "preset": "cpu", "num_layers": 4, "features": 128, "num_heads": 4, "batch_size": 4,
    "max_length": 256, "window": 64, "memory_channels": 32, "grid": (8, 8, 8), "chunk_size": 16,
    "read_heads": 1, "memory_every_n_layers": 1,
  },
}  # fmt: skip
VOCABULARY = {"cpu preset": 256, "four blocks": 2000}
METHODS = {name: STEPS[name] for name in ("local", "selective")}  # where two say enough
ROWS = 2  # of each device


def runner(training: Training, batch: Mapping[str, np.ndarray]) -> Callable[[], Any]:
  """A function that makes the next step with a batch, which lies on the devices already."""
  state, batch = [training.setup.init()], put_global_batch(batch, training.mesh)

  def advance() -> Any:
    state[0], metrics = training.step(state[0], batch)
    return metrics

  return advance


def language_run(flags: dict[str, Any], vocabulary: int) -> LanguageRun:
  """The configuration of a run of `train.language` with some flags and so many token types."""
  values = COMMAND.values(flags["preset"]) | flags | {"workdir": "none"}
  config = COMMAND.build(values)
  return dataclasses.replace(config, model=dataclasses.replace(config.model, vocab_size=vocabulary))


def random_tokens(config: LanguageRun) -> dict[str, np.ndarray]:
  """A batch of a run."""
  shape = (config.run.batch_size, config.model.max_length)
  tokens = np.random.default_rng(0).integers(0, config.model.vocab_size, shape).astype(np.int32)
  return {"inputs": tokens, "targets": tokens}


def language_step(config: LanguageRun) -> Training:
  """The training step of a language model whose rows begin with an empty memory."""
  return assemble(
    lambda rngs: LanguageModel(config.model, rngs=rngs), language_loss, config.run, config.optim
  )


def measure_step(options: Any) -> dict:
  """A training step with memory against one without, as JSON values."""
  data = data_milliseconds(options.repeats)
  shapes = []
  for name, flags in STEP_SHAPES.items():
    contestants = {
      method: training_step(language_run(flags | more, VOCABULARY[name]))
      for method, more in STEPS.items()
      if "memory_update" not in more or "grid" in flags  # a grid larger than a window
    }
    found = measure({"name": name} | flags, contestants, options.repeats)
    tokens = random_tokens(language_run(flags, 2))["inputs"].size
    for method, values in found["measured"].items():
      forward = contestants[method]["forward"][0]
      values |= rates(values, forward, tokens, options.peak)
      values["data_wait"] = data / (data + values["forward_backward_milliseconds"])
    shapes.append(found)
  return {"shapes": shapes, "data": {"milliseconds_per_batch": data}}


def data_milliseconds(repeats: int) -> float:
  """Least milliseconds that the preset's batches of text take, one after the other."""
  config = language_run({"preset": "cpu"}, 256)
  batches = language_task.train_batches(config, language_task.load_corpus(config.data))
  return 1e3 * least_seconds({0: (lambda: next(batches)["inputs"], ())}, 3 * repeats)[0]


def training_step(config: LanguageRun) -> dict:
  """Loss, and a training step, of a language model: kind -> (traced, arguments)."""
  graphdef, params = nnx.split(LanguageModel(config.model, rngs=nnx.Rngs(0)))
  params = nnx.to_pure_dict(params)
  optimizer = make_optimizer(config.optim)
  batch = random_tokens(config)

  def loss(params, batch):
    sums = language_loss(nnx.merge(graphdef, params), batch, None)
    return sums["loss"] / sums["weight"]

  def step(params, state, batch):
    value, grads = jax.value_and_grad(loss)(params, batch)
    updates, state = optimizer.update(grads, state, params)
    return value, optax.apply_updates(params, updates), state

  state = optimizer.init(params)
  return {
    "forward": (jax.jit(loss).trace(params, batch), (params, batch)),
    "forward_backward": (jax.jit(step).trace(params, state, batch), (params, state, batch)),
  }


def measure_scaling(options: Any) -> dict:
  """A step over more and more devices, each with as many rows, as JSON values.

  The devices of a CPU share its cores. So what is measured there is the work of all of them, and
  the efficiency is that of n steps on one device over one on n: what splitting the work adds.
  """
  runs, facts = {}, {"preset": options.preset, "rows_per_device": ROWS}
  counts = [count for count in options.devices if count <= jax.device_count()]
  for method, more in METHODS.items():
    for count in counts:
      flags = {**more, "preset": options.preset, "batch_size": ROWS * count}
      flags["mesh"] = COMMAND.flags["mesh"].parser.parse(f"data:{count},fsdp:1")
      config = language_run(flags, VOCABULARY["cpu preset"])
      runs[method, count] = (runner(language_step(config), random_tokens(config)), ())
      tokens = ROWS * config.model.max_length
  seconds = least_seconds(runs, options.repeats)
  shared = jax.default_backend() == "cpu"
  found = {}
  for method in METHODS:
    own = {count: seconds[method, count] for count in counts}
    found[f"scaling_{method}"] = {
      str(count): {
        "milliseconds": 1e3 * spent,
        "tokens_per_second": count * tokens / spent,
        "efficiency": own[counts[0]] * (count / counts[0] if shared else 1) / spent,
      }
      for count, spent in own.items()
    }
  return {"facts": facts, **found}
