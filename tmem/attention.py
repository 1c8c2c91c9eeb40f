"""Causal self-attention: over everything before a token, over a window, or through a kernel."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from tmem.chunks import in_blocks, take_rows
from tmem.config import at_least_float32
from tmem.linear_attention import linear_attention
from tmem.past import KeysValues, Past, Place
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


def attend_onward(
  q: jax.Array, k: jax.Array, v: jax.Array, past: KeysValues, at: Place, rotary: bool
) -> tuple[jax.Array, KeysValues]:
  """Windowed attention that goes on from what a stream has kept.

  Args:
    q: [batch, tokens, heads, head_size], not turned.
    k: like `q`.
    v: like `q`.
    past: as many keys and values as a window has besides the query's own.
    at: where the tokens stand.
    rotary: whether to turn queries and keys, by their places among those that are here: only
      distances matter, and they stay small however long the stream is.

  Returns:
    `(y, past)`: y like `q`, and the keys and values to keep.
  """
  keys, values = (jnp.concatenate(pair, axis=1) for pair in zip(past, (k, v), strict=True))
  before = past.keys.shape[1]
  place = jnp.arange(keys.shape[1])
  kept = KeysValues(take_rows(keys, at.count, before), take_rows(values, at.count, before))
  if rotary:
    q, keys = rotate(q, place[before:]), rotate(keys, place)
  exists = place >= before - at.seen[:, None]
  return _attend(q, keys, values, _visible(place[before:], place, before + 1, exists)), kept


def _empty_window(batch: int, heads: int, size: int, reach: int, dtype) -> KeysValues:
  shape = (batch, reach - 1, heads, size)
  return KeysValues(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype))


def _empty_sums(batch: int, heads: int, size: int, reach: int, dtype) -> jax.Array:
  del reach
  return jnp.zeros((batch, heads, size, size + 1), at_least_float32(dtype))


def _linear_onward(q, k, v, past, at, rotary):
  del rotary
  return linear_attention(q, k, v, jnp.arange(q.shape[1]) < at.count[:, None], past)


class Kind(NamedTuple):
  """A kind of attention.

  Attributes:
    whole: `(q, k, v, window, mask) -> y`, over a stream from its start.
    empty: `(batch, heads, head_size, reach, dtype) -> past`, what a new stream keeps.
    onward: `(q, k, v, past, at, rotary) -> (y, past)`, over what comes next.
  """

  whole: Callable
  empty: Callable
  onward: Callable


ATTENTION = {
  "full": Kind(
    lambda q, k, v, window, mask: causal_attention(q, k, v, mask), _empty_window, attend_onward
  ),
  "window": Kind(local_attention, _empty_window, attend_onward),
  "linear": Kind(
    lambda q, k, v, window, mask: linear_attention(q, k, v, mask)[0], _empty_sums, _linear_onward
  ),
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

  def empty_past(self, batch_size: int, max_length: int) -> Past:
    """What streams of up to `max_length` tokens keep before their first one."""
    size = self.out.in_features // self.num_heads
    reach = max_length if self.window is None else self.window
    return ATTENTION[self.kind].empty(batch_size, self.num_heads, size, reach, self.out.dtype)

  def __call__(
    self,
    x: Tokens,
    mask: Mask | None = None,
    past: Past | None = None,
    at: Place | None = None,
  ) -> tuple[Tokens, Past | None]:
    """Mixes each token from those before it.

    Args:
      x: [batch, tokens, features].
      mask: [batch, tokens] bool, False on keys that do not exist; without `past` alone.
      past: what the streams have kept; None: they begin here, and nothing is kept.
      at: where the tokens stand in the streams; with `past` alone.

    Returns:
      `(y, past)`: y like `x`, and what to keep.
    """
    qkv = self.qkv(x).reshape(*x.shape[:2], 3, self.num_heads, x.shape[2] // self.num_heads)
    q, k, v = (qkv[:, :, part] for part in range(3))
    kind = ATTENTION[self.kind]
    if past is not None:
      out, past = kind.onward(q, k, v, past, at, self.rotary)
    else:
      if self.rotary:
        position = jnp.arange(x.shape[1])
        q, k = rotate(q, position), rotate(k, position)
      out = kind.whole(q, k, v, self.window, mask)
    return self.out(out.reshape(x.shape)), past
