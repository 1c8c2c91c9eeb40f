"""The methods of `train.video`: a training step, compile time and a frame of a stream."""

import time
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from benchmarks.timing import measure
from tmem.video_models import METHODS, VideoClassifier
from train.inference import compiled
from train.video_flags import COMMAND, build
from train.video_losses import smoothed_loss

VIDEOS, COMPILED_FRAMES, STREAMED = 32, (8, 64), (100, 10_000)


def measure_video(options: Any) -> dict:
  """The methods of `train.video` at its preset cpu, as JSON values."""

  def runs(method: str, frames: int) -> dict:
    return video_loss(method, frames, VIDEOS)

  facts = {"name": "cpu preset", "frames": COMPILED_FRAMES[0], "batch_size": VIDEOS}
  report = {
    "shapes": [measure(facts, {m: runs(m, COMPILED_FRAMES[0]) for m in METHODS}, options.repeats)]
  }
  for method in METHODS:
    seconds = dict.fromkeys(COMPILED_FRAMES, float("inf"))
    for frames in 2 * COMPILED_FRAMES:
      traced, _ = runs(method, frames)["forward_backward"]
      start = time.process_time()
      traced.lower().compile()
      seconds[frames] = min(seconds[frames], time.process_time() - start)
    few, many = seconds.values()
    report[f"compile_ratio_64_to_8_frames_{method}"] = {"ratio": many / few}
    report[f"frame_milliseconds_{method}"] = _streamed_milliseconds(method)
  return report


def _streamed_milliseconds(method: str) -> dict:
  """Least CPU milliseconds of a frame, of the 100 before each of `STREAMED`."""
  step, frame, stream = video_stream(method)
  found = {}
  for count in range(1, STREAMED[-1] + 1):
    start = time.process_time()
    logits, stream = step(frame, stream)
    logits.block_until_ready()
    spent = 1e3 * (time.process_time() - start)
    end = next(end for end in STREAMED if count <= end)
    if count > end - STREAMED[0]:
      found[f"at_{end}"] = min(spent, found.get(f"at_{end}", spent))
  first, *_, last = found.values()
  return {**found, "ratio": last / first}


def video_loss(method: str, frames: int, batch: int) -> dict:
  """Loss of the preset's classifier of videos, and its gradient: kind -> (traced, arguments)."""
  values = COMMAND.values("cpu") | {"method": method, "num_frames": frames, "workdir": "none"}
  config = build(values).model
  graphdef, params = nnx.split(VideoClassifier(config, rngs=nnx.Rngs(0)))
  shape = (batch, frames, config.image_size, config.image_size, config.input_channels)
  video = {"frames": jax.random.normal(jax.random.key(0), shape), "label": jnp.zeros(batch, int)}

  def loss(params, video):
    return smoothed_loss(0.0)(nnx.merge(graphdef, params), video, None)["loss"]

  functions = {"forward": loss, "forward_backward": jax.value_and_grad(loss)}
  return {kind: (jax.jit(f).trace(params, video), (params, video)) for kind, f in functions.items()}


def video_stream(method: str):
  """A compiled step of one frame, `step(frame, stream) -> (logits, stream)`, and what it takes."""
  config = build(COMMAND.values("cpu") | {"method": method, "workdir": "none"}).model
  model = VideoClassifier(config, rngs=nnx.Rngs(0))
  shape = (1, 1, config.image_size, config.image_size, config.input_channels)
  step = compiled(model, lambda model, frame, stream: model.onward(frame, stream))
  return step, jax.random.normal(jax.random.key(0), shape), model.init_stream(1)
