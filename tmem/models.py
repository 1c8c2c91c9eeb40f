"""The language model: methods as compositions of attention and memory."""

import dataclasses
from collections.abc import Mapping
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
from tmem.memory import TensorMemory
from tmem.transformer import Block, layer_norm
from tmem.typing import Logits, Mask, TokenIds


class Method(NamedTuple):
  """What a named method is made of: attention in a window or not, memory or not."""

  windowed: bool
  remembers: bool


METHODS = {
  "base": Method(windowed=False, remembers=False),
  "local": Method(windowed=True, remembers=False),
  "tensor": Method(windowed=False, remembers=True),
  "tensor_local": Method(windowed=True, remembers=True),
}
STATE_SCOPES = ("layer", "depth")


@dataclasses.dataclass(frozen=True)
class LanguageConfig:
  """Sizes and composition of a causal language model.

  Attributes:
    vocab_size: number of token types.
    features: size of a token (d_model), a multiple of `num_heads`.
    num_heads: attention heads.
    num_layers: blocks.
    mlp_features: width of the MLP; None means four times `features`.
    max_length: number of learned positions, the longest input.
    method: a name of `METHODS`.
    window: visible tokens of windowed attention, the query's own included.
    dropout: rate in [0, 1).
    memory: configuration of the memory shared by all blocks that use one. Its `dtype` and
      `param_dtype` give way to the model's; its `tail` is "commit".
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

  vocab_size: int
  features: int = 128
  num_heads: int = 4
  num_layers: int = 3
  mlp_features: int | None = None
  max_length: int = 256
  method: str = "tensor_local"
  window: int = 16
  dropout: float = 0.0
  memory: MemoryConfig = dataclasses.field(default_factory=MemoryConfig)
  memory_every_n_layers: int = 1
  state_scope: str = "layer"
  allow_future_leak: bool = False
  gate_init: float = 0.0
  dtype: Any = jnp.float32
  param_dtype: Any = jnp.float32

  def __post_init__(self):
    sizes = ("vocab_size", "features", "num_heads", "num_layers", "max_length", "window")
    for name in (*sizes, "memory_every_n_layers"):
      check_int(name, getattr(self, name))
    if self.mlp_features is None:
      object.__setattr__(self, "mlp_features", 4 * self.features)
    check_int("mlp_features", self.mlp_features)
    if self.features % self.num_heads:
      raise ValueError(f"features: {self.features} is not a multiple of num_heads {self.num_heads}")
    check_choice("method", self.method, tuple(METHODS))
    check_choice("state_scope", self.state_scope, STATE_SCOPES)
    if not isinstance(self.memory, MemoryConfig):
      raise ValueError(f"memory: got {self.memory!r}, expected a MemoryConfig")
    check_finite("gate_init", self.gate_init)
    check_finite("dropout", self.dropout)
    if not 0.0 <= self.dropout < 1.0:
      raise ValueError(f"dropout: got {self.dropout!r}, expected a rate in [0, 1)")
    for name in ("dtype", "param_dtype"):
      object.__setattr__(self, name, checked_float_dtype(name, getattr(self, name)))
    if not self.causal and not self.allow_future_leak:
      raise ValueError(
        "state_scope: 'depth' lets later tokens influence earlier ones, so a language model"
        " with it sees the future; use 'layer', or set allow_future_leak=True to reproduce the"
        " published setting"
      )

  @property
  def attention_window(self) -> int | None:
    """Visible tokens of the attention, or None for all before a token."""
    return self.window if METHODS[self.method].windowed else None

  @property
  def memory_layers(self) -> tuple[int, ...]:
    """Indices of the blocks that use the memory."""
    remembers = METHODS[self.method].remembers
    return tuple(range(0, self.num_layers, self.memory_every_n_layers)) if remembers else ()

  @property
  def causal(self) -> bool:
    """Whether no logit depends on a later token, by construction."""
    return self.state_scope == "layer" or not METHODS[self.method].remembers

  def to_dict(self) -> dict[str, Any]:
    """The fields as JSON values; `from_dict` is the inverse."""
    return to_json_dict(self)

  @classmethod
  def from_dict(cls, fields: Mapping[str, Any]) -> "LanguageConfig":
    """Rebuilds a configuration from `to_dict`; raises ValueError on unknown names."""
    fields = known_fields(cls, fields)
    if "memory" in fields:
      fields["memory"] = MemoryConfig.from_dict(fields["memory"])
    return cls(**fields)


class LanguageModel(nnx.Module):
  """Pre-norm Transformer language model with learned positions and a tied head.

  One memory serves all blocks that use it; each has a LayerNorm and a fusion gate of its own
  and, in scope "layer", a state of its own.

  Args:
    config: sizes and composition.
    rngs: source of the initial parameters.

  Reference: arXiv 2605.27686, language modelling; strictly causal unless the configuration
  asks for the published state scope.
  """

  def __init__(self, config: LanguageConfig, *, rngs: nnx.Rngs):
    self.config = config
    types = {"dtype": config.dtype, "param_dtype": config.param_dtype, "rngs": rngs}
    normal = nnx.initializers.normal(0.02)
    self.embedding = nnx.Embed(config.vocab_size, config.features, embedding_init=normal, **types)
    self.positions = nnx.Param(
      normal(rngs.params(), (config.max_length, config.features), config.param_dtype)
    )
    self.blocks = nnx.List(
      Block(
        config.features,
        config.num_heads,
        config.attention_window,
        config.mlp_features,
        config.dropout,
        config.gate_init if layer in config.memory_layers else None,
        **types,
      )
      for layer in range(config.num_layers)
    )
    self.norm = layer_norm(config.features, **types)
    memory = dataclasses.replace(
      config.memory,
      tail="commit",
      dtype=config.dtype,
      param_dtype=config.param_dtype,
      state_dtype=jnp.promote_types(config.memory.state_dtype, config.dtype),
    )
    remembers = bool(config.memory_layers)
    self.memory = TensorMemory(memory, config.features, rngs=rngs) if remembers else None

  @property
  def causal(self) -> bool:
    """Whether no logit depends on a later token, by construction."""
    return self.config.causal

  def __call__(
    self, tokens: TokenIds, key: jax.Array | None = None, mask: Mask | None = None
  ) -> Logits:
    """Logits of the next token after each token, from an empty memory.

    Args:
      tokens: [batch, tokens] integers in [0, vocab_size), at most `max_length` in a row. An
        id outside has NaN logits, as no value can be checked under `jax.jit`.
      key: dropout is on iff a key is given.
      mask: [batch, tokens] bool, False on tokens that do not exist; None: all are real.

    Returns:
      [batch, tokens, vocab_size] in float32 (float64 if the model computes in it).

    Raises:
      ValueError: naming the argument, what came and what is right.
    """
    tokens = jnp.asarray(tokens)
    self._check(tokens, mask)
    config = self.config
    keys = [None] * config.num_layers if key is None else jax.random.split(key, config.num_layers)
    positions = self.positions[: tokens.shape[1]].astype(config.dtype)
    x = self.embedding(tokens) + positions
    state = None
    for layer, block in enumerate(self.blocks):
      fresh = config.state_scope == "layer" or state is None
      if self.memory is not None and fresh:
        state = self.memory.init_state(tokens.shape[0])
      x, state = block(x, self.memory, state, mask, keys[layer])
    return self._logits(self.norm(x))

  def fusion_gates(self) -> dict[str, float]:
    """sigmoid(γ) of each block that uses the memory."""
    return {
      f"block_{layer}": float(jax.nn.sigmoid(self.blocks[layer].fusion.gate[...]))
      for layer in self.config.memory_layers
    }

  def state_bytes(self) -> int:
    """Bytes one stream must keep to go on: keys and values in reach, and memory states."""
    config = self.config
    reach = config.max_length if config.attention_window is None else config.window
    total = config.num_layers * 2 * config.features * (reach - 1) * config.dtype.itemsize
    if self.memory is not None:
      state = jax.eval_shape(lambda: self.memory.init_state(1, tail="hold"))
      states = len(config.memory_layers) if config.state_scope == "layer" else 1
      total += states * sum(a.size * a.dtype.itemsize for a in jax.tree.leaves(state))
    return total

  def _logits(self, x: jax.Array) -> Logits:
    dtype = jnp.promote_types(self.config.dtype, jnp.float32)
    table = self.embedding.embedding[...].astype(self.config.dtype)
    return jnp.matmul(x, table.T, preferred_element_type=dtype)

  def _check(self, tokens: TokenIds, mask: Mask | None) -> None:
    if tokens.ndim != 2 or not jnp.issubdtype(tokens.dtype, jnp.integer):
      raise ValueError(
        f"tokens: got {tokens.dtype}{list(tokens.shape)}, expected integers [batch, tokens]"
      )
    if tokens.shape[1] > self.config.max_length:
      raise ValueError(
        f"tokens: got {tokens.shape[1]} in a row, but the model has"
        f" {self.config.max_length} positions (max_length)"
      )
    if mask is not None and (mask.shape != tokens.shape or mask.dtype != jnp.bool_):
      raise ValueError(
        f"mask: got {mask.dtype}{list(mask.shape)}, expected bool{list(tokens.shape)}"
      )
