import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from train.losses import language_loss
from train.optim import learning_rate_schedule, make_optimizer
from train.sharding import make_mesh, put_local_batch
from train.state import make_setup, make_train_step


@pytest.fixture(scope="module")
def stepper(task):
  """Makes (state, step, batches) of the tiny model."""

  def make(loss_fn=language_loss, accumulate=1, **changes):
    made, config = task(method="local", **changes)
    mesh = make_mesh((1, 1, 1), config.run.batch_size)
    optimizer = make_optimizer(config.optim)
    setup = make_setup(made.build, optimizer, mesh, seed=0)
    step = make_train_step(
      setup,
      loss_fn,
      optimizer,
      learning_rate_schedule(config.optim),
      mesh,
      seed=0,
      accumulate=accumulate,
    )
    batches = (put_local_batch(batch, mesh) for batch in made.train_batches())
    return setup.init(), step, batches

  return make


def poisoned_loss(model, batch, key):
  sums = language_loss(model, batch, key)
  return {**sums, "loss": sums["loss"] * batch["poison"][0]}


def copied(tree):
  return jax.tree.map(np.array, tree)


def test_micro_batches_have_the_gradient_of_the_whole_batch(stepper):
  """Also where more targets count in one micro-batch than in another."""
  results = []
  for accumulate in (1, 4):
    state, step, batches = stepper(accumulate=accumulate, dropout=0.0, learning_rate=1e-30)
    for _ in range(2):
      batch = dict(next(batches))
      shape = batch["inputs"].shape
      batch["mask"] = jnp.arange(batch["inputs"].size).reshape(shape) % 7 < 2
      state, metrics = step(state, batch)
    # Parameters would not do: Adam makes as much of a gradient that is only rounding.
    moments = copied(state.opt_state[1][0].mu)
    results.append((moments, metrics["loss"], metrics["grad_norm"]))
  chex.assert_trees_all_close(*results, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_a_step_that_is_not_finite_changes_nothing_and_is_counted(stepper, poison):
  state, step, batches = stepper(poisoned_loss)
  rows = next(batches)["inputs"].shape[0]
  good, bad = jnp.ones(rows), jnp.full(rows, poison)
  state, _ = step(state, {**next(batches), "poison": good})
  before = copied((state.params, state.opt_state))
  state, metrics = step(state, {**next(batches), "poison": bad})
  chex.assert_trees_all_equal(copied((state.params, state.opt_state)), before)
  assert (int(state.step), int(state.skipped), int(metrics["skipped"])) == (2, 1, 1)
  state, metrics = step(state, {**next(batches), "poison": good})
  assert int(state.skipped) == 1
  assert np.isfinite(metrics["loss"])
  with pytest.raises(AssertionError):
    chex.assert_trees_all_equal(copied(state.params), before[0])


def key_loss(model, batch, key):
  """A loss that shows which key it got."""
  nothing = 0.0 * model.positions[...].sum()
  return {"loss": jax.random.uniform(key) + nothing, "weight": jnp.float32(1)}


def test_every_step_and_micro_batch_has_a_key_of_its_own(stepper):
  state, step, batches = stepper(key_loss, accumulate=4)
  for number in range(3):
    state, metrics = step(state, next(batches))
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(0), 1), number)
    drawn = [float(jax.random.uniform(jax.random.fold_in(key, micro))) for micro in range(4)]
    assert len(set(drawn)) == 4
    np.testing.assert_allclose(metrics["loss"], np.mean(drawn), rtol=1e-6)


def test_dropout_masks_differ_from_step_to_step(stepper):
  state, step, batches = stepper(poisoned_loss, learning_rate=1e-30)
  batch = next(batches)
  batch["poison"] = jnp.ones(batch["inputs"].shape[0])
  losses = []
  for _ in range(3):
    state, metrics = step(state, batch)
    losses.append(float(metrics["loss"]))
  assert len(set(losses)) == 3


def test_the_step_compiles_once_and_donates_its_state(stepper):
  state, step, batches = stepper(poisoned_loss)
  old = jax.tree.leaves(state.params)[0]
  for _ in range(3):
    batch = next(batches)
    state, _ = step(state, {**batch, "poison": jnp.ones(batch["inputs"].shape[0])})
  assert step.func._cache_size() == 1
  assert old.is_deleted()


def test_learning_rate_counts_updates_not_steps(stepper):
  state, step, batches = stepper(poisoned_loss)
  rates = []
  for poison in (1.0, np.nan, 1.0):
    batch = next(batches)
    batch["poison"] = jnp.full(batch["inputs"].shape[0], poison)
    state, metrics = step(state, batch)
    rates.append(float(metrics["lr"]))
  np.testing.assert_allclose(rates, [0.0, 0.0005, 0.0005], rtol=1e-6)
