"""A trained model from the checkpoints of its run."""

from collections.abc import Callable
from typing import Any

import optax
from flax import nnx
from jax.sharding import Mesh

from train import outputs
from train.checkpoint import Checkpoints
from train.config import RunConfig
from train.errors import RunError
from train.state import make_setup


def restore_best(
  build: Callable[[nnx.Rngs], nnx.Module], run: RunConfig, mesh: Mesh
) -> tuple[nnx.GraphDef, Any, int]:
  """Restores the best parameters of a run, or the newest while none has been evaluated.

  Args:
    build: makes the model.
    run: the run.
    mesh: where the parameters go; need not be the mesh of the training.

  Returns:
    (graphdef, params, step).

  Raises:
    RunError: if there is no checkpoint, or only of another model.
  """
  setup = make_setup(build, optax.identity(), mesh, run.seed)
  restored = Checkpoints(run.workdir / outputs.CHECKPOINTS).restore_params(setup.abstract.params)
  if restored is None:
    raise RunError(f"--workdir={run.workdir}: no checkpoint there; train first")
  return setup.graphdef, *restored
