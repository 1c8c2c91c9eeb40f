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
  """Restores the parameters that `run.checkpoint` names, else the best of the run.

  While none has been evaluated, the newest are the best.

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
  checkpoints = Checkpoints(run.workdir / outputs.CHECKPOINTS)
  restored = checkpoints.restore_params(setup.abstract.params, run.checkpoint)
  if restored is None and run.checkpoint is not None:
    raise RunError(f"--checkpoint={run.checkpoint}: no checkpoint there")
  if restored is None:
    raise RunError(f"--workdir={run.workdir}: no checkpoint there; train first")
  return setup.graphdef, *restored
