"""Attention with segment recurrence: a segment sees itself and the end of what came before it."""

import jax
import jax.numpy as jnp
from flax import nnx

from tmem.attention import attend, visible_keys
from tmem.chunks import take_rows
from tmem.layout import Layout
from tmem.typing import Tokens


class SegmentAttention(nnx.Module):
  """Attention in the place of `SelfAttention` whose sight begins in front of its segment.

  Segments of a stream have `segment` tokens. A query sees the tokens of its segment up to itself,
  and the last `cached` tokens before the segment; a bias for each head and distance, which all
  blocks share, stands for positions.

  What a stream keeps are inputs, not keys and values: these are made anew from them, so that the
  projections learn from what was kept, too.

  Args:
    features: size of a token, a multiple of `num_heads`.
    num_heads: heads; they split the features contiguously.
    segment: tokens of a segment, >= 1.
    cached: tokens in front of a segment that it sees, >= 0.
    dtype: compute type; the softmax runs in float32 at least.
    param_dtype: type of the parameters.
    rngs: source of the initial parameters.

  Reference: Dai et al. (2019), Transformer-XL; the bias as in the code of arXiv 2605.27686.
  """

  def __init__(
    self,
    features: int,
    num_heads: int,
    segment: int,
    cached: int,
    *,
    dtype,
    param_dtype,
    rngs: nnx.Rngs,
  ):
    self.num_heads, self.segment, self.cached = num_heads, segment, cached
    types = {"use_bias": False, "dtype": dtype, "param_dtype": param_dtype, "rngs": rngs}
    self.qkv = nnx.Linear(features, 3 * features, **types)
    self.out = nnx.Linear(features, features, **types)

  def empty_past(self, batch_size: int, max_length: int) -> jax.Array:
    """What streams keep before their first token: [batch, cached + segment - 1, features]."""
    del max_length
    shape = (batch_size, self.cached + self.segment - 1, self.out.in_features)
    return jnp.zeros(shape, self.out.dtype)

  def __call__(
    self,
    x: Tokens,
    layout: Layout,
    past: jax.Array | None = None,
    distance_bias: jax.Array | None = None,
  ) -> tuple[Tokens, jax.Array | None]:
    """As `SelfAttention`, with a bias [heads, cached + segment] for each head and distance."""
    length = x.shape[1]
    before = jnp.zeros((len(x), 0, x.shape[2]), x.dtype) if past is None else past
    inputs = jnp.concatenate([before, x.astype(before.dtype)], axis=1)
    heads = self.num_heads, x.shape[2] // self.num_heads
    qkv = self.qkv(inputs).reshape(*inputs.shape[:2], 3, *heads)
    own = before.shape[1]
    place = jnp.arange(inputs.shape[1])
    bias = distance_bias[:, jnp.clip(place[own:, None] - place, 0, distance_bias.shape[1] - 1)]
    visible = self._visible(layout, place, length)
    out = attend(qkv[:, own:, 0], qkv[:, :, 1], qkv[:, :, 2], visible, bias)
    kept = None if past is None else take_rows(inputs, layout.at.count, own)
    return self.out(out.reshape(x.shape)), kept

  def _visible(self, layout: Layout, place: jax.Array, length: int) -> jax.Array:
    """Which of the tokens at `place` each of the last `length` of them sees."""
    before, document = len(place) - length, layout.document()
    exists, fill = None, jnp.zeros((1,), jnp.int32)
    if layout.at is not None:
      exists = place >= before - layout.at.age[:, None]
      fill = layout.at.seen % self.segment
    elif layout.mask is not None:
      exists = layout.mask
    documents = (None, None)
    if document is not None:
      documents = document, jnp.pad(document, [(0, 0), (before, 0)])
    visible = visible_keys(place[before:], place, None, exists, documents)
    in_segment = (fill[:, None] + jnp.arange(length)) % self.segment
    first = place[before:] - in_segment - self.cached  # that each query sees: [rows, length]
    return visible & (place >= first[..., None])[:, None]
