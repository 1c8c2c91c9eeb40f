"""A trained model from the checkpoints of its run."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import optax
from flax import nnx
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from train import outputs, result
from train.checkpoint import Checkpoints
from train.config import RunConfig
from train.errors import RunError
from train.evaluate import make_evaluate
from train.sharding import make_mesh
from train.state import make_setup
from train.task import Task


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


def evaluate(task: Task, run: RunConfig, name: str) -> None:
  """Evaluates on whole splits, prints that and writes it to the workdir.

  Args:
    task: what was trained.
    run: the run.
    name: of the JSON file with the best checkpoint's figures; those of a checkpoint that was named
      have its step behind it.

  Raises:
    RunError: as `restore_trained`.
  """
  mesh = make_mesh(run.mesh, run.batch_size)
  graphdef, params, step = restore_trained(task.build, run, mesh)
  run_split = make_evaluate(graphdef, task.eval_loss_fn, mesh)
  measured: dict[str, Any] = {"step": step, "protocol": task.protocol}
  print(f"protocol: {task.protocol}")
  for split in task.splits:
    metrics = task.metrics(run_split(params, task.eval_batches(split, 0)), split)
    measured |= {f"{split}_{name}": value for name, value in metrics.items()}
    print("\n".join(f"{split} {line}" for line in result.lines(metrics)))
  is_named = run.checkpoint not in (None, run.workdir)
  file = f"{name}_{step:08d}.json" if is_named else f"{name}.json"
  if jax.process_index() == 0:
    outputs.write_json(run.workdir / file, measured)
  if not is_named:
    draw_figures(task, run.workdir, graphdef, params)


def draw_figures(task: Task, workdir: Path, graphdef: nnx.GraphDef, params: Any) -> None:
  """Draws what a trained model does, if the task has figures; one process does.

  Args:
    task: what was trained.
    workdir: folder of the run.
    graphdef: the model's structure.
    params: its parameters, wherever they are.
  """
  if task.figures is None:
    return
  params = whole(params)
  if jax.process_index() == 0:
    task.figures(workdir / outputs.PLOTS, nnx.merge(graphdef, jax.device_get(params)))


def whole(params: Any) -> Any:
  """Parameters that this process has in full, wherever they are; all processes have to call it."""
  if jax.process_count() == 1:
    return params
  return multihost_utils.process_allgather(params, tiled=True)


def compiled(model: nnx.Module, call: Callable[..., Any]) -> Callable[..., Any]:
  """`call(model, *inputs)` as a compiled function of the inputs alone."""
  graphdef, params = nnx.split(model)
  function = jax.jit(lambda params, *inputs: call(nnx.merge(graphdef, params), *inputs))
  return functools.partial(function, params)


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
