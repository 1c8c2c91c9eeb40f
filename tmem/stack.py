"""A stack of blocks, of which some share one memory: what causal and other models have alike."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from flax import nnx

from tmem.recurrent import RecurrentMemory
from tmem.stack_config import StackConfig

States = tuple[NamedTuple, ...]


class Stack(nnx.Module):
  """Blocks around one memory; a subclass makes `blocks` and `memory`.

  The memory is owned once. Each block that uses it has a LayerNorm and a fusion gate of its own
  and, in scope "layer", a state of its own; in scope "depth" one state goes from block to block.

  Attributes:
    config: sizes and composition.
    blocks: the blocks; one that uses the memory has a `fusion`.
    memory: the memory, or None.
  """

  config: StackConfig
  blocks: nnx.List
  memory: RecurrentMemory | None

  def init_states(self, batch_size: int, tail: str = "commit") -> States:
    """Empty memories of `batch_size` streams: one for each block that has a state of its own.

    Args:
      batch_size: rows, >= 1.
      tail: "hold" adds room for the tokens of an unfinished chunk.
    """
    count = len(self.config.memory_layers)
    if self.config.state_scope == "depth":
      count = min(count, 1)
    return tuple(self.memory.init_state(batch_size, tail) for _ in range(count))

  def state_of(self, layer: int) -> int | None:
    """Which of the states a block reads and writes; None: it uses no memory."""
    if layer not in self.config.memory_layers:
      return None
    return self.config.memory_layers.index(layer) if self.config.state_scope == "layer" else 0

  def run_block(self, layer: int, state: tuple | None, *inputs: Any) -> Any:
    """Runs a block on inputs, beside the memory and its state if it uses one.

    Args:
      layer: index of the block.
      state: of the memory before it, or None.
      *inputs: `block(*inputs, memory=memory, state=state)` is called.

    Returns:
      What the block returns.
    """
    memory = None if self.state_of(layer) is None else self.memory

    def call(state, *inputs):
      return self.blocks[layer](*inputs, memory=memory, state=state)

    return (jax.checkpoint(call) if self.config.remat_blocks else call)(state, *inputs)

  def memory_bytes(self, tail: str = "commit") -> int:
    """Bytes that the states of the memories of one stream take."""
    return bytes_of(lambda: self.init_states(1, tail))

  def gates(self) -> dict[int, jax.Array]:
    """sigmoid(γ) of each block that uses the memory, by its index."""
    return {
      layer: jax.nn.sigmoid(self.blocks[layer].fusion.gate[...])
      for layer in self.config.memory_layers
    }

  def fusion_gates(self) -> dict[str, float]:
    """`gates` as plain numbers, for a report."""
    return {f"block_{layer}": float(gate) for layer, gate in self.gates().items()}


def bytes_of(make: Callable[[], Any]) -> int:
  """Bytes of the arrays that a function makes; it is not run."""
  arrays = jax.tree.leaves(jax.eval_shape(make))
  return sum(a.size * a.dtype.itemsize for a in arrays)


def make_memory(
  kind: type[RecurrentMemory], own: Any, config: StackConfig, rngs: nnx.Rngs
) -> RecurrentMemory:
  """A memory of the configuration `own`, in the types of its model."""
  own = dataclasses.replace(
    own,
    tail="commit",
    dtype=config.dtype,
    param_dtype=config.param_dtype,
    state_dtype=max(own.state_dtype, config.dtype, key=lambda dtype: dtype.itemsize),
  )
  return kind(own, config.features, rngs=rngs)
