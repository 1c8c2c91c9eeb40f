"""The configuration of a stack of blocks around one memory, causal or not."""

import dataclasses
from abc import ABC, abstractmethod
from typing import Any

import jax.numpy as jnp

from tmem.config import (
  MemoryConfig,
  check_choice,
  check_finite,
  check_int,
  check_kind,
  checked_float_dtype,
  to_json_dict,
)

STATE_SCOPES = ("layer", "depth")


@dataclasses.dataclass(frozen=True, kw_only=True)
class StackConfig(ABC):
  """Sizes of blocks, of which some share a memory.

  Attributes:
    features: size of a token (d_model), a multiple of `num_heads`.
    num_heads: attention heads.
    num_layers: blocks.
    mlp_features: width of the MLP; None means four times `features`.
    dropout: rate in [0, 1).
    memory: configuration of the Tensor Memory shared by all blocks that use it. Its `dtype` and
      `param_dtype` give way to the model's; its `tail` is "commit".
    memory_every_n_layers: blocks 0, n, 2n, … use the memory.
    state_scope: "layer" gives each block a state of its own. "depth" hands one state from block
      to block, as published: then later tokens reach earlier ones.
    gate_init: start of the fusion gates γ; sigmoid(γ) scales the memory's output.
    remat_blocks: whether the backward pass keeps of each block its input alone and computes the
      rest anew: about a third more work, and less memory if there are many. Same results.
    dtype: compute type, of the memory's projections too.
    param_dtype: type of the parameters.

  Raises:
    ValueError: naming the field, what came and what is right.
  """

  features: int = 128
  num_heads: int = 4
  num_layers: int = 3
  mlp_features: int | None = None
  dropout: float = 0.0
  memory: MemoryConfig = dataclasses.field(default_factory=MemoryConfig)
  memory_every_n_layers: int = 1
  state_scope: str = "layer"
  gate_init: float = 0.0
  remat_blocks: bool = False
  dtype: Any = jnp.float32
  param_dtype: Any = jnp.float32

  def __post_init__(self):
    for name in ("features", "num_heads", "num_layers", "memory_every_n_layers"):
      check_int(name, getattr(self, name))
    if self.mlp_features is None:
      object.__setattr__(self, "mlp_features", 4 * self.features)
    check_int("mlp_features", self.mlp_features)
    if self.features % self.num_heads:
      raise ValueError(f"features: {self.features} is not a multiple of num_heads {self.num_heads}")
    check_choice("state_scope", self.state_scope, STATE_SCOPES)
    check_kind("memory", self.memory, MemoryConfig)
    check_finite("gate_init", self.gate_init)
    if not isinstance(self.remat_blocks, bool):
      raise ValueError(f"remat_blocks: got {self.remat_blocks!r}, expected a bool")
    check_rate("dropout", self.dropout)
    for name in ("dtype", "param_dtype"):
      object.__setattr__(self, name, checked_float_dtype(name, getattr(self, name)))

  @property
  @abstractmethod
  def remembers(self) -> bool:
    """Whether there is a memory."""

  @property
  def memory_layers(self) -> tuple[int, ...]:
    """Indices of the blocks that use the memory."""
    return tuple(range(0, self.num_layers, self.memory_every_n_layers)) if self.remembers else ()

  def to_dict(self) -> dict[str, Any]:
    """The fields as JSON values; `from_dict` is the inverse."""
    return to_json_dict(self)


def check_rate(name: str, value: Any) -> None:
  """Raises ValueError unless `value` is a number in [0, 1)."""
  check_finite(name, value)
  if not 0.0 <= value < 1.0:
    raise ValueError(f"{name}: got {value!r}, expected a rate in [0, 1)")
