"""The device mesh and where parameters and batches lie on it."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from train.errors import FlagError

AXES = ("data", "fsdp")
# Below this many elements splitting a parameter costs more messages than it saves memory.
MIN_SHARDED_SIZE = 4096


def make_mesh(sizes: tuple[int, int], batch_size: int) -> Mesh:
  """A mesh with the axes `data` and `fsdp`; one device is a mesh of one.

  Args:
    sizes: devices per axis; -1 once for all that remain.
    batch_size: sequences that one forward pass splits over all devices of the mesh.

  Returns:
    The mesh, over the first devices if it needs fewer than there are.

  Raises:
    FlagError: if it does not divide the devices or the batch.
  """
  available = jax.device_count()
  text = ",".join(f"{axis}:{size}" for axis, size in zip(AXES, sizes, strict=True))
  known = int(np.prod([size for size in sizes if size != -1]))
  if available % known:
    raise FlagError(f"--mesh={text}: {known} does not divide the {available} devices there are")
  shape = tuple(available // known if size == -1 else size for size in sizes)
  count = int(np.prod(shape))
  if batch_size % count:
    raise FlagError(
      f"--mesh={text}: {count} devices do not divide the batch of {batch_size} sequences"
      " (--batch_size / --accumulate)"
    )
  return jax.make_mesh(
    shape, AXES, axis_types=(AxisType.Auto, AxisType.Auto), devices=jax.devices()[:count]
  )


def batch_sharding(mesh: Mesh) -> NamedSharding:
  """The first axis of a batch, split over all devices."""
  return NamedSharding(mesh, PartitionSpec(AXES))


def replicated(mesh: Mesh) -> NamedSharding:
  """The same value on all devices."""
  return NamedSharding(mesh, PartitionSpec())


def tree_shardings(tree: Any, mesh: Mesh, min_size: int = MIN_SHARDED_SIZE) -> Any:
  """Splits the largest divisible axis of big matrices over `fsdp`; the rest is replicated.

  The rule sees only shapes, so optimizer moments lie where their parameters lie.

  Args:
    tree: arrays or shapes: parameters, optimizer state, or both.
    mesh: the device mesh.
    min_size: matrices with fewer elements are replicated.

  Returns:
    Tree of NamedSharding in the structure of `tree`.
  """
  parts = mesh.shape["fsdp"]

  def rule(leaf) -> NamedSharding:
    divisible = [axis for axis, size in enumerate(leaf.shape) if size % parts == 0]
    if parts == 1 or leaf.ndim < 2 or leaf.size < min_size or not divisible:
      return replicated(mesh)
    axis = max(divisible, key=lambda axis: leaf.shape[axis])
    return NamedSharding(mesh, PartitionSpec(*(None,) * axis, "fsdp"))

  return jax.tree.map(rule, tree)


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
  return jax.device_put(dict(batch), batch_sharding(mesh))
