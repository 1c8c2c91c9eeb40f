"""A trained model from the checkpoints of its run."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import optax
from flax import nnx
from jax.sharding import Mesh

from train import outputs
from train.checkpoint import Checkpoints
from train.config import RunConfig
from train.errors import RunError
from train.state import make_setup


def restore_trained(
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
  flag = "workdir" if run.checkpoint is None else "checkpoint"
  return setup.graphdef, *read_params(setup.abstract.params, run.checkpoint or run.workdir, flag)


def read_params(abstract_params: Any, source: Path, flag: str) -> tuple[Any, int]:
  """Reads the parameters of a trained model.

  Args:
    abstract_params: nested dict of shapes, types and shardings.
    source: a run, whose best checkpoint is read, or one of its checkpoints.
    flag: the flag that named it.

  Returns:
    (params, step).

  Raises:
    RunError: if there is no checkpoint, or only of another model.
  """
  workdir = outputs.run_of(source)
  chosen = None if workdir == source else source
  found = Checkpoints(workdir / outputs.CHECKPOINTS).restore_params(abstract_params, chosen)
  if found is None:
    raise RunError(f"--{flag}={source}: no checkpoint there; train first")
  return found
