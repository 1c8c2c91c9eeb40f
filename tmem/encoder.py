"""Bidirectional blocks around one shared memory: what image and video models have in common."""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx

from tmem.attention import Heads, attend
from tmem.layer_norm import LayerNorm
from tmem.layout import Layout
from tmem.memory import TensorMemory
from tmem.stack import Stack, States, make_memory
from tmem.stack_config import StackConfig, check_rate
from tmem.transformer import MemoryFusion, Mlp, apply_dropout
from tmem.typing import Tokens


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncoderConfig(StackConfig):
  """Sizes and composition of bidirectional blocks.

  Attributes: those of `StackConfig`, and
    drop_path: how often the last block's attention and its MLP are left out for a row in training,
      in [0, 1); those of earlier blocks less, in proportion to their depth, the first never.

  Raises:
    ValueError: naming the field, what came and what is right.
  """

  state_scope: str = "depth"
  gate_init: float = -2.0
  drop_path: float = 0.0

  def __post_init__(self):
    super().__post_init__()
    check_rate("drop_path", self.drop_path)


class EncoderBlock(nnx.Module):
  """Pre-norm block: attention, then the memory if there is a fusion, then the MLP.

  Args:
    config: sizes.
    layer: which block this is.
    rngs: source of the initial parameters.

  Reference: arXiv 2605.27686, vision.
  """

  def __init__(self, config: EncoderConfig, layer: int, *, rngs: nnx.Rngs):
    features, dropout = config.features, config.dropout
    types = {"dtype": config.dtype, "param_dtype": config.param_dtype, "rngs": rngs}
    self.attention_norm = LayerNorm(features, **types)
    self.attention = Heads(features, config.num_heads, **types)
    self.mlp_norm = LayerNorm(features, **types)
    self.mlp = Mlp(features, config.mlp_features, dropout, **types)
    self.dropout = nnx.Dropout(dropout)
    self.drop_path = config.drop_path * layer / max(config.num_layers - 1, 1)
    remembers = layer in config.memory_layers
    self.fusion = MemoryFusion(features, config.gate_init, dropout, **types) if remembers else None

  def __call__(
    self,
    x: Tokens,
    visible: jax.Array | None = None,
    key: jax.Array | None = None,
    *,
    memory: TensorMemory | None = None,
    state=None,
  ):
    """Runs the block.

    Args:
      x: [batch, tokens, features].
      visible: bool, broadcastable to [batch, heads, queries, keys]: what tokens see; None: all.
      key: dropout is on iff a key is given.
      memory: the memory, for a block with a fusion.
      state: its state before the tokens.

    Returns:
      `(x, state)` after the tokens.
    """
    keys = (None,) * 5 if key is None else jax.random.split(key, 5)
    visible = jnp.ones((1, 1, 1, 1), bool) if visible is None else visible
    attended = self.attention.join(attend(*self.attention.split(self.attention_norm(x)), visible))
    x = x + self._kept(apply_dropout(self.dropout, attended, keys[0]), keys[1])
    if self.fusion is not None:
      x, state = self.fusion(x, memory, state, Layout(), keys[2])
    x = x + self._kept(self.mlp(self.mlp_norm(x), keys[3]), keys[4])
    return x, state

  def _kept(self, branch: Tokens, key: jax.Array | None) -> Tokens:
    """The branch, in training left out for some rows and scaled up for the others."""
    if key is None or not self.drop_path:
      return branch
    keep = jax.random.bernoulli(key, 1 - self.drop_path, (len(branch), 1, 1))
    return jnp.where(keep, branch / (1 - self.drop_path), 0)


class Encoder(Stack):
  """Bidirectional pre-norm blocks; a model extends it with what comes before and after them.

  Args:
    config: sizes and composition.
    rngs: source of the initial parameters.
  """

  def __init__(self, config: EncoderConfig, *, rngs: nnx.Rngs):
    self.config = config
    types = {"dtype": config.dtype, "param_dtype": config.param_dtype, "rngs": rngs}
    self.blocks = nnx.List(
      EncoderBlock(config, layer, rngs=rngs) for layer in range(config.num_layers)
    )
    self.norm = LayerNorm(config.features, **types)
    remembers = config.remembers
    self.memory = make_memory(TensorMemory, config.memory, config, rngs) if remembers else None

  def encode(
    self,
    x: Tokens,
    states: States,
    visible: jax.Array | None = None,
    key: jax.Array | None = None,
  ) -> tuple[Tokens, States]:
    """Runs the blocks.

    Args:
      x: [batch, tokens, features], embedded tokens, in the order in which the memory gets them.
      states: the memories before them, as from `init_states`.
      visible: bool, broadcastable to [batch, heads, queries, keys]: what tokens see; None: all.
      key: dropout is on iff a key is given.

    Returns:
      `(x, states)`: [batch, tokens, features], not yet normalised, and the memories after.
    """
    keys = [None] * len(self.blocks) if key is None else jax.random.split(key, len(self.blocks))
    states = list(states)
    for layer in range(len(self.blocks)):
      own = self.state_of(layer)
      state = None if own is None else states[own]
      x, state = self.run_block(layer, state, x, visible, keys[layer])
      if own is not None:
        states[own] = state
    return x, tuple(states)
