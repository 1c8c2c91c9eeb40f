"""Where a model's memory reads and writes: for pictures, and to see what has been learnt."""

from typing import NamedTuple

import jax
from flax import nnx

from tmem.decoder import Decoder
from tmem.memory import Places, TensorMemory
from tmem.typing import Mask, Tokens


class _Recorder:
  """Stands in for a memory and keeps the places of every call."""

  def __init__(self, memory: TensorMemory):
    self.memory, self.init_state = memory, memory.init_state
    self.places: list[Places] = []

  def __call__(
    self, x: Tokens, state: NamedTuple, mask: Mask | None = None, *, tail: str | None = None
  ) -> tuple[Tokens, NamedTuple]:
    self.places.append(self.memory.places(x))
    return self.memory(x, state, mask, tail=tail)


def memory_places(model: Decoder, inputs: jax.Array) -> dict[int, Places]:
  """The places of every block with memory.

  Args:
    model: a model with a Tensor Memory.
    inputs: what the model is called with, from the start of a stream.

  Returns:
    The places of every chunk, by index of the block.

  Raises:
    ValueError: if the model has no Tensor Memory.
  """
  if not isinstance(model.memory, TensorMemory):
    raise ValueError(f"model: method {model.config.method!r} has no Tensor Memory")
  copy = nnx.merge(*nnx.split(model))
  recorder = _Recorder(copy.memory)
  copy.memory = recorder
  copy(inputs)
  return dict(zip(model.config.memory_layers, recorder.places, strict=True))
