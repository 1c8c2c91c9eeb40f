"""The device mesh and where parameters and batches lie on it."""

import functools
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from tmem.placement import MESH_AXES, split_over
from train.errors import FlagError

AXES = ("data", "fsdp", "model")
BATCH_AXES = MESH_AXES["batch"]
# Below this many elements splitting a parameter costs more messages than it saves memory.
MIN_SHARDED_SIZE = 4096

# Mesh axis of each axis of a parameter, by the end of its path; the first rule that fits counts.
# `model` follows `tmem.placement`: it splits what makes or takes heads, hidden features of MLPs and
# channels of the memory. Optimizer moments lie where their parameters lie.
RULES = tuple(
  (re.compile(rf"(^|/){path}$"), axes)
  for path, axes in (
    (r"embedding/embedding", ("model", "fsdp")),
    (r"attention/(qkv|qkv_\w+|output_gate)/kernel", ("fsdp", "model")),
    (r"attention/out/kernel", ("model", "fsdp")),
    (r"mlp/up/kernel", ("fsdp", "model")),
    (r"mlp/up/bias", ("model",)),
    (r"mlp/down/kernel", ("model", "fsdp")),
    (r"memory/content/kernel", ("fsdp", "model")),
    (r"memory/output/kernel", ("model", "fsdp")),
    (r"memory/gates/(pointwise|mix)", ("fsdp", None)),
  )
)
# Last axes of what rows of a batch hand on, by the name of the array: see `MESH_AXES`.
CARRIED = {"hidden": ("channels",), "cell": ("channels",), "keys": ("heads", None)}
CARRIED["values"] = CARRIED["keys"]


def make_mesh(sizes: tuple[int, int, int], batch_size: int) -> Mesh:
  """A mesh with the axes `data`, `fsdp` and `model`; one device is a mesh of one.

  Args:
    sizes: devices per axis; -1 once for all that remain.
    batch_size: sequences that one forward pass splits over the axes `data` and `fsdp`.

  Returns:
    The mesh, over the first devices if it needs fewer than there are.

  Raises:
    FlagError: if it does not divide the devices or the batch.
  """
  available = jax.device_count()
  text = ",".join(f"{axis}:{size}" for axis, size in zip(AXES, sizes, strict=True))
  known = math.prod(size for size in sizes if size != -1)
  if available % known:
    raise FlagError(f"--mesh={text}: {known} does not divide the {available} devices there are")
  shape = tuple(available // known if size == -1 else size for size in sizes)
  parts = math.prod(shape[: len(BATCH_AXES)])
  if batch_size % parts:
    raise FlagError(
      f"--mesh={text}: {parts} devices do not divide the batch of {batch_size} sequences"
      " (--batch_size / --accumulate)"
    )
  devices = jax.devices()[: math.prod(shape)]
  return jax.make_mesh(shape, AXES, axis_types=(AxisType.Auto,) * len(AXES), devices=devices)


def on_mesh(mesh: Mesh, function: Callable) -> Callable:
  """`function`, to be traced so that the activations of models in it lie on the mesh."""

  @functools.wraps(function)
  def traced(*args):
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
      return function(*args)

  return traced


def batch_sharding(mesh: Mesh) -> NamedSharding:
  """The first axis of a batch, split over the axes of the mesh that share it."""
  return NamedSharding(mesh, PartitionSpec(BATCH_AXES))


def replicated(mesh: Mesh) -> NamedSharding:
  """The same value on all devices."""
  return NamedSharding(mesh, PartitionSpec())


def tree_shardings(tree: Any, mesh: Mesh, min_size: int = MIN_SHARDED_SIZE) -> Any:
  """Where parameters and the optimizer's moments of them lie, by `RULES`.

  A parameter without a rule has its largest divisible axis split over `fsdp`. An axis that its
  devices do not divide is whole on each of them.

  Args:
    tree: arrays or shapes: parameters, optimizer state, or both.
    mesh: the device mesh.
    min_size: arrays with fewer elements are the same on all devices.

  Returns:
    Tree of NamedSharding in the structure of `tree`.
  """

  def place(path, leaf) -> NamedSharding:
    if leaf.size < min_size:
      return replicated(mesh)
    spec = _spec(jax.tree_util.keystr(path, simple=True, separator="/"), leaf.shape, mesh)
    return NamedSharding(mesh, PartitionSpec(*spec))

  return jax.tree_util.tree_map_with_path(place, tree)


def carry_shardings(carry: Any, mesh: Mesh) -> Any:
  """Where what rows of a batch hand on lies: split by rows, memories and pasts as in the model."""

  def place(path, leaf) -> NamedSharding:
    name = jax.tree_util.keystr(path[-1:], simple=True)
    last = CARRIED.get(name, ())
    axes = ("batch", *(None,) * (leaf.ndim - 1 - len(last)), *last)
    pairs = zip(axes, leaf.shape, strict=True)
    spec = (split_over(axis, mesh.shape, size) for axis, size in pairs)
    return NamedSharding(mesh, PartitionSpec(*spec))

  return jax.tree_util.tree_map_with_path(place, carry)


def _spec(path: str, shape: tuple[int, ...], mesh: Mesh) -> list[str | None]:
  """The mesh axis of each axis of a parameter."""
  axes = next((axes for rule, axes in RULES if rule.search(path)), None)
  if axes is not None and len(axes) == len(shape):
    return [
      axis if axis is not None and mesh.shape[axis] > 1 and size % mesh.shape[axis] == 0 else None
      for axis, size in zip(axes, shape, strict=True)
    ]
  parts = mesh.shape["fsdp"]
  divisible = [axis for axis, size in enumerate(shape) if size % parts == 0]
  if parts == 1 or len(shape) < 2 or not divisible:
    return []
  split = max(divisible, key=lambda axis: shape[axis])
  return [*(None,) * split, "fsdp"]


def put_local_batch(
  batch: Mapping[str, np.ndarray | jax.Array], mesh: Mesh
) -> dict[str, jax.Array]:
  """Puts this host's rows of a batch on the devices.

  Args:
    batch: arrays [rows of this host, ...].
    mesh: the device mesh.

  Returns:
    Global arrays [rows of all hosts, ...].
  """
  return jax.make_array_from_process_local_data(batch_sharding(mesh), dict(batch))


def put_global_batch(
  batch: Mapping[str, np.ndarray | jax.Array], mesh: Mesh
) -> dict[str, jax.Array]:
  """Puts a batch that every host has in full on the devices, each its share.

  Args:
    batch: arrays [rows of all hosts, ...].
    mesh: the device mesh.

  Returns:
    Global arrays of the same shapes.
  """
  sharding = batch_sharding(mesh)
  if jax.process_count() == 1:
    return jax.device_put(dict(batch), sharding)
  # `device_put` would have all hosts compare what they have, with each batch.
  return {
    name: jax.make_array_from_process_local_data(sharding, np.asarray(rows), rows.shape)
    for name, rows in batch.items()
  }
