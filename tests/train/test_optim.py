import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from train.config import OptimConfig
from train.optim import decay_mask, learning_rate_schedule, make_optimizer


def test_schedule_rises_linearly_and_falls_as_a_cosine():
  config = OptimConfig(learning_rate=0.2, warmup_steps=10, steps=110, final_lr_fraction=0.1)
  schedule = learning_rate_schedule(config)
  np.testing.assert_allclose([schedule(0), schedule(5), schedule(10)], [0, 0.1, 0.2], rtol=1e-6)
  halfway = 0.1 * 0.2 + 0.9 * 0.2 * 0.5
  np.testing.assert_allclose([schedule(60), schedule(110)], [halfway, 0.02], rtol=1e-5)


def test_schedule_without_warmup_starts_at_the_peak():
  schedule = learning_rate_schedule(OptimConfig(learning_rate=0.2, warmup_steps=0, steps=10))
  np.testing.assert_allclose(schedule(0), 0.2, rtol=1e-6)


def test_clipping_bounds_the_global_norm_and_zero_turns_it_off():
  grads = {"kernel": jnp.full((2, 2), 5.0)}  # norm 10
  for clip, expected in ((1.0, 0.5), (0.0, 5.0), (100.0, 5.0)):
    config = OptimConfig(1.0, 0, 10, weight_decay=0.0, clip_norm=clip)
    optimizer = make_optimizer(config)
    _, state = optimizer.update(grads, optimizer.init(grads), grads)
    first_moment = state[1][0].mu["kernel"] / (1 - config.b1)
    np.testing.assert_allclose(first_moment, jnp.full((2, 2), expected), rtol=1e-5)


def test_only_matrices_decay(task):
  made, _ = task()
  params = nnx.to_pure_dict(nnx.split(nnx.eval_shape(lambda: made.build(nnx.Rngs(0))))[1])
  mask = decay_mask(params)
  leaves = jax.tree_util.tree_leaves_with_path(mask)
  named = {jax.tree_util.keystr(p, simple=True, separator="/"): decayed for p, decayed in leaves}
  for path, leaf in jax.tree_util.tree_leaves_with_path(params):
    name = jax.tree_util.keystr(path, simple=True, separator="/")
    if leaf.ndim < 2 or "embed" in name or "norm" in name or "pos" in name:
      assert not named[name], name
  assert any(named.values())
  assert not all(named.values())


def test_decay_shrinks_what_the_mask_says():
  params = {"kernel": jnp.ones((2, 2)), "bias": jnp.ones(2), "embedding": jnp.ones((2, 2))}
  config = OptimConfig(learning_rate=0.1, warmup_steps=0, steps=10, weight_decay=0.5)
  optimizer = make_optimizer(config)
  zeros = jax.tree.map(jnp.zeros_like, params)
  updates, _ = optimizer.update(zeros, optimizer.init(params), params)
  np.testing.assert_allclose(updates["kernel"], -0.05 * np.ones((2, 2)), rtol=1e-6)
  assert not np.any(updates["bias"])
  assert not np.any(updates["embedding"])


def test_coordinate_heads_have_a_learning_rate_of_their_own():
  params = {"memory": {"coordinate": jnp.ones((2, 2)), "content": jnp.ones((2, 2))}}
  config = OptimConfig(0.1, 0, 10, weight_decay=0.5, coordinate_lr_factor=0.1)
  optimizer = make_optimizer(config)
  grads = jax.tree.map(jnp.ones_like, params)
  updates, _ = optimizer.update(grads, optimizer.init(params), params)
  np.testing.assert_allclose(updates["memory"]["content"], -0.15 * np.ones((2, 2)), rtol=1e-5)
  np.testing.assert_allclose(updates["memory"]["coordinate"], -0.015 * np.ones((2, 2)), rtol=1e-5)


@pytest.mark.parametrize("steps", [1, 5])
def test_schedule_ends_at_its_fraction_whatever_the_number_of_steps(steps):
  schedule = learning_rate_schedule(OptimConfig(1.0, 0, steps, final_lr_fraction=0.25))
  np.testing.assert_allclose(schedule(steps), 0.25, rtol=1e-5)
