"""Causal blocks around one shared memory: what the causal models have in common."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from tmem.config import (
  MemoryConfig,
  check_choice,
  check_finite,
  check_int,
  checked_float_dtype,
  known_fields,
  to_json_dict,
)
from tmem.layer_norm import LayerNorm
from tmem.memory import TensorMemory
from tmem.past import Past, Place
from tmem.recurrent import RecurrentMemory
from tmem.slots import SlotConfig, SlotMemory
from tmem.transformer import AttentionSpec, Block
from tmem.typing import Mask, Tokens


class Method(NamedTuple):
  """What a named method is made of.

  Attributes:
    attention: a name of `tmem.transformer.ATTENTION_KINDS`.
    memory: a name of `MEMORIES`, or None.
    output_norm: whether a LayerNorm follows the attention.
    rotary: whether attention turns queries and keys by their positions; then none are learned.
  """

  attention: str
  memory: str | None = None
  output_norm: bool = False
  rotary: bool = False


METHODS = {
  "base": Method("full"),
  "base_sln": Method("full", output_norm=True),
  "local": Method("window"),
  "local_rope": Method("window", rotary=True),
  "linear": Method("linear"),
  "gated_delta": Method("delta"),
  "slots": Method("full", "slots"),
  "slots_local": Method("window", "slots"),
  "tensor": Method("full", "memory"),
  "tensor_sln": Method("full", "memory", output_norm=True),
  "tensor_local": Method("window", "memory"),
}
# By the field of the configuration that describes it.
MEMORIES = {"memory": (MemoryConfig, TensorMemory), "slots": (SlotConfig, SlotMemory)}
STATE_SCOPES = ("layer", "depth")
States = tuple[NamedTuple, ...]
MANY = 2**30  # tokens of a stream; a longer one is counted anew from half as many


class Stream(NamedTuple):
  """All that streams of tokens carry from one call to the next.

  Every array has a row for each stream, so rows can be gathered.

  Attributes:
    seen: [batch] int32, tokens so far; from `MANY` on, fewer by a multiple of `max_length`.
    pasts: for each block, what its attention has kept.
    memories: states of the memories, as of `Decoder.init_states`.
  """

  seen: jax.Array
  pasts: tuple[Past, ...]
  memories: States


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecoderConfig:
  """Sizes and composition of causal blocks.

  Attributes:
    features: size of a token (d_model), a multiple of `num_heads`.
    num_heads: attention heads.
    num_layers: blocks.
    mlp_features: width of the MLP; None means four times `features`.
    max_length: number of learned positions, the longest input where positions are learned.
    method: a name of `METHODS`.
    window: visible tokens of windowed attention, the query's own included.
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
    if self.features % self.num_heads:
      raise ValueError(f"features: {self.features} is not a multiple of num_heads {self.num_heads}")
    check_choice("method", self.method, tuple(METHODS))
    if METHODS[self.method].rotary and self.features // self.num_heads % 2:
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
  def learned_positions(self) -> bool:
    """Whether tokens have learned positions, which bound the length of an input."""
    return not METHODS[self.method].rotary

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


