"""Transformer blocks, with or without a memory fused into the residual stream."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from tmem.attention import ATTENTION, SelfAttention
from tmem.chunks import State
from tmem.gated_delta import GatedDelta
from tmem.layer_norm import LayerNorm
from tmem.layout import Layout
from tmem.past import Past
from tmem.placement import placed
from tmem.recurrent import RecurrentMemory
from tmem.segment_attention import SegmentAttention
from tmem.typing import Tokens

ATTENTION_KINDS = (*ATTENTION, "delta", "segments")


class AttentionSpec(NamedTuple):
  """Which attention, or what in its place, a block has.

  Attributes:
    kind: a name of `ATTENTION_KINDS`.
    window: see `SelfAttention`.
    rotary: see `SelfAttention`.
    segment: see `SegmentAttention`.
    cached: see `SegmentAttention`.
  """

  kind: str = "full"
  window: int | None = None
  rotary: bool = False
  segment: int | None = None
  cached: int | None = None

  def make(
    self, features: int, num_heads: int, **types
  ) -> SelfAttention | GatedDelta | SegmentAttention:
    """The module; `types` are its keyword arguments."""
    if self.kind == "delta":
      return GatedDelta(features, num_heads, **types)
    if self.kind == "segments":
      return SegmentAttention(features, num_heads, self.segment, self.cached, **types)
    return SelfAttention(features, num_heads, self.kind, self.window, self.rotary, **types)


class Mlp(nnx.Module):
  """Two linear layers with an exact GELU, and dropout, between them."""

  def __init__(
    self, features: int, hidden: int, dropout: float, *, dtype, param_dtype, rngs: nnx.Rngs
  ):
    self.up = nnx.Linear(features, hidden, dtype=dtype, param_dtype=param_dtype, rngs=rngs)
    self.down = nnx.Linear(hidden, features, dtype=dtype, param_dtype=param_dtype, rngs=rngs)
    self.dropout = nnx.Dropout(dropout)

  def __call__(self, x: Tokens, key: jax.Array | None = None) -> Tokens:
    """[..., features] -> [..., features]; dropout is on iff a key is given."""
    hidden = jax.nn.gelu(self.up(x), approximate=False)
    hidden = placed(hidden, "batch", *(None,) * (x.ndim - 2), "hidden")
    return self.down(apply_dropout(self.dropout, hidden, key))


class MemoryFusion(nnx.Module):
  """A block's own part of the memory: the LayerNorm before it and the fusion gate behind it.

  The memory itself is shared by all blocks; it is owned once, outside, and passed in.

  Args:
    features: size of a token.
    gate_init: start of γ; the memory enters as sigmoid(γ) times its output.
    dropout: rate on the memory's output.
    dtype: compute type.
    param_dtype: type of the parameters.
    rngs: source of the initial parameters.

  Reference: arXiv 2605.27686, gated residual fusion.
  """

  def __init__(
    self, features: int, gate_init: float, dropout: float, *, dtype, param_dtype, rngs: nnx.Rngs
  ):
    self.norm = LayerNorm(features, dtype=dtype, param_dtype=param_dtype, rngs=rngs)
    self.gate = nnx.Param(jnp.full((), gate_init, param_dtype))
    self.dropout = nnx.Dropout(dropout)

  def __call__(
    self,
    x: Tokens,
    memory: RecurrentMemory,
    state: State,
    layout: Layout,
    key: jax.Array | None = None,
  ) -> tuple[Tokens, State]:
    """Returns x + sigmoid(γ) · dropout(memory(LayerNorm(x))), and the state after x."""
    # Of a whole input, nothing may wait in a state that goes on to another block.
    how = {"tail": "commit"} if layout.at is None else {"tail": "hold", "count": layout.at.count}
    y, state = memory(self.norm(x), state, layout.mask, reset=layout.reset, **how)
    gate = jax.nn.sigmoid(self.gate[...]).astype(x.dtype)
    return x + gate * apply_dropout(self.dropout, y.astype(x.dtype), key), state


class Block(nnx.Module):
  """Pre-norm Transformer block: attention, MLP, then the memory if there is a fusion.

  Args:
    features: size of a token.
    num_heads: attention heads.
    attention: what mixes the tokens.
    output_norm: whether a LayerNorm follows the attention, before the residual.
    mlp_features: width of the MLP.
    dropout: rate on attention output, MLP hidden layer and memory output.
    fusion_gate: start of the fusion gate γ, or None for a block without memory.
    dtype: compute type.
    param_dtype: type of the parameters.
    rngs: source of the initial parameters.
  """

  def __init__(
    self,
    features: int,
    num_heads: int,
    attention: AttentionSpec,
    output_norm: bool,
    mlp_features: int,
    dropout: float,
    fusion_gate: float | None,
    *,
    dtype,
    param_dtype,
    rngs: nnx.Rngs,
  ):
    types = {"dtype": dtype, "param_dtype": param_dtype, "rngs": rngs}
    self.attention_norm = LayerNorm(features, **types)
    self.attention = attention.make(features, num_heads, **types)
    self.output_norm = LayerNorm(features, **types) if output_norm else None
    self.mlp_norm = LayerNorm(features, **types)
    self.mlp = Mlp(features, mlp_features, dropout, **types)
    self.dropout = nnx.Dropout(dropout)
    without = fusion_gate is None
    self.fusion = None if without else MemoryFusion(features, fusion_gate, dropout, **types)

  def __call__(
    self,
    x: Tokens,
    layout: Layout,
    past: Past | None = None,
    key: jax.Array | None = None,
    distance_bias: jax.Array | None = None,
    *,
    memory: RecurrentMemory | None = None,
    state: State | None = None,
  ) -> tuple[Tokens, State | None, Past | None]:
    """Runs the block.

    Args:
      x: [batch, tokens, features].
      layout: how the tokens lie in their streams.
      past: what attention has kept of the streams; None: they begin here.
      key: dropout is on iff a key is given.
      distance_bias: what blocks with segments share, see `SegmentAttention`; None in others.
      memory: the memory, for a block with a fusion.
      state: its state before the tokens.

    Returns:
      `(x, state, past)` after the tokens.
    """
    keys = (None, None, None) if key is None else jax.random.split(key, 3)
    shared = () if distance_bias is None else (distance_bias,)
    attended, past = self.attention(self.attention_norm(x), layout, past, *shared)
    if self.output_norm is not None:
      attended = self.output_norm(attended)
    x = x + apply_dropout(self.dropout, attended, keys[0])
    x = x + self.mlp(self.mlp_norm(x), keys[1])
    if self.fusion is not None:
      x, state = self.fusion(x, memory, state, layout, keys[2])
    return x, state, past


def apply_dropout(dropout: nnx.Dropout, x: jax.Array, key: jax.Array | None) -> jax.Array:
  """Dropout with an explicit key; without a key, `x` itself."""
  return dropout(x, deterministic=key is None, rngs=key)
