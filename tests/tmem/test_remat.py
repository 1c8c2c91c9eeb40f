"""Blocks that the backward pass computes again."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tmem import MemoryConfig
from tmem.models import SequenceConfig, SequenceModel
from tmem.places import memory_places
from tmem.video_models import VideoClassifier, VideoConfig

SIZES = {
  "features": 8,
  "num_heads": 2,
  "num_layers": 2,
  "dropout": 0.5,
  "classes": 3,
  "memory": MemoryConfig(channels=2, grid=(2, 2), chunk_size=2),
}
KINDS = {
  "causal": (SequenceModel, SequenceConfig, {"input_features": 3}, (2, 6, 3)),
  "encoder": (VideoClassifier, VideoConfig, {"image_size": 4, "patch_size": 2}, (2, 2, 4, 4, 3)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_computed_twice_give_the_same_gradients(kind):
  cls, config, more, shape = KINDS[kind]
  inputs = np.random.default_rng(0).normal(size=shape).astype(np.float32)
  values, programs = [], []
  for remat in (False, True):
    graphdef, params = nnx.split(cls(config(**SIZES, **more, remat_blocks=remat), rngs=nnx.Rngs(0)))

    def loss(params, inputs, graphdef=graphdef):
      return jnp.sum(jnp.square(nnx.merge(graphdef, params)(inputs, key=jax.random.key(1))))

    compiled = jax.jit(jax.value_and_grad(loss)).lower(params, inputs).compile()
    values.append(jax.tree.leaves(compiled(params, inputs)))
    programs.append(compiled.as_text())
  for ours, theirs in zip(*values, strict=True):
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
  fewer, more = (text.count("rematted_computation") for text in programs)  # the memory has some
  assert fewer < more


def test_places_can_be_seen_of_blocks_computed_twice():
  _, config, more, shape = KINDS["causal"]
  model = SequenceModel(config(**SIZES, **more, remat_blocks=True), rngs=nnx.Rngs(0))
  found = jax.jit(lambda inputs: memory_places(model, inputs))(np.ones(shape, np.float32))
  assert list(found) == [0, 1]
  with pytest.raises(ValueError, match=r"^remat_blocks: got 'yes', expected a bool"):
    config(**SIZES, **more, remat_blocks="yes")
