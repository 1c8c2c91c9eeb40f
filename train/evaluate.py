"""Evaluation of a whole split with one compiled function."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh

from train.losses import Sums
from train.metrics import weighted_means
from train.sharding import put_global_batch, replicated


def make_evaluate(
  graphdef: nnx.GraphDef, loss_fn: Callable[..., Sums], mesh: Mesh
) -> Callable[..., dict[str, float] | None]:
  """Builds the evaluation of a split.

  Args:
    graphdef: the model's structure.
    loss_fn: `loss_fn(model, batch, None)` returns sums over the batch.
    mesh: the device mesh; batches are split over it.

  Returns:
    `evaluate(params, batches, stop=lambda: False)`: token-weighted means over all batches, or
    None if `stop()` became true in between.
  """

  def eval_step(params: Any, batch: Mapping[str, jax.Array]) -> Sums:
    return loss_fn(nnx.merge(graphdef, params), batch, None)

  eval_step = jax.jit(eval_step, out_shardings=replicated(mesh))

  def evaluate(
    params: Any,
    batches: Iterable[Mapping[str, np.ndarray]],
    stop: Callable[[], bool] = lambda: False,
  ) -> dict[str, float] | None:
    results, pending = [], None
    for batch in batches:
      if stop():
        return None
      sums = eval_step(params, put_global_batch(batch, mesh))
      if pending is not None:  # read one batch late, so that devices never wait for the host
        results.append(jax.device_get(pending))
      pending = sums
    if pending is not None:
      results.append(jax.device_get(pending))
    return weighted_means(results)

  return evaluate
