"""Causal blocks around one shared memory: what the causal models have in common."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from tmem.config import check_int
from tmem.decoder_config import MEMORIES, METHODS, DecoderConfig
from tmem.layer_norm import LayerNorm
from tmem.layout import Layout, Place
from tmem.past import Past
from tmem.recurrent import RecurrentMemory
from tmem.stack import Stack, States, bytes_of, make_memory
from tmem.transformer import AttentionSpec, Block
from tmem.typing import Tokens

MANY = 2**30  # tokens of a stream; a longer one is counted anew from half as many


class Stream(NamedTuple):
  """All that streams of tokens carry from one call to the next.

  Every array has a row for each stream, so rows can be gathered.

  Attributes:
    seen: [batch] int32, tokens so far; from `MANY` on, fewer by a multiple of `max_length`.
    age: [batch] int32, tokens of the newest document so far, counted likewise.
    pasts: for each block, what its attention has kept.
    memories: states of the memories, as of `Decoder.init_states`.
  """

  seen: jax.Array
  age: jax.Array
  pasts: tuple[Past, ...]
  memories: States


class Decoder(Stack):
  """Causal pre-norm blocks; a model extends it with what comes before and after them.

  One memory serves all blocks that use it; each has a LayerNorm and a fusion gate of its own
  and, in scope "layer", a state of its own. The biases of distances, where there are some, are
  shared likewise.

  Args:
    config: sizes and composition.
    rngs: source of the initial parameters.
  """

  def __init__(self, config: DecoderConfig, *, rngs: nnx.Rngs):
    self.config = config
    types = {"dtype": config.dtype, "param_dtype": config.param_dtype, "rngs": rngs}
    method = METHODS[config.method]
    attention = AttentionSpec(
      method.attention,
      window=config.attention_window,
      rotary=method.positions == "rotary",
      segment=config.max_length,
      cached=config.cache_length,
    )
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
    self.distance_bias = _distance_bias(config)
    self.norm = LayerNorm(config.features, **types)
    self.memory = _memory(config, rngs)

  @property
  def causal(self) -> bool:
    """Whether no output depends on a later token, by construction."""
    return self.config.causal

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
      age=jnp.zeros((batch_size,), jnp.int32),
      pasts=self._empty_pasts(batch_size),
      memories=self.init_states(batch_size, tail="hold"),
    )

  def _empty_pasts(self, batch_size: int) -> tuple[Past, ...]:
    length = self.config.max_length
    return tuple(block.attention.empty_past(batch_size, length) for block in self.blocks)

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

  def decode_onward(
    self, x: Tokens, stream: Stream, layout: Layout, key: jax.Array | None = None
  ) -> tuple[Tokens, Stream]:
    """Runs the blocks over the next tokens of streams.

    Args:
      x: [batch, tokens, features], embedded tokens.
      stream: what the streams have kept.
      layout: how the tokens lie in the streams, from `next_layout`.
      key: dropout is on iff a key is given.

    Returns:
      `(x, stream)`: [batch, tokens, features] behind the last norm, and what to keep.
    """
    x, memories, pasts = self._run(x, layout, stream.memories, stream.pasts, key)
    seen, count = stream.seen + layout.at.count, layout.at.count
    # The newest document has as many tokens as stand in front of the stream's next one.
    age = stream.age + count
    if layout.reset is not None:
      index = jnp.arange(x.shape[1], dtype=jnp.int32)
      last = jnp.max(jnp.where(layout.reset, index, -1), axis=1, initial=-1)
      age = jnp.where(last < 0, age, count - last)
    return x, Stream(self._counted(seen), self._counted(age), pasts, memories)

  def next_layout(self, stream: Stream, count: jax.Array, reset: jax.Array | None = None) -> Layout:
    """How the next tokens of streams lie in them.

    Args:
      stream: what the streams have kept.
      count: [batch] int32, how many of a row's tokens there are.
      reset: [batch, tokens] bool, True on the first token of a document; None: none begins.
    """
    if reset is not None:  # what does not exist begins nothing
      reset &= jnp.arange(reset.shape[1]) < count[:, None]
    return Layout(reset=reset, at=Place(stream.seen, stream.age, count))

  def _counted(self, tokens: jax.Array) -> jax.Array:
    """A count that never overflows: all that matters of many is the place among the positions."""
    cycles = MANY // 2 // self.config.max_length
    return jnp.where(tokens < MANY, tokens, tokens - cycles * self.config.max_length)

  def decode(
    self, x: Tokens, states: States, layout: Layout, key: jax.Array | None = None
  ) -> tuple[Tokens, States]:
    """Runs the blocks.

    Args:
      x: [batch, tokens, features], embedded tokens.
      states: the memories before them, as from `init_states`.
      layout: which tokens there are, and where documents begin.
      key: dropout is on iff a key is given.

    Returns:
      `(x, states)`: [batch, tokens, features] behind the last norm, and the memories after.
    """
    return self._run(x, layout, states, (None,) * len(self.blocks), key)[:2]

  def _run(
    self,
    x: Tokens,
    layout: Layout,
    states: States,
    pasts: Sequence[Past | None],
    key: jax.Array | None,
  ) -> tuple[Tokens, States, tuple[Past | None, ...]]:
    """The blocks and the last norm; `pasts` has an entry for each block."""
    keys = [None] * len(self.blocks) if key is None else jax.random.split(key, len(self.blocks))
    states, pasts = list(states), list(pasts)
    bias = None if self.distance_bias is None else self.distance_bias[...]
    for layer in range(len(self.blocks)):
      own = self.state_of(layer)
      state = None if own is None else states[own]
      x, state, pasts[layer] = self.run_block(
        layer, state, x, layout, pasts[layer], keys[layer], bias
      )
      if own is not None:
        states[own] = state
    return self.norm(x), tuple(states), tuple(pasts)

  def state_bytes(self) -> int:
    """Bytes one stream must keep to go on: what attention needs of the past, and memory states."""
    return bytes_of(lambda: self._empty_pasts(1)) + self.memory_bytes(tail="hold")


def _distance_bias(config: DecoderConfig) -> nnx.Param | None:
  """A bias of each head and distance, for a method that has them."""
  if config.distances is None:
    return None
  return nnx.Param(jnp.zeros((config.num_heads, config.distances), config.param_dtype))


def _memory(config: DecoderConfig, rngs: nnx.Rngs) -> RecurrentMemory | None:
  """The memory of a method, or None."""
  name = METHODS[config.method].memory
  if name is None:
    return None
  return make_memory(MEMORIES[name][1], getattr(config, name), config, rngs)
