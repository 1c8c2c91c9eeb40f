"""Classifiers of videos: frames one by one equal the clip, and all of them cost the same."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tmem import MemoryConfig
from tmem.video_models import METHODS, VideoClassifier, VideoConfig

SMALL = {
  "classes": 5,
  "image_size": 8,
  "patch_size": 4,
  "features": 16,
  "num_layers": 2,
  "num_frames": 4,
  "memory": MemoryConfig(grid=(2, 2, 2), channels=4, chunk_size=2, read_heads=1),
}


@pytest.fixture(scope="module", params=METHODS)
def model(request, randomised):
  config = VideoConfig(method=request.param, **SMALL)
  return randomised(lambda: VideoClassifier(config, rngs=nnx.Rngs(0)))


def clip(frames, batch=2):
  rng = np.random.default_rng(0)
  return jnp.asarray(rng.normal(size=(batch, frames, 8, 8, 3)), jnp.float32)


def runner(model):
  graphdef, params = nnx.split(model)
  return jax.jit(lambda *args: nnx.merge(graphdef, params).onward(*args))


@pytest.mark.parametrize("frames", [1, 4, 7])  # fewer and more than "joint" sees
def test_frames_one_by_one_equal_the_clip_at_once(model, frames):
  video, run = clip(frames), runner(model)
  at_once, last = run(video, model.init_stream(2))
  stream = model.init_stream(2)
  for t in range(frames):
    logits, stream = run(video[:, t : t + 1], stream)
    np.testing.assert_allclose(logits[:, 0], at_once[:, t], atol=2e-6)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-6), stream, last)
  np.testing.assert_allclose(model(video), at_once[:, -1], atol=2e-6)


def test_a_prediction_depends_on_no_later_frame_and_on_earlier_ones(model):
  video, run = clip(4), runner(model)
  changed = video.at[:, 2].add(1.0)
  before, after = (run(v, model.init_stream(2))[0] for v in (video, changed))
  np.testing.assert_array_equal(before[:, :2], after[:, :2])
  assert (np.abs(before - after)[:, 2:].max(axis=(0, 2)) > 1e-3).all()


def test_a_row_is_what_it_is_alone(model):
  video, run = clip(3), runner(model)
  together, _ = run(video, model.init_stream(2))
  alone, _ = run(video[1:], model.init_stream(1))
  np.testing.assert_allclose(together[1:], alone, atol=2e-6)


def test_neither_the_program_nor_what_is_carried_grow_with_the_frames(model):
  run = runner(model)

  def program(frames):
    lowered = run.lower(jnp.zeros((1, frames, 8, 8, 3)), model.init_stream(1))
    return lowered.as_text().count("\n")

  assert program(8) == program(64)
  _, stream = run(clip(3), model.init_stream(2))
  shapes = [(a.shape, a.dtype) for a in jax.tree.leaves(stream)]
  assert shapes == [(a.shape, a.dtype) for a in jax.tree.leaves(model.init_stream(2))]


def test_ten_thousand_frames_leave_no_more_behind_than_a_hundred(model):
  """Memory is flat: what is alive after a piece of the stream does not depend on its place."""
  piece, run, stream = clip(100, batch=1), runner(model), model.init_stream(1)
  alive, logits = [], []
  for _ in range(100):
    told, stream = run(piece, stream)
    alive.append(sum(array.nbytes for array in jax.live_arrays()))
    logits.append(np.array(told)[0, -1])
  assert len(set(alive[1:])) == 1
  assert np.isfinite(logits).all()
  again, _ = run(piece, stream)  # nothing has drifted away: the same frames mean the same
  np.testing.assert_allclose(again[0, -1], logits[-1], atol=1e-4)


def test_the_memory_of_a_call_grows_by_its_frames_and_logits_alone(model):
  run = runner(model)

  def temporaries(frames):
    lowered = run.lower(jnp.zeros((1, frames, 8, 8, 3)), model.init_stream(1))
    return lowered.compile().memory_analysis().temp_size_in_bytes

  frame, summary = 8 * 8 * 3 * 4, SMALL["features"] * 4
  assert temporaries(1000) - temporaries(100) <= 900 * 2 * (frame + summary)


def test_dropout_differs_from_frame_to_frame(randomised):
  """A model that sees one frame at a time says the same of the same frame, but for dropout."""
  config = VideoConfig(**SMALL | {"method": "joint", "num_frames": 1, "dropout": 0.5})
  model = randomised(lambda: VideoClassifier(config, rngs=nnx.Rngs(0)))
  still = jnp.broadcast_to(clip(1, 1), (1, 2, 8, 8, 3))
  run, stream = runner(model), model.init_stream(1)
  first, second = run(still, stream)[0][0]
  np.testing.assert_array_equal(first, second)
  first, second = run(still, stream, jax.random.key(0))[0][0]
  assert np.abs(first - second).max() > 1e-3


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"method": "base"}, "method: got 'base', expected one of 'joint', 'registers', 'tensor'"),
    ({"classes": 0}, "classes: got 0"),
    ({"image_size": 10}, "image_size: 10 is not a multiple of patch_size 4"),
    ({"memory": 3}, "memory: got 3, expected a MemoryConfig"),
  ],
)
def test_bad_configurations_name_the_field(changes, message):
  with pytest.raises(ValueError, match=message):
    VideoConfig(**SMALL | changes)


def test_frames_of_another_shape_are_refused(model):
  for shape in ((2, 8, 8, 3), (2, 3, 8, 4, 3), (2, 0, 8, 8, 3)):
    with pytest.raises(ValueError, match=r"frames: got shape"):
      model(jnp.zeros(shape))
  assert VideoConfig.from_dict(model.config.to_dict()) == model.config
