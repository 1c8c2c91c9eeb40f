"""Where activations lie on a mesh of devices: the only place of `tmem` that knows of meshes.

A trainer that traces a model under `jax.sharding.use_abstract_mesh` gets rows of the batch split
over the mesh axes `data` and `fsdp`, and heads of attention, the hidden layer of MLPs, channels of
the memory and the vocabulary over the axis `model`. Without a mesh, and on axes with other names,
nothing happens.
"""

import math
from collections.abc import Callable, Mapping

import jax
from jax.sharding import AbstractMesh, AxisType, PartitionSpec

# Mesh axes that split an axis of an activation, by its name.
MESH_AXES = {
  "batch": ("data", "fsdp"),
  "heads": ("model",),
  "hidden": ("model",),
  "channels": ("model",),
  "vocabulary": ("model",),
}


def placed(x: jax.Array, *axes: str | None) -> jax.Array:
  """`x`, split over the devices of the mesh that it is computed on.

  Args:
    x: an activation.
    *axes: a name of `MESH_AXES` for each of its axes, or None for one that is not split. An axis
      that the devices do not divide is not split either.

  Returns:
    `x`; its values never change.
  """
  sizes = _own_sizes(jax.sharding.get_abstract_mesh())
  spec = [split_over(axis, sizes, size) for axis, size in zip(axes, x.shape, strict=True)]
  if max(sizes.values(), default=1) == 1:
    return x
  return jax.lax.with_sharding_constraint(x, PartitionSpec(*spec))


def by_rows(function: Callable, of: tuple[int | None, ...], to: tuple[int, ...]) -> Callable:
  """`function`, computed by every device for its own rows of the batch.

  What rows have nothing to do with one another is then visibly so: a loop in it sums gradients of
  what all rows share on each device, and devices sum theirs once, after the loop.

  Args:
    function: of trees of arrays, to a tuple of such.
    of: for each argument, the axis of its rows; None: all rows share it.
    to: likewise for each result.

  Returns:
    A function of the same arguments, with the same results.
  """

  def call(*arguments):
    mesh = jax.sharding.get_abstract_mesh()
    rows = next(
      leaf.shape[axis]
      for axis, tree in zip(of, arguments, strict=True)
      if axis is not None
      for leaf in jax.tree.leaves(tree)
    )
    names = split_over("batch", _own_sizes(mesh), rows)
    if names is None:
      return function(*arguments)

    def spec(axis: int | None) -> PartitionSpec:
      return PartitionSpec() if axis is None else PartitionSpec(*(None,) * axis, names)

    mapped = jax.shard_map(
      function,
      mesh=mesh,
      in_specs=tuple(map(spec, of)),
      out_specs=tuple(map(spec, to)),
      axis_names=frozenset(names),
      check_vma=False,  # hand-written backward passes do not say what varies
    )
    return mapped(*arguments)

  return call


def _own_sizes(mesh: AbstractMesh) -> dict[str, int]:
  """Devices of the axes of a mesh that are ours to use: the others are the caller's business."""
  types = zip(mesh.axis_names, mesh.axis_types, strict=True)
  return {name: mesh.shape[name] for name, kind in types if kind == AxisType.Auto}


def split_over(axis: str | None, sizes: Mapping[str, int], length: int) -> tuple[str, ...] | None:
  """The mesh axes, of these sizes, that split an axis named `axis` and of this length, or None."""
  found = tuple(name for name in MESH_AXES.get(axis, ()) if sizes.get(name, 1) > 1)
  return found if found and length % math.prod(sizes[name] for name in found) == 0 else None
