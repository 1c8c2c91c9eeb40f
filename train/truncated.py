"""Truncated back-propagation: gradients stop between segments, and memory does not grow."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from train.losses import Sums

# (params, states, segment) -> (sums of the segment, states after it)
SegmentFn = Callable[[Any, Any, Any], tuple[Sums, Any]]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def truncated_sums(segment_fn: SegmentFn, params: Any, states: Any, segments: Any) -> Sums:
  """Sums over the segments of a stream, whose states are handed on without their gradients.

  The gradient of "loss" towards `params` is made segment by segment on the way forward and is all
  that the backward pass needs, so memory depends on the length of a segment, not on their number.

  Args:
    segment_fn: `(params, states, segment) -> (sums, states)`; "loss" is among the sums, and
      the only one with a gradient.
    params: what is differentiated.
    states: before the first segment, whose loss is all that has a gradient towards them.
    segments: arrays with a leading axis of segments; no gradient reaches them.

  Returns:
    The sums of all segments.

  Reference: Williams and Peng (1990), truncated back-propagation through time.
  """

  def step(states, segment):
    sums, states = segment_fn(params, states, segment)
    return states, sums

  _, sums = jax.lax.scan(step, states, segments)
  return jax.tree.map(lambda values: jnp.sum(values, axis=0), sums)


def _forward(segment_fn: SegmentFn, params: Any, states: Any, segments: Any):
  def loss(params, states, segment):
    sums, states = segment_fn(params, states, segment)
    return sums["loss"], (sums, states)

  grad_fn = jax.grad(loss, argnums=(0, 1), has_aux=True)

  def step(carry, segment):
    states, total, grads = carry
    (new, _), (sums, states) = grad_fn(params, states, segment)
    return (states, *jax.tree.map(jnp.add, (total, grads), (sums, new))), None

  first = jax.tree.map(lambda array: array[0], segments)
  rest = jax.tree.map(lambda array: array[1:], segments)
  (grads, states_grad), (total, states) = grad_fn(params, states, first)
  (_, total, grads), _ = jax.lax.scan(step, (states, total, grads), rest)
  return total, (grads, states_grad)


def _backward(segment_fn: SegmentFn, grads, sums_grad: Sums):
  scaled = jax.tree.map(lambda grad: grad * sums_grad["loss"].astype(grad.dtype), grads)
  return *scaled, None


truncated_sums.defvjp(_forward, _backward)
