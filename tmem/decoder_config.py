"""Methods by name, and the configuration of causal blocks."""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp

from tmem.config import (
  MemoryConfig,
  check_choice,
  check_finite,
  check_int,
  checked_float_dtype,
  known_fields,
  to_json_dict,
)
from tmem.memory import TensorMemory
from tmem.slots import SlotConfig, SlotMemory


class Method(NamedTuple):
  """What a named method is made of.

  Attributes:
    attention: a name of `tmem.transformer.ATTENTION_KINDS`.
    memory: a name of `MEMORIES`, or None.
    output_norm: whether a LayerNorm follows the attention.
    positions: a name of `POSITIONS`: a learned vector added to each token, queries and keys turned
      by their positions, or a learned bias of each distance.
  """

  attention: str
  memory: str | None = None
  output_norm: bool = False
  positions: str = "learned"


METHODS = {
  "base": Method("full"),
  "base_sln": Method("full", output_norm=True),
  "local": Method("window"),
  "local_rope": Method("window", positions="rotary"),
  "linear": Method("linear"),
  "gated_delta": Method("delta"),
  "xl": Method("segments", positions="distance"),
  "slots": Method("full", "slots"),
  "slots_local": Method("window", "slots"),
  "tensor": Method("full", "memory"),
  "tensor_sln": Method("full", "memory", output_norm=True),
  "tensor_local": Method("window", "memory"),
}
# By the field of the configuration that describes it.
MEMORIES = {"memory": (MemoryConfig, TensorMemory), "slots": (SlotConfig, SlotMemory)}
POSITIONS = ("learned", "rotary", "distance")
STATE_SCOPES = ("layer", "depth")


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecoderConfig:
  """Sizes and composition of causal blocks.

  Attributes:
    features: size of a token (d_model), a multiple of `num_heads`.
    num_heads: attention heads.
    num_layers: blocks.
    mlp_features: width of the MLP; None means four times `features`.
    max_length: number of learned positions, the longest input where positions are learned; tokens
      of a segment in the method "xl".
    method: a name of `METHODS`.
    window: visible tokens of windowed attention, the query's own included.
    cache_length: tokens in front of a segment that it sees in the method "xl"; None means
      `max_length`.
    dropout: rate in [0, 1).
    memory: configuration of the Tensor Memory shared by all blocks that use it. Its `dtype` and
      `param_dtype` give way to the model's; its `tail` is "commit".
    slots: configuration of the slot memory, the other kind.
    memory_every_n_layers: blocks 0, n, 2n, … use the memory.
    state_scope: "layer" gives each block a state of its own. "depth" hands one state from block
      to block, as published: then later tokens reach earlier ones.
    allow_future_leak: permits `state_scope="depth"`, to reproduce the published setting.
    gate_init: start of the fusion gates γ; sigmoid(γ) scales the memory's output.
    dtype: compute type, of the memory's projections too.
    param_dtype: type of the parameters.

  Raises:
    ValueError: naming the field, what came and what is right.
  """

  features: int = 128
  num_heads: int = 4
  num_layers: int = 3
  mlp_features: int | None = None
  max_length: int = 256
  method: str = "tensor_local"
  window: int = 16
  cache_length: int | None = None
  dropout: float = 0.0
  memory: MemoryConfig = dataclasses.field(default_factory=MemoryConfig)
  slots: SlotConfig = dataclasses.field(default_factory=SlotConfig)
  memory_every_n_layers: int = 1
  state_scope: str = "layer"
  allow_future_leak: bool = False
  gate_init: float = 0.0
  dtype: Any = jnp.float32
  param_dtype: Any = jnp.float32

  def __post_init__(self):
    sizes = ("features", "num_heads", "num_layers", "max_length", "window")
    for name in (*sizes, "memory_every_n_layers"):
      check_int(name, getattr(self, name))
    if self.mlp_features is None:
      object.__setattr__(self, "mlp_features", 4 * self.features)
    check_int("mlp_features", self.mlp_features)
    if self.cache_length is None:
      object.__setattr__(self, "cache_length", self.max_length)
    check_int("cache_length", self.cache_length, 0)
    if self.features % self.num_heads:
      raise ValueError(f"features: {self.features} is not a multiple of num_heads {self.num_heads}")
    check_choice("method", self.method, tuple(METHODS))
    if METHODS[self.method].positions == "rotary" and self.features // self.num_heads % 2:
      raise ValueError(
        f"features: {self.method} turns pairs of features, so a head must have an even number; got"
        f" {self.features} in {self.num_heads} heads (num_heads)"
      )
    check_choice("state_scope", self.state_scope, STATE_SCOPES)
    for name, (kind, _) in MEMORIES.items():
      if not isinstance(getattr(self, name), kind):
        raise ValueError(f"{name}: got {getattr(self, name)!r}, expected a {kind.__name__}")
    check_finite("gate_init", self.gate_init)
    check_finite("dropout", self.dropout)
    if not 0.0 <= self.dropout < 1.0:
      raise ValueError(f"dropout: got {self.dropout!r}, expected a rate in [0, 1)")
    for name in ("dtype", "param_dtype"):
      object.__setattr__(self, name, checked_float_dtype(name, getattr(self, name)))
    if not self.causal and not self.allow_future_leak:
      raise ValueError(
        "state_scope: 'depth' lets later tokens influence earlier ones, so a causal model"
        " with it sees the future; use 'layer', or set allow_future_leak=True to reproduce the"
        " published setting"
      )

  @property
  def attention_window(self) -> int | None:
    """Visible tokens of the attention, or None for all before a token."""
    return self.window if METHODS[self.method].attention == "window" else None

  @property
  def distances(self) -> int | None:
    """How many distances have a learned bias, or None."""
    by_distance = METHODS[self.method].positions == "distance"
    return self.max_length + self.cache_length if by_distance else None

  @property
  def learned_positions(self) -> bool:
    """Whether tokens have learned positions, which bound the length of an input."""
    return METHODS[self.method].positions == "learned"

  @property
  def memory_layers(self) -> tuple[int, ...]:
    """Indices of the blocks that use the memory."""
    remembers = METHODS[self.method].memory is not None
    return tuple(range(0, self.num_layers, self.memory_every_n_layers)) if remembers else ()

  @property
  def causal(self) -> bool:
    """Whether no output depends on a later token, by construction."""
    return self.state_scope == "layer" or METHODS[self.method].memory is None

  def to_dict(self) -> dict[str, Any]:
    """The fields as JSON values; `from_dict` is the inverse."""
    return to_json_dict(self)

  @classmethod
  def from_dict(cls, fields: Mapping[str, Any]) -> "DecoderConfig":
    """Rebuilds a configuration from `to_dict`; raises ValueError on unknown names."""
    fields = known_fields(cls, fields)
    for name, (kind, _) in MEMORIES.items():
      if name in fields:
        fields[name] = kind.from_dict(fields[name])
    return cls(**fields)
