"""Floating-point operations of the matrix products of a program."""

import math
from typing import Any


def matrix_flops(jaxpr: Any) -> int:
  """Counts the products in a traced function, a multiplication and an addition as two operations.

  Loops of a known length count as often as they run, which a compiler's own count does not do. Of
  alternatives (`jax.lax.cond`, or code per platform) the one with the most products counts. What is
  computed element by element does not.

  Args:
    jaxpr: of the function, as `jax.jit(f).trace(...).jaxpr`.

  Returns:
    Operations of one call.
  """
  jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
  return sum(_of_equation(equation) for equation in jaxpr.eqns)


def _of_equation(equation: Any) -> int:
  name = equation.primitive.name
  if name == "dot_general":
    ((left, _), _) = equation.params["dimension_numbers"]
    summed = math.prod(equation.invars[0].aval.shape[axis] for axis in left)
    return 2 * summed * math.prod(equation.outvars[0].aval.shape)
  if name == "conv_general_dilated":
    kernel, outputs = equation.invars[1].aval.shape, equation.outvars[0].aval.shape
    features = kernel[equation.params["dimension_numbers"].rhs_spec[0]]
    return 2 * math.prod(outputs) * math.prod(kernel) // features
  inner = [matrix_flops(part) for part in _programs(equation.params)]
  if name == "cond":
    return max(inner, default=0)
  if name == "shard_map":  # what is inside is the share of one device
    return _devices(equation.params) * sum(inner)
  return equation.params.get("length", 1) * sum(inner) if name == "scan" else sum(inner)


def _devices(params: dict[str, Any]) -> int:
  """How many devices share what a `jax.shard_map` maps."""
  mesh = params["mesh"]
  axes = params.get("newly_manual_axes") or params.get("manual_axes") or mesh.axis_names
  return math.prod(mesh.shape[axis] for axis in axes)


def _programs(params: dict[str, Any]) -> list[Any]:
  """The programs among the parameters of an equation."""
  parts = [
    part
    for value in params.values()
    for part in (value if isinstance(value, (tuple, list)) else (value,))
  ]
  return [part for part in parts if hasattr(part, "eqns") or hasattr(part, "jaxpr")]
