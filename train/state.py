"""The training state and the one jitted function that advances it."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh

from train.losses import Batch, Carried, LossFn, as_carried
from train.sharding import batch_sharding, carry_shardings, on_mesh, replicated, tree_shardings

DROPOUT_STREAM = 1


class TrainState(NamedTuple):
  """Everything a step reads and writes.

  Attributes:
    step: int32 [], steps made, skipped ones included: it chooses the dropout key.
    params: nested dict of arrays (`nnx.to_pure_dict`).
    opt_state: optimizer state; counts the updates made, so skipped steps do not move the
      schedule.
    skipped: int32 [], steps that were not finite and changed nothing, but that the carry begins
      anew.
    carry: what the rows of a batch hand on to those of the next, see `train.losses.Carried`.
  """

  step: jax.Array
  params: Any
  opt_state: optax.OptState
  skipped: jax.Array
  carry: Any = ()


class Setup(NamedTuple):
  """A model's structure and its state's shape and place, known without any computation.

  Attributes:
    graphdef: the model's structure.
    init: makes a fresh TrainState, directly where it belongs.
    abstract: TrainState of shapes, types and shardings.
  """

  graphdef: nnx.GraphDef
  init: Callable[[], TrainState]
  abstract: TrainState


def make_setup(
  build: Callable[[nnx.Rngs], nnx.Module],
  optimizer: optax.GradientTransformation,
  mesh: Mesh,
  seed: int,
  init_carry: Callable[[nnx.Module], Any] = lambda model: (),
) -> Setup:
  """Traces the model and decides where its state lies.

  Args:
    build: makes the model; its variables are all `nnx.Param`.
    optimizer: an optax transformation.
    mesh: the device mesh.
    seed: seed of the parameters.
    init_carry: what the rows of the first batch go on from.

  Returns:
    The setup; nothing is computed before `init` is called.
  """
  graphdef, _ = nnx.split(nnx.eval_shape(lambda: build(nnx.Rngs(seed))), nnx.Param)

  def init(seed) -> TrainState:
    model = build(nnx.Rngs(jax.random.key(seed)))
    params = nnx.to_pure_dict(nnx.split(model, nnx.Param)[1])
    carry = init_carry(model)
    return TrainState(jnp.int32(0), params, optimizer.init(params), jnp.int32(0), carry)

  # An argument, not a constant: runs that differ by the seed alone are one program to a
  # compilation cache.
  seed = np.uint32(seed)
  shapes = jax.eval_shape(init, seed)
  shardings = tree_shardings(shapes, mesh)
  shardings = shardings._replace(carry=carry_shardings(shapes.carry, mesh))
  abstract = jax.tree.map(
    lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
    shapes,
    shardings,
  )
  # A program that runs once is not worth optimising; only XLA's CPU backend knows this option.
  on_cpu = mesh.devices.flat[0].platform == "cpu"
  options = {"xla_backend_optimization_level": 0} if on_cpu else None
  compiled = jax.jit(init, out_shardings=shardings, compiler_options=options)
  return Setup(graphdef, lambda: compiled(seed), abstract)


def make_train_step(
  setup: Setup,
  loss_fn: LossFn | Carried,
  optimizer: optax.GradientTransformation,
  schedule: optax.Schedule,
  mesh: Mesh,
  *,
  seed: int,
  accumulate: int = 1,
) -> Callable[[TrainState, Batch], tuple[TrainState, dict[str, jax.Array]]]:
  """Builds the train step: one jitted function that donates the state it replaces.

  Args:
    setup: from `make_setup`.
    loss_fn: `loss_fn(model, batch, key)` returns sums, with "loss" and "weight" among them; or
      one that carries something on.
    optimizer: the transformation that `setup` was made with.
    schedule: its learning rate, for the metrics.
    mesh: the device mesh.
    seed: seed of dropout; the key of a step is a function of seed, step and micro-batch only.
    accumulate: number of micro-batches; the gradient is that of the whole batch.

  Returns:
    `step(state, batch)` -> (state, metrics). Metrics are scalars: loss (mean over items),
    grad_norm (before clipping), lr, skipped (so far). A step whose loss or gradient is not
    finite leaves parameters and optimizer as they are and is counted.
  """
  carried = as_carried(loss_fn)

  def loss_sum(params, carry, batch, key):
    sums, carry = carried.loss(nnx.merge(setup.graphdef, params), carry, batch, key)
    return sums["loss"], (sums["weight"], carry)

  grad_fn = jax.value_and_grad(loss_sum, has_aux=True)

  def train_step(seed: jax.Array, state: TrainState, batch: Batch):
    key = jax.random.fold_in(jax.random.key(seed), DROPOUT_STREAM)
    key = jax.random.fold_in(key, state.step)
    loss, grads, carry = _mean_gradient(grad_fn, state, batch, key, accumulate, mesh)
    grad_norm = optax.tree.norm(grads)
    finite = jnp.isfinite(loss) & jnp.isfinite(grad_norm)
    updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
    params = optax.apply_updates(state.params, updates)

    def keep(new, old):
      return jax.tree.map(lambda n, o: jnp.where(finite, n, o), new, old)

    rows = len(next(iter(batch.values())))
    skipped = state.skipped + jnp.where(finite, 0, 1)
    metrics = {
      "loss": loss,
      "grad_norm": grad_norm,
      "lr": jnp.asarray(schedule(state.step - state.skipped), jnp.float32),
      "skipped": skipped,
    }
    new_state = TrainState(
      state.step + 1,
      keep(params, state.params),
      keep(opt_state, state.opt_state),
      skipped,
      # What was carried may be what is not finite, and the data has moved on: begin anew.
      keep(carry, carried.init(nnx.merge(setup.graphdef, state.params), rows)),
    )
    return new_state, metrics

  shardings = jax.tree.map(lambda leaf: leaf.sharding, setup.abstract)
  compiled = jax.jit(
    on_mesh(mesh, train_step),
    donate_argnums=1,
    in_shardings=(replicated(mesh), shardings, batch_sharding(mesh)),
    out_shardings=(shardings, replicated(mesh)),
  )
  return functools.partial(compiled, np.uint32(seed))


def _mean_gradient(grad_fn, state, batch, key, accumulate, mesh):
  """Mean loss, its gradient and the carry over micro-batches, one after the other."""

  def micro_step(total, inputs):
    index, micro_batch, carry = inputs
    key_here = jax.random.fold_in(key, index)
    (loss, (weight, carry)), grads = grad_fn(state.params, carry, micro_batch, key_here)
    return jax.tree.map(jnp.add, total, (loss, weight, grads)), carry

  def split(rows):
    # Row i goes to micro-batch i % accumulate: every device keeps the rows it has.
    rows = rows.reshape(rows.shape[0] // accumulate, accumulate, *rows.shape[1:]).swapaxes(0, 1)
    spec = jax.sharding.PartitionSpec(None, *batch_sharding(mesh).spec)
    return jax.lax.with_sharding_constraint(rows, jax.sharding.NamedSharding(mesh, spec))

  def join(parts):
    return parts.swapaxes(0, 1).reshape(-1, *parts.shape[2:])

  zeros = (jnp.float32(0), jnp.float32(0), jax.tree.map(jnp.zeros_like, state.params))
  if accumulate == 1:
    total, carry = micro_step(zeros, (0, batch, state.carry))
  else:
    parts = jax.tree.map(split, (dict(batch), state.carry))
    total, carry = jax.lax.scan(micro_step, zeros, (jnp.arange(accumulate), *parts))
    carry = jax.tree.map(join, carry)
  loss, weight, grads = total
  grads = jax.tree.map(lambda grad: grad / weight.astype(grad.dtype), grads)
  return loss / weight, grads, carry
