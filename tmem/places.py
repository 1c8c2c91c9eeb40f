"""Where a model's memory reads and writes: to see what has been learnt, and to keep axes apart."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from tmem.memory import Places, TensorMemory
from tmem.stack import Stack
from tmem.typing import Coords, Mask, Tokens


class _Recorder:
  """Stands in for a memory and keeps what one of its methods says of every call."""

  def __init__(self, memory: TensorMemory, method: str):
    self.memory, self.init_state = memory, memory.init_state
    self.method, self.found = getattr(memory, method), []

  def __call__(
    self, x: Tokens, state: NamedTuple, mask: Mask | None = None, **how: Any
  ) -> tuple[Tokens, NamedTuple]:
    self.found.append(self.method(x, state, mask, **how))
    return self.memory(x, state, mask, **how)


@contextlib.contextmanager
def recorded(model: Stack, method: str = "places") -> Iterator[list[Any]]:
  """Notes what the memory of a model does while it is called.

  Args:
    model: a model with a Tensor Memory.
    method: of `TensorMemory`, what is noted: "places" or "activity".

  Yields:
    A list that every call extends by what the method returns for each block with memory, in turn.

  Raises:
    ValueError: if the model has no Tensor Memory.
  """
  memory = model.memory
  if not isinstance(memory, TensorMemory):
    raise ValueError(f"model: method {model.config.method!r} has no Tensor Memory")
  recorder, config = _Recorder(memory, method), model.config
  model.memory = recorder
  # What is noted inside a block that is computed twice could not leave it.
  model.config = dataclasses.replace(config, remat_blocks=False)
  try:
    yield recorder.found
  finally:
    model.memory, model.config = memory, config


def memory_places(model: Stack, *inputs: jax.Array, call: str = "__call__") -> dict[int, Places]:
  """The places of every block with memory.

  Args:
    model: a model with a Tensor Memory.
    *inputs: what the model is called with, from the start of a stream.
    call: which of its methods is called.

  Returns:
    The places of every chunk, by index of the block.

  Raises:
    ValueError: if the model has no Tensor Memory.
  """
  return by_block(model, lambda model: getattr(model, call)(*inputs), "places")


def by_block(model: Stack, call: Callable[[Stack], Any], method: str) -> dict[int, Any]:
  """What the memory does while a model is called once, by index of the block.

  Args:
    model: a model with a Tensor Memory.
    call: calls it, each of its blocks once and none inside a scan.
    method: as for `recorded`.

  Returns:
    What the method returns, by index of the block.

  Raises:
    ValueError: if the model has no Tensor Memory.
  """
  copy = nnx.merge(*nnx.split(model))
  with recorded(copy, method) as found:
    call(copy)
  return dict(zip(model.config.memory_layers, found, strict=True))


def axes_penalty(write_at: Coords, write: jax.Array | None = None) -> jax.Array:
  """How far writes are from using every axis of the grid, and each for something else.

  The squared correlations of every two axes, and what each axis lacks in spread. As a small term
  of a loss it keeps axes from following one another: one that does is lost for good.

  Args:
    write_at: [..., axes], coordinates of writes.
    write: [...] bool, which of them happen; None: all.

  Returns:
    A scalar, 0 if nothing is written, or if the axes are uncorrelated and each has a standard
    deviation of at least 0.5 (a uniform one has 0.58).

  Reference: Bardes et al. (2022), VICReg: its variance and covariance terms.
  """
  places = write_at.reshape(-1, write_at.shape[-1])
  happens = jnp.ones(len(places), bool) if write is None else write.reshape(-1)
  weights = happens.astype(places.dtype) / jnp.maximum(jnp.sum(happens), 1)
  places = places - weights @ places
  covariance = (places * weights[:, None]).T @ places
  spread = jnp.sqrt(jnp.diag(covariance) + 1e-4)
  correlation = covariance / (spread * spread[:, None])
  between = jnp.sum(jnp.square(correlation)) - jnp.sum(jnp.square(jnp.diag(correlation)))
  lacking = jnp.sum(jnp.square(jax.nn.relu(0.5 - spread)))
  return jnp.where(jnp.any(happens), between + 10 * lacking, 0)
