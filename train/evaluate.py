"""Evaluation of a whole split with one compiled function."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh

from train.losses import Batch, Carried, LossFn, Sums, as_carried
from train.metrics import weighted_means
from train.sharding import carry_shardings, on_mesh, put_global_batch, replicated


def make_evaluate(
  graphdef: nnx.GraphDef, loss_fn: LossFn | Carried, mesh: Mesh
) -> Callable[..., dict[str, float] | None]:
  """Builds the evaluation of a split.

  Args:
    graphdef: the model's structure.
    loss_fn: `loss_fn(model, batch, None)` returns sums over the batch; one that carries something
      on does so from batch to batch of a split, beginning anew with each.
    mesh: the device mesh; batches are split over it.

  Returns:
    `evaluate(params, batches, stop=lambda: False)`: token-weighted means over all batches, or
    None if `stop()` became true in between.
  """
  carried = as_carried(loss_fn)

  def in_place(carry: Any) -> Any:
    return jax.lax.with_sharding_constraint(carry, carry_shardings(carry, mesh))

  def eval_step(params: Any, carry: Any, batch: Batch) -> tuple[Sums, Any]:
    sums, carry = carried.loss(nnx.merge(graphdef, params), carry, batch, None)
    return sums, in_place(carry)

  def init(params: Any, rows: int) -> Any:
    return in_place(carried.init(nnx.merge(graphdef, params), rows))

  eval_step = jax.jit(
    on_mesh(mesh, eval_step), donate_argnums=1, out_shardings=(replicated(mesh), None)
  )
  init = jax.jit(init, static_argnums=1)

  def evaluate(
    params: Any,
    batches: Iterable[Mapping[str, np.ndarray]],
    stop: Callable[[], bool] = lambda: False,
  ) -> dict[str, float] | None:
    stopped = False

    def results() -> Iterator[Sums]:
      nonlocal stopped
      pending, carry = None, None
      for batch in batches:
        stopped = stop()
        if stopped:
          return
        if carry is None:
          carry = init(params, len(next(iter(batch.values()))))
        sums, carry = eval_step(params, carry, put_global_batch(batch, mesh))
        if pending is not None:  # read one batch late, so that devices never wait for the host
          yield jax.device_get(pending)
        pending = sums
      if pending is not None:
        yield jax.device_get(pending)

    means = weighted_means(results())
    return None if stopped else means

  return evaluate
