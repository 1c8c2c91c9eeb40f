"""Where a model's memory reads and writes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tmem import MemoryConfig, TensorMemory
from tmem.layout import Layout
from tmem.models import SequenceConfig, SequenceModel
from tmem.places import axes_penalty, memory_places

CONFIG = {
  "input_features": 3,
  "classes": 4,
  "features": 8,
  "num_heads": 2,
  "num_layers": 3,
  "memory_every_n_layers": 2,
  "memory": MemoryConfig(channels=2, grid=(3, 2, 4), chunk_size=2, read_heads=1),
}


def test_places_are_what_the_heads_say(randomised):
  model = randomised(lambda: SequenceModel(SequenceConfig(**CONFIG), rngs=nnx.Rngs(0)))
  inputs = np.random.default_rng(0).normal(size=(2, 5, 3)).astype(np.float32)
  found = jax.jit(lambda inputs: memory_places(model, inputs))(inputs)
  assert list(found) == [0, 2]
  assert isinstance(model.memory, TensorMemory)  # looking leaves the model as it is

  @jax.jit
  def expected(inputs):
    block, memory = model.blocks[0], model.memory
    x = model.inputs(inputs) + model.positions[:5]
    x = x + block.attention(block.attention_norm(x), Layout())[0]
    x = block.fusion.norm(x + block.mlp(block.mlp_norm(x)))
    chunks = jnp.pad(x, ((0, 0), (0, 1), (0, 0))).reshape(2, 3, 2, 8)
    summary = memory.summary(chunks.reshape(2, 3, 16))
    spread = jax.nn.softplus(memory.spread(summary)[..., 0]) + 1e-4
    read_at, write_at = memory.coordinate(chunks[:, :, :1]), memory.coordinate(summary)
    return jnp.tanh(read_at), jnp.tanh(write_at), spread

  assert found[0].write is None
  for ours, theirs in zip(found[0][:3], expected(inputs), strict=True):
    np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_a_model_without_a_grid_has_no_places(randomised):
  config = SequenceConfig(**CONFIG, method="slots")
  model = randomised(lambda: SequenceModel(config, rngs=nnx.Rngs(0)))
  with pytest.raises(ValueError, match=r"^model: method 'slots' has no Tensor Memory"):
    memory_places(model, np.ones((1, 4, 3), np.float32))


def test_the_penalty_is_of_axes_that_follow_one_another_or_stand_still():
  x, y, z = np.random.default_rng(0).uniform(-1, 1, size=(3, 5000)).astype(np.float32)
  apart = jnp.stack([x, y, z], axis=-1)
  assert axes_penalty(apart) < 1e-2
  np.testing.assert_allclose(axes_penalty(jnp.stack([x, y, -y], axis=-1)), 2.0, atol=2e-2)
  still = jnp.stack([x, y, np.full_like(z, 0.9)], axis=-1)
  np.testing.assert_allclose(axes_penalty(still), 10 * 0.49**2, rtol=2e-2)
  assert np.abs(jax.grad(lambda t: axes_penalty(t))(jnp.stack([x, y, -y], axis=-1))).max() > 1e-5


def test_the_penalty_counts_what_is_written_and_nothing_else():
  places = np.random.default_rng(0).uniform(-1, 1, size=(2, 50, 3)).astype(np.float32)
  write = np.random.default_rng(1).uniform(size=(2, 50)) < 0.5
  dirty = np.where(write[..., None], places, 7.0).astype(np.float32)
  np.testing.assert_allclose(
    axes_penalty(dirty, write), axes_penalty(places[write][None]), rtol=1e-5
  )
  derive = jax.value_and_grad(axes_penalty)
  for nothing in ((jnp.zeros((2, 0, 3)), None), (jnp.asarray(places), np.zeros((2, 50), bool))):
    value, grad = derive(*nothing)
    assert value == 0.0
    assert not np.asarray(grad).any()


def test_places_of_a_stream_in_pieces_are_those_of_one_pass(randomised):
  config = MemoryConfig(channels=2, grid=(3, 2), chunk_size=2, write_heads=2)
  memory = randomised(lambda: TensorMemory(config, 4, rngs=nnx.Rngs(0)))
  x = np.random.default_rng(0).normal(size=(3, 6, 4)).astype(np.float32)
  state, found = memory.init_state(3, "hold"), []
  for piece in (x[:, :3], x[:, 3:]):
    own = memory.places(piece, state, tail="hold")
    found.append(own.write_at[:, np.asarray(own.write).all(axis=0)])
    _, state = memory(piece, state, tail="hold")
  np.testing.assert_allclose(np.concatenate(found, axis=1), memory.places(x).write_at, atol=1e-6)
  mask = np.array([[True] * 6, [True] * 2 + [False] * 4, [False] * 6])
  written = memory.places(x, mask=mask).write
  np.testing.assert_array_equal(written, np.repeat(mask[:, ::2], 2, axis=1))
