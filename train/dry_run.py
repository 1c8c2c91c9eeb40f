"""Says what a training would need of its devices, and what they would tell one another.

The step is compiled for the mesh and not run. Where there are fewer devices than the mesh has, the
machine's CPU stands in for them: what is split, and what it costs in bytes, is the same, but for
what a compiler for accelerators fuses or lays out otherwise.
"""

import dataclasses
import math
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import nnx
from jax.extend.backend import clear_backends

from train.assembly import Training, assemble
from train.collectives import Collective, collectives
from train.flops import matrix_flops
from train.sharding import AXES, batch_sharding, carry_shardings
from train.tables import text_table
from train.task import Task

MOST_DEVICES = 2048  # that a CPU can stand in for
WIDTH = 60  # letters of where in the program a message is


class Plan(NamedTuple):
  """What a training step needs.

  Attributes:
    mesh: devices of each axis.
    platform: for which the step was compiled.
    parameters: for each array or each that blocks have alike: path, shape, how it is split, how
      many there are, and bytes of one on a device.
    held: bytes on a device of "parameters", "optimizer", "carry" and "batch": what a step is given.
    arguments: the compiler's own count of the same.
    memory_state: bytes on a device of the states of the memories of its rows, one for each block
      that has its own; a part of "carry" if it is carried, else of `temporaries`.
    temporaries: bytes on a device that the compiler plans besides: activations and gradients.
    flops: of the matrix products of a step, on all devices.
    collectives: what a step's devices tell one another.
  """

  mesh: dict[str, int]
  platform: str
  parameters: list[tuple[str, tuple[int, ...], tuple[str | None, ...], int, int]]
  held: dict[str, int]
  arguments: int
  memory_state: int
  temporaries: int
  flops: int
  collectives: list[Collective]