class Decoder(nnx.Module):
  """Causal pre-norm blocks; a model extends it with what comes before and after them.

  One memory serves all blocks that use it; each has a LayerNorm and a fusion gate of its own
  and, in scope "layer", a state of its own.

  Args:
    config: sizes and composition.
    rngs: source of the initial parameters.
  """

  def __init__(self, config: DecoderConfig, *, rngs: nnx.Rngs):
    self.config = config
    types = {"dtype": config.dtype, "param_dtype": config.param_dtype, "rngs": rngs}
    method = METHODS[config.method]
    attention = AttentionSpec(method.attention, config.attention_window, method.rotary)
    self.blocks = nnx.List(
      Block(
        config.features,
        config.num_heads,
        attention,
        method.output_norm,
        config.mlp_features,
        config.dropout,
        config.gate_init if layer in config.memory_layers else None,
        **types,
      )
      for layer in range(config.num_layers)
    )
    self.norm = LayerNorm(config.features, **types)
    self.memory = _make_memory(config, rngs=rngs)

  @property
  def causal(self) -> bool:
    """Whether no output depends on a later token, by construction."""
    return self.config.causal

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

  def init_stream(self, batch_size: int) -> Stream:
    """What `batch_size` streams keep before their first token.

    Raises:
      ValueError: if the model is not causal: a stream has no end from which to read.
    """
    if not self.causal:
      raise ValueError("state_scope: 'depth' reads what later tokens write; a stream has no end")
    check_int("batch_size", batch_size)
    return Stream(
      seen=jnp.zeros((batch_size,), jnp.int32),
      pasts=tuple(
        block.attention.empty_past(batch_size, self.config.max_length) for block in self.blocks
      ),
      memories=self.init_states(batch_size, tail="hold"),
    )

  def check_stream(self, stream: Stream) -> None:
    """Raises ValueError unless `stream` has the structure, shapes and types of this model's."""
    if not isinstance(stream, Stream):
      raise ValueError(f"stream: got {type(stream).__name__}, expected a Stream (init_stream)")
    right = jax.eval_shape(lambda: self.init_stream(len(stream.seen)))
    if jax.tree.structure(stream) != jax.tree.structure(right):
      raise ValueError("stream: of another model, its blocks keep something else")
    pairs = zip(jax.tree.leaves_with_path(stream), jax.tree.leaves(right), strict=True)
    for (path, own), expected in pairs:
      if (own.shape, own.dtype) != (expected.shape, expected.dtype):
        raise ValueError(
          f"stream{jax.tree_util.keystr(path)}: got {own.dtype}{list(own.shape)}, expected"
          f" {expected.dtype}{list(expected.shape)}; it is of another model"
        )

  def decode_onward(self, x: Tokens, stream: Stream, count: jax.Array) -> tuple[Tokens, Stream]:
    """Runs the blocks over the next tokens of streams.

    Args:
      x: [batch, tokens, features], embedded tokens.
      stream: what the streams have kept.
      count: [batch] int32, how many of a row's tokens there are.

    Returns:
      `(x, stream)`: [batch, tokens, features] behind the last norm, and what to keep.
    """
    at = Place(stream.seen, count)
    keys = (None,) * len(self.blocks)
    x, memories, pasts = self._run(x, stream.memories, None, keys, stream.pasts, at)
    seen = stream.seen + count
    # The place in the cycle of positions is all that matters of so many, and they never overflow.
    cycles = MANY // 2 // self.config.max_length
    seen = jnp.where(seen < MANY, seen, seen - cycles * self.config.max_length)
    return x, Stream(seen, pasts, memories)

  def decode(
    self, x: Tokens, states: States, mask: Mask | None = None, key: jax.Array | None = None
  ) -> tuple[Tokens, States]:
    """Runs the blocks.

    Args:
      x: [batch, tokens, features], embedded tokens.
      states: the memories before them, as from `init_states`.
      mask: [batch, tokens] bool, False on tokens that do not exist; None: all are real.
      key: dropout is on iff a key is given.

    Returns:
      `(x, states)`: [batch, tokens, features] behind the last norm, and the memories after.
    """
    none = (None,) * len(self.blocks)
    keys = none if key is None else jax.random.split(key, len(self.blocks))
    x, states, _ = self._run(x, states, mask, keys, none, None)
    return x, states

  def _run(
    self,
    x: Tokens,
    states: States,
    mask: Mask | None,
    keys: Sequence[jax.Array | None],
    pasts: Sequence[Past | None],
    at: Place | None,
  ) -> tuple[Tokens, States, tuple[Past | None, ...]]:
    """The blocks and the last norm; `keys` and `pasts` have an entry for each block."""
    config = self.config
    states, pasts = list(states), list(pasts)
    for layer, block in enumerate(self.blocks):
      if layer in config.memory_layers:
        own = config.memory_layers.index(layer) if config.state_scope == "layer" else 0
        memory, state = self.memory, states[own]
      else:
        own, memory, state = None, None, None
      x, state, pasts[layer] = block(x, memory, state, mask, keys[layer], pasts[layer], at)
      if own is not None:
        states[own] = state
    return self.norm(x), tuple(states), tuple(pasts)

  def gates(self) -> dict[int, jax.Array]:
    """sigmoid(γ) of each block that uses the memory, by its index."""
    return {
      layer: jax.nn.sigmoid(self.blocks[layer].fusion.gate[...])
      for layer in self.config.memory_layers
    }

  def fusion_gates(self) -> dict[str, float]:
    """`gates` as plain numbers, for a report."""
    return {f"block_{layer}": float(gate) for layer, gate in self.gates().items()}

  def state_bytes(self) -> int:
    """Bytes one stream must keep to go on: what attention needs of the past, and memory states."""
    length = self.config.max_length

    def kept():
      pasts = [block.attention.empty_past(1, length) for block in self.blocks]
      return pasts, self.init_states(1, tail="hold")

    return sum(a.size * a.dtype.itemsize for a in jax.tree.leaves(jax.eval_shape(kept)))


def _make_memory(config: DecoderConfig, *, rngs: nnx.Rngs) -> RecurrentMemory | None:
  """The memory of a method, in the model's types; None for a method without one."""
  name = METHODS[config.method].memory
  if name is None:
    return None
  own = getattr(config, name)
  own = dataclasses.replace(
    own,
    tail="commit",
    dtype=config.dtype,
    param_dtype=config.param_dtype,
    state_dtype=max(own.state_dtype, config.dtype, key=lambda dtype: dtype.itemsize),
  )
  return MEMORIES[name][1](own, config.features, rngs=rngs)
