"""Where activations lie on a mesh of devices: the only place of `tmem` that knows of meshes.

A trainer that traces a model under `jax.sharding.use_abstract_mesh` gets rows of the batch split
over the mesh axes `data` and `fsdp`, and heads of attention, the hidden layer of MLPs, channels of
the memory and the vocabulary over the axis `model`. Without a mesh, and on axes with other names,
nothing happens.
"""

import math
from collections.abc import Mapping

import jax
from jax.sharding import AxisType, PartitionSpec

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
  mesh = jax.sharding.get_abstract_mesh()
  types = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
  # Axes of the other types are the caller's own business.
  sizes = {name: mesh.shape[name] for name, kind in types.items() if kind == AxisType.Auto}
  spec = [split_over(axis, sizes, size) for axis, size in zip(axes, x.shape, strict=True)]
  if not any(spec):
    return x
  return jax.lax.with_sharding_constraint(x, PartitionSpec(*spec))


def split_over(axis: str | None, sizes: Mapping[str, int], length: int) -> tuple[str, ...] | None:
  """The mesh axes, of these sizes, that split an axis named `axis` and of this length, or None."""
  found = tuple(name for name in MESH_AXES.get(axis, ()) if sizes.get(name, 1) > 1)
  return found if found and length % math.prod(sizes[name] for name in found) == 0 else None
