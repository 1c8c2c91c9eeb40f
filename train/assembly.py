"""What a training is made of: its mesh, its state's shape and place, and its step."""

from collections.abc import Callable
from typing import NamedTuple

from flax import nnx
from jax.sharding import Mesh

from train.config import OptimConfig, RunConfig
from train.losses import Carried, LossFn, as_carried
from train.optim import learning_rate_schedule, make_optimizer
from train.sharding import make_mesh
from train.state import Setup, make_setup, make_train_step


class Training(NamedTuple):
  """A training before its first step.

  Attributes:
    mesh: the devices.
    setup: see `make_setup`.
    step: see `make_train_step`; its `func` is the jitted function, `(seed, state, batch)`.
  """

  mesh: Mesh
  setup: Setup
  step: Callable


def assemble(
  build: Callable[[nnx.Rngs], nnx.Module],
  loss_fn: LossFn | Carried,
  run: RunConfig,
  optim: OptimConfig,
) -> Training:
  """Puts a training together; nothing is computed yet.

  Args:
    build: makes the model, as of `train.task.Task`.
    loss_fn: likewise.
    run: how it proceeds.
    optim: the optimizer.

  Returns:
    The training.

  Raises:
    FlagError: if the mesh does not fit the devices or the batch.
  """
  mesh = make_mesh(run.mesh, run.batch_size // optim.accumulate)
  optimizer, carried = make_optimizer(optim), as_carried(loss_fn)
  setup = make_setup(
    build, optimizer, mesh, run.seed, lambda model: carried.init(model, run.batch_size)
  )
  step = make_train_step(
    setup,
    carried,
    optimizer,
    learning_rate_schedule(optim),
    mesh,
    seed=run.seed,
    accumulate=optim.accumulate,
  )
  return Training(mesh, setup, step)
