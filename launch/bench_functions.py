"""What `launch/bench.py` runs: functions, lowered but not compiled, and their arguments."""

from typing import NamedTuple


class Shape(NamedTuple):
  """One memory layer to measure."""

  name: str
  batch: int
  tokens: int
  features: int
  channels: int
  grid: tuple[int, ...]
  chunk_size: int


def memory_layer(shape: Shape, changes: dict) -> dict:
  """Forward, and forward + backward, of one memory layer: kind -> (lowered, arguments)."""
  import jax
  import jax.numpy as jnp
  from flax import nnx

  import tmem

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
  return {kind: (jax.jit(f).lower(params, x), (params, x)) for kind, f in functions.items()}


def training_step(flags: dict, vocabulary: int) -> dict:
  """Loss, and a training step, of a language model: kind -> (lowered, arguments)."""
  import dataclasses

  import jax
  import numpy as np
  import optax
  from flax import nnx

  from tmem.models import LanguageModel
  from train.language_flags import COMMAND
  from train.losses import language_loss
  from train.optim import make_optimizer

  config = COMMAND.build(COMMAND.values(flags["preset"]) | flags | {"workdir": "none"})
  model = LanguageModel(dataclasses.replace(config.model, vocab_size=vocabulary), rngs=nnx.Rngs(0))
  graphdef, params = nnx.split(model)
  params = nnx.to_pure_dict(params)
  optimizer = make_optimizer(config.optim)
  shape = (config.run.batch_size, config.model.max_length)
  tokens = np.random.default_rng(0).integers(0, vocabulary, shape).astype(np.int32)
  batch = {"inputs": tokens, "targets": tokens}

  def loss(params, batch):
    sums = language_loss(nnx.merge(graphdef, params), batch, None)
    return sums["loss"] / sums["weight"]

  def step(params, state, batch):
    value, grads = jax.value_and_grad(loss)(params, batch)
    updates, state = optimizer.update(grads, state, params)
    return value, optax.apply_updates(params, updates), state

  state = optimizer.init(params)
  return {
    "forward": (jax.jit(loss).lower(params, batch), (params, batch)),
    "forward_backward": (jax.jit(step).lower(params, state, batch), (params, state, batch)),
  }


def video_loss(method: str, frames: int, batch: int) -> dict:
  """Loss of the preset's classifier of videos, and its gradient: kind -> (lowered, arguments)."""
  import jax
  import jax.numpy as jnp
  from flax import nnx

  from tmem.video_models import VideoClassifier
  from train.video_flags import COMMAND, build
  from train.video_losses import smoothed_loss

  values = COMMAND.values("cpu") | {"method": method, "num_frames": frames, "workdir": "none"}
  config = build(values).model
  graphdef, params = nnx.split(VideoClassifier(config, rngs=nnx.Rngs(0)))
  shape = (batch, frames, config.image_size, config.image_size, config.input_channels)
  video = {"frames": jax.random.normal(jax.random.key(0), shape), "label": jnp.zeros(batch, int)}

  def loss(params, video):
    return smoothed_loss(0.0)(nnx.merge(graphdef, params), video, None)["loss"]

  functions = {"forward": loss, "forward_backward": jax.value_and_grad(loss)}
  return {kind: (jax.jit(f).lower(params, video), (params, video)) for kind, f in functions.items()}


def video_stream(method: str):
  """A compiled step of one frame, `step(frame, stream) -> (logits, stream)`, and what it takes."""
  import jax
  from flax import nnx

  from tmem.video_models import VideoClassifier
  from train.inference import compiled
  from train.video_flags import COMMAND, build

  config = build(COMMAND.values("cpu") | {"method": method, "workdir": "none"}).model
  model = VideoClassifier(config, rngs=nnx.Rngs(0))
  shape = (1, 1, config.image_size, config.image_size, config.input_channels)
  step = compiled(model, lambda model, frame, stream: model.onward(frame, stream))
  return step, jax.random.normal(jax.random.key(0), shape), model.init_stream(1)