def make_plan(config: Any, make_task: Callable[[Any], Task]) -> Plan:
  """Compiles a training step and reads what it needs.

  Args:
    config: of a run, with `run` and `optim`. A mesh without -1 may have more devices than there
      are.
    make_task: makes the task of a configuration.

  Returns:
    The plan.

  Raises:
    FlagError: if the mesh does not fit the batch.
  """
  config, copies = _within_reach(config)
  run = config.run
  # Shapes do not need the whole batch; its rows may be many.
  task = make_task(_changed(config, batch_size=1))
  training = assemble(task.build, task.loss_fn, run, config.optim)
  batch = {
    name: jax.ShapeDtypeStruct(
      (run.batch_size, *rows.shape[1:]), rows.dtype, sharding=batch_sharding(training.mesh)
    )
    for name, rows in next(task.train_batches()).items()
  }
  # The seed is bound to the jitted function; what is traced is that function.
  traced = training.step.func.trace(np.uint32(0), training.setup.abstract, batch)
  compiled = traced.lower().compile()
  memory = compiled.memory_analysis()
  mesh, state = dict(training.mesh.shape), training.setup.abstract
  held = {"parameters": state.params, "optimizer": state.opt_state, "carry": state.carry}
  return Plan(
    mesh={**mesh, AXES[0]: mesh[AXES[0]] * copies},
    platform=training.mesh.devices.flat[0].platform,
    parameters=_parameters(state.params),
    held={name: _bytes(tree) for name, tree in held.items()} | {"batch": _bytes(batch)},
    arguments=memory.argument_size_in_bytes,
    memory_state=_memory_state(training, run.batch_size // config.optim.accumulate),
    temporaries=memory.temp_size_in_bytes,
    flops=matrix_flops(traced.jaxpr) * copies,
    collectives=[
      one._replace(devices=one.devices * copies) if AXES[0] in one.axes else one
      for one in collectives(compiled.as_text(), mesh)
    ],
  )


def _changed(config: Any, **fields: Any) -> Any:
  return dataclasses.replace(config, run=dataclasses.replace(config.run, **fields))


def _within_reach(config: Any) -> tuple[Any, int]:
  """The configuration with devices for its mesh, and how many such meshes make up the whole.

  A device's share does not depend on how many others have rows of their own, so that a mesh beyond
  what a CPU can stand in for is compiled with fewer rows along the first axis.
  """
  sizes, copies = list(config.run.mesh), 1
  if -1 in sizes or math.prod(sizes) <= jax.device_count():
    return config, 1
  while math.prod(sizes) > MOST_DEVICES and sizes[0] % 2 == 0 and config.run.batch_size % 2 == 0:
    sizes[0] //= 2
    copies *= 2
    config = _changed(config, batch_size=config.run.batch_size // 2)
  clear_backends()
  jax.config.update("jax_platforms", "cpu")
  jax.config.update("jax_num_cpu_devices", math.prod(sizes))
  return _changed(config, mesh=tuple(sizes)), copies


def _bytes(tree: Any) -> int:
  """Bytes of arrays on a device."""
  return sum(
    math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
    for leaf in jax.tree.leaves(tree)
  )


def _parameters(params: Any) -> list[tuple]:
  """See `Plan`."""
  found: dict[tuple, int] = {}
  for path, leaf in jax.tree_util.tree_leaves_with_path(params):
    name = re.sub(r"/\d+/", "/*/", jax.tree_util.keystr(path, simple=True, separator="/"))
    spec = (*leaf.sharding.spec, *(None,) * leaf.ndim)[: leaf.ndim]
    key = name, leaf.shape, spec, _bytes(leaf)
    found[key] = found.get(key, 0) + 1
  return [(name, shape, spec, count, size) for (name, shape, spec, size), count in found.items()]


def _memory_state(training: Training, rows: int) -> int:
  model = nnx.merge(training.setup.graphdef, training.setup.abstract.params)
  states = jax.eval_shape(lambda: model.init_states(rows))
  placed = carry_shardings(states, training.mesh)
  return _bytes(
    jax.tree.map(
      lambda leaf, own: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=own), states, placed
    )
  )


def show(config: Any, make_task: Callable[[Any], Task]) -> None:
  """Prints the plan of a training; arguments as of `make_plan`."""
  print("\n".join(lines(make_plan(config, make_task))))


def lines(plan: Plan) -> list[str]:
  """A plan as it is printed."""
  devices = math.prod(plan.mesh.values())
  mesh = ",".join(f"{axis}:{size}" for axis, size in plan.mesh.items())
  held = sum(plan.held.values())
  parameters = [
    (name, "x".join(map(str, shape)) or "1", _split(spec), f"{count}", f"{size:,}")
    for name, shape, spec, count, size in plan.parameters
  ]
  messages = [_message(one) for one in sorted(plan.collectives, key=lambda one: -one.sent)]
  sent = sum(one.sent for one in plan.collectives)
  return [
    f"mesh {mesh}: {devices} devices, compiled for {plan.platform}, nothing is run",
    "",
    text_table([("parameter", "shape", "split over", "count", "bytes each"), *parameters], 3),
    "",
    "bytes on a device:",
    *(f"  {name:<13} {size:>16,}" for name, size in plan.held.items()),
    f"  given         {held:>16,}  (the compiler: {plan.arguments:,})",
    f"  temporaries   {plan.temporaries:>16,}  (activations and gradients, by the compiler)",
    f"  memory state  {plan.memory_state:>16,}  (within the above)",
    f"  all           {held + plan.temporaries:>16,}",
    "",
    f"FLOPs of a step: {plan.flops:,}, {plan.flops // devices:,} on a device",
    "",
    f"what a device sends in a step: {sent:,} bytes",
    text_table([("kind", "axes", "shape", "times", "bytes sent", "for"), *messages], 3),
  ]


def _message(one: Collective) -> tuple[str, ...]:
  """A collective as a line of the table; of where in the program it is, the last names."""
  scope = "/".join(one.scope.split("/")[-3:])[-WIDTH:]
  return one.kind, "+".join(one.axes), one.shape, f"{one.count}", f"{one.sent:,}", scope


def _split(spec: tuple) -> str:
  return ", ".join("-" if axis is None else str(axis) for axis in spec) or "-"
