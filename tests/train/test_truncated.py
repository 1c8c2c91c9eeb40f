"""Truncated back-propagation against autodiff with stopped gradients, and its memory."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from train.truncated import truncated_sums


def segment_fn(params, state, segment):
  """A small recurrence whose loss depends on the state it starts from."""

  def step(state, x):
    state = jnp.tanh(state @ params["w"] + x)
    return state, jnp.sum(state**2)

  state, losses = jax.lax.scan(step, state, segment["x"])
  return {"loss": jnp.sum(losses), "weight": jnp.float32(len(segment["x"]))}, state


@pytest.fixture(scope="module")
def stream():
  rng = np.random.default_rng(0)
  params = {"w": jnp.asarray(rng.normal(size=(3, 3)), jnp.float32)}
  segments = {"x": jnp.asarray(rng.normal(size=(5, 4, 3)), jnp.float32)}
  return params, jnp.asarray(rng.normal(size=3), jnp.float32), segments


def stopped(params, state, segments):
  total = 0.0
  for index, x in enumerate(segments["x"]):
    state = state if index == 0 else jax.lax.stop_gradient(state)
    sums, state = segment_fn(params, state, {"x": x})
    total = total + sums["loss"]
  return total


def test_sums_and_gradients_are_those_of_stopped_states(stream):
  sums = truncated_sums(segment_fn, *stream)
  np.testing.assert_allclose(sums["loss"], stopped(*stream), rtol=1e-6)
  assert sums["weight"] == 20

  grads = jax.grad(lambda p, s, x: 3 * truncated_sums(segment_fn, p, s, x)["loss"], (0, 1))(*stream)
  expected = jax.grad(lambda p, s, x: 3 * stopped(p, s, x), (0, 1))(*stream)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), grads, expected)
  assert np.abs(expected[1]).max() > 0.1


def test_no_gradient_crosses_a_border(stream):
  params, state, segments = stream
  whole = {"x": segments["x"].reshape(1, 20, 3)}
  of_whole, of_parts = (
    jax.grad(lambda p, x=x: truncated_sums(segment_fn, p, state, x)["loss"])(params)["w"]
    for x in (whole, segments)
  )
  assert np.abs(of_whole - of_parts).max() > 1e-2


def test_memory_does_not_grow_with_the_number_of_segments(stream):
  params, state, _ = stream
  grad = jax.jit(jax.grad(lambda p, x: truncated_sums(segment_fn, p, state, {"x": x})["loss"]))
  few, many = (
    grad.lower(params, jnp.zeros((count, 4, 3))).compile().memory_analysis().temp_size_in_bytes
    for count in (4, 400)
  )
  assert many < few + 4 * 400 * 4 * 3 * 2  # a copy of the inputs, no state of any segment
