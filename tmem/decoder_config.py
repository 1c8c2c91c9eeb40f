"""Methods by name, and the configuration of causal blocks."""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

from tmem.config import MemoryConfig, check_choice, check_int, check_kind, known_fields
from tmem.memory import TensorMemory
from tmem.slots import SlotConfig, SlotMemory
from tmem.stack_config import StackConfig


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
  "tensor_local_rope": Method("window", "memory", positions="rotary"),
}
# By the field of the configuration that describes it.
MEMORIES = {"memory": (MemoryConfig, TensorMemory), "slots": (SlotConfig, SlotMemory)}
POSITIONS = ("learned", "rotary", "distance")


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecoderConfig(StackConfig):
  """Sizes and composition of causal blocks.

  Attributes: those of `StackConfig`, and
    max_length: number of learned positions, the longest input where positions are learned; tokens
      of a segment in the method "xl".
    method: a name of `METHODS`.
    window: visible tokens of windowed attention, the query's own included.
    cache_length: tokens in front of a segment that it sees in the method "xl"; None means
      `max_length`.
    slots: configuration of the slot memory, the other kind.
    allow_future_leak: permits `state_scope="depth"`, to reproduce the published setting.

  Raises:
    ValueError: naming the field, what came and what is right.
  """

  max_length: int = 256
  method: str = "tensor_local"
  window: int = 16
  cache_length: int | None = None
  slots: SlotConfig = dataclasses.field(default_factory=SlotConfig)
  allow_future_leak: bool = False

  def __post_init__(self):
    super().__post_init__()
    check_int("max_length", self.max_length)
    check_int("window", self.window)
    if self.cache_length is None:
      object.__setattr__(self, "cache_length", self.max_length)
    check_int("cache_length", self.cache_length, 0)
    check_choice("method", self.method, tuple(METHODS))
    if METHODS[self.method].positions == "rotary" and self.features // self.num_heads % 2:
      raise ValueError(
        f"features: {self.method} turns pairs of features, so a head must have an even number; got"
        f" {self.features} in {self.num_heads} heads (num_heads)"
      )
    check_kind("slots", self.slots, SlotConfig)
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
  def remembers(self) -> bool:
    """Whether there is a memory."""
    return METHODS[self.method].memory is not None

  @property
  def causal(self) -> bool:
    """Whether no output depends on a later token, by construction."""
    return self.state_scope == "layer" or not self.remembers

  @classmethod
  def from_dict(cls, fields: Mapping[str, Any]) -> "DecoderConfig":
    """Rebuilds a configuration from `to_dict`; raises ValueError on unknown names."""
    fields = known_fields(cls, fields)
    for name, (kind, _) in MEMORIES.items():
      if name in fields:
        fields[name] = kind.from_dict(fields[name])
    return cls(**fields)
