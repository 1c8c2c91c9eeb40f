"""Causal self-attention: over everything before a token, over a window, or through a kernel."""

import jax
import jax.numpy as jnp
from flax import nnx

from tmem.chunks import in_blocks
from tmem.config import at_least_float32
from tmem.linear_attention import linear_attention
from tmem.rotary import rotate
from tmem.typing import Mask, Tokens


def causal_attention(q: jax.Array, k: jax.Array, v: jax.Array, mask: Mask | None) -> jax.Array:
  """Each query attends to itself and to every real token before it.

  Args:
    q: [batch, tokens, heads, head_size].
    k: like `q`.
    v: like `q`.
    mask: [batch, tokens] bool, False on keys that do not exist, or None.

  Returns:
    [batch, tokens, heads, head_size].
  """
  position = jnp.arange(q.shape[1])
  return _attend(q, k, v, _visible(position, position, None, mask))


def local_attention(
  q: jax.Array, k: jax.Array, v: jax.Array, window: int, mask: Mask | None
) -> jax.Array:
  """Each query attends to itself and to the real ones of the `window - 1` tokens before it.

  Works block by block (a query's window lies in its own block of `window` tokens and the one
  before), so time and memory grow with tokens times window.

  Args:
    q: [batch, tokens, heads, head_size].
    k: like `q`.
    v: like `q`.
    window: number of visible tokens, the query's own included, >= 1.
    mask: [batch, tokens] bool, False on keys that do not exist, or None.

  Returns:
    [batch, tokens, heads, head_size].
  """
  length = q.shape[1]
  if length <= window:
    return causal_attention(q, k, v, mask)

  blocks = -(-length // window)
  position = jnp.arange(blocks * window).reshape(blocks, window)
  keys = _with_previous(position[None], -1)[0]
  mask = None if mask is None else _with_previous(in_blocks(mask, window), False)
  visible = _visible(position, keys, window, mask)
  q, k, v = (in_blocks(a, window) for a in (q, k, v))
  out = _attend(q, _with_previous(k, 0), _with_previous(v, 0), visible)
  return out.reshape(out.shape[0], -1, *out.shape[3:])[:, :length]


def _visible(queries, keys, window: int | None, mask: Mask | None) -> jax.Array:
  """Which key each query sees, [..., 1, queries, keys], broadcastable over heads."""
  distance = queries[..., :, None] - keys[..., None, :]
  visible = (distance >= 0) & (keys >= 0)[..., None, :]
  if window is not None:
    visible &= distance < window
  if mask is not None:  # a query always sees itself, so that no row of weights is empty
    visible = visible & (mask[..., None, :] | (distance == 0))
  return visible[..., None, :, :]


def _attend(q: jax.Array, k: jax.Array, v: jax.Array, visible: jax.Array) -> jax.Array:
  dtype = at_least_float32(q.dtype)
  scores = jnp.einsum("...qhd,...khd->...hqk", q, k, preferred_element_type=dtype)
  scores = jnp.where(visible, scores * q.shape[-1] ** -0.5, -jnp.inf)
  weights = jax.nn.softmax(scores, axis=-1).astype(v.dtype)
  return jnp.einsum("...hqk,...khd->...qhd", weights, v)


def _with_previous(blocks: jax.Array, fill) -> jax.Array:
  """[batch, blocks, size, ...] -> [batch, blocks, 2 * size, ...]: the previous block in front."""
  padding = [(0, 0), (1, 0), *[(0, 0)] * (blocks.ndim - 2)]
  previous = jnp.pad(blocks[:, :-1], padding, constant_values=fill)
  return jnp.concatenate([previous, blocks], axis=2)


ATTENTION = {
  "full": lambda q, k, v, window, mask: causal_attention(q, k, v, mask),
  "window": local_attention,
  "linear": lambda q, k, v, window, mask: linear_attention(q, k, v, mask),
}


class SelfAttention(nnx.Module):
  """Multi-head causal self-attention.

  Args:
    features: size of a token, a multiple of `num_heads`.
    num_heads: heads; they split the features contiguously.
    kind: a name of `ATTENTION`.
    window: visible tokens including the query's own, for the kind "window".
    rotary: whether queries and keys are turned by their positions; heads have an even size then.
    dtype: compute type; the softmax runs in float32 at least.
    param_dtype: type of the parameters.
    rngs: source of the initial parameters.
  """

  def __init__(
    self,
    features: int,
    num_heads: int,
    kind: str = "full",
    window: int | None = None,
    rotary: bool = False,
    *,
    dtype,
    param_dtype,
    rngs: nnx.Rngs,
  ):
    self.num_heads, self.kind, self.window, self.rotary = num_heads, kind, window, rotary
    self.qkv = nnx.Linear(features, 3 * features, dtype=dtype, param_dtype=param_dtype, rngs=rngs)
    self.out = nnx.Linear(features, features, dtype=dtype, param_dtype=param_dtype, rngs=rngs)

  def past_bytes(self, max_length: int) -> int:
    """Bytes that one stream of up to `max_length` tokens must keep to go on."""
    features, dtype = self.out.in_features, jnp.dtype(self.out.dtype)
    if self.kind == "linear":
      return features * (features // self.num_heads + 1) * at_least_float32(dtype).itemsize
    reach = max_length if self.window is None else self.window
    return 2 * features * (reach - 1) * dtype.itemsize

  def __call__(self, x: Tokens, mask: Mask | None = None) -> Tokens:
    """[batch, tokens, features] -> the same shape; `mask` False marks keys that do not exist."""
    qkv = self.qkv(x).reshape(*x.shape[:2], 3, self.num_heads, x.shape[2] // self.num_heads)
    q, k, v = (qkv[:, :, part] for part in range(3))
    if self.rotary:
      position = jnp.arange(x.shape[1])
      q, k = rotate(q, position), rotate(k, position)
    out = ATTENTION[self.kind](q, k, v, self.window, mask)
    return self.out(out.reshape(x.shape))
