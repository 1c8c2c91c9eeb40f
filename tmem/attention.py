"""Causal self-attention: over everything before a token, over a window, or through a kernel."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from tmem.chunks import in_blocks, take_rows
from tmem.config import at_least_float32
from tmem.layout import Layout
from tmem.linear_attention import linear_attention
from tmem.past import KeysValues, Past
from tmem.placement import placed
from tmem.rotary import rotate
from tmem.typing import Mask, Tokens


def causal_attention(
  q: jax.Array,
  k: jax.Array,
  v: jax.Array,
  mask: Mask | None = None,
  document: jax.Array | None = None,
) -> jax.Array:
  """Each query attends to itself and to every real token of its document before it.

  Args:
    q: [batch, tokens, heads, head_size].
    k: like `q`.
    v: like `q`.
    mask: [batch, tokens] bool, False on keys that do not exist, or None.
    document: [batch, tokens] int, which document a token belongs to; None: all to one.

  Returns:
    [batch, tokens, heads, head_size].
  """
  position = jnp.arange(q.shape[1])
  return attend(q, k, v, visible_keys(position, position, None, mask, (document, document)))


def local_attention(
  q: jax.Array,
  k: jax.Array,
  v: jax.Array,
  window: int,
  mask: Mask | None = None,
  document: jax.Array | None = None,
) -> jax.Array:
  """Each query attends to itself and to the real ones of the `window - 1` tokens before it.

  Works block by block (a query's window lies in its own block of `window` tokens and the one
  before), so time and memory grow with tokens times window.

  Args:
    q: [batch, tokens, heads, head_size].
    k: like `q`.
    v: like `q`.
    window: number of visible tokens, the query's own included, >= 1.
    mask: as in `causal_attention`.
    document: as in `causal_attention`.

  Returns:
    [batch, tokens, heads, head_size].
  """
  if q.shape[1] <= window:
    return causal_attention(q, k, v, mask, document)
  k, v, mask = (_in_front(a, window) for a in (k, v, mask))
  return _in_windows(q, k, v, window, -window, mask, (document, _in_front(document, window)))


def visible_keys(
  queries: jax.Array,
  keys: jax.Array,
  window: int | None = None,
  exists: Mask | None = None,
  documents: tuple[jax.Array | None, jax.Array | None] = (None, None),
) -> jax.Array:
  """Which key each query sees.

  Args:
    queries: [..., queries] positions.
    keys: [..., keys] positions; there is nothing below 0.
    window: visible tokens, the query's own included; None: all before it.
    exists: [..., keys] bool; None: all do. A query always sees itself.
    documents: those of the queries and of the keys, in their shapes; (None, None): one document.

  Returns:
    [..., 1, queries, keys] bool, broadcastable over heads.
  """
  distance = queries[..., :, None] - keys[..., None, :]
  visible = (distance >= 0) & (keys >= 0)[..., None, :]
  if window is not None:
    visible &= distance < window
  if documents[0] is not None:
    visible = visible & (documents[0][..., :, None] == documents[1][..., None, :])
  if exists is not None:  # no row of weights may be empty
    visible = visible & (exists[..., None, :] | (distance == 0))
  return visible[..., None, :, :]


def attend(
  q: jax.Array, k: jax.Array, v: jax.Array, visible: jax.Array, bias: jax.Array | None = None
) -> jax.Array:
  """Softmax attention; the softmax runs in float32 at least.

  Args:
    q: [..., queries, heads, head_size].
    k: [..., keys, heads, head_size].
    v: like `k`.
    visible: bool, broadcastable to [..., heads, queries, keys].
    bias: added to the scores, broadcastable likewise.

  Returns:
    Like `q`.
  """
  dtype = at_least_float32(q.dtype)
  scores = jnp.einsum("...qhd,...khd->...hqk", q, k, preferred_element_type=dtype)
  scores = scores * q.shape[-1] ** -0.5
  scores = scores if bias is None else scores + bias.astype(dtype)
  weights = jax.nn.softmax(jnp.where(visible, scores, -jnp.inf), axis=-1).astype(v.dtype)
  return jnp.einsum("...hqk,...khd->...qhd", weights, v)


def _in_front(a: jax.Array | None, count: int) -> jax.Array | None:
  """[batch, tokens, ...] -> [batch, count + tokens, ...], zeros in front."""
  return None if a is None else jnp.pad(a, [(0, 0), (count, 0), *[(0, 0)] * (a.ndim - 2)])


def _in_windows(q, k, v, window: int, first: int, exists, documents) -> jax.Array:
  """`local_attention` with `window` keys in front of those of the queries.

  Args:
    q: [batch, tokens, heads, head_size].
    k: [batch, window + tokens, heads, head_size].
    v: like `k`.
    window: visible tokens.
    first: position of the first key.
    exists: [batch, window + tokens] bool, or None.
    documents: of queries and of keys, as in `visible_keys`.
  """

  def with_previous(a):  # [batch, blocks, 2 * window, ...]: each block behind the one before
    a = in_blocks(a, window)
    return jnp.concatenate([a[:, :-1], a[:, 1:]], axis=2)

  count = -(-q.shape[1] // window) + 1
  position = first + jnp.arange(count * window).reshape(1, -1)
  own, theirs = documents
  visible = visible_keys(
    in_blocks(position, window)[0, 1:],
    with_previous(position)[0],
    window,
    None if exists is None else with_previous(exists),
    (None, None) if own is None else (in_blocks(own, window), with_previous(theirs)),
  )
  out = attend(in_blocks(q, window), with_previous(k), with_previous(v), visible)
  return out.reshape(out.shape[0], -1, *out.shape[3:])[:, : q.shape[1]]


def attend_onward(
  q: jax.Array, k: jax.Array, v: jax.Array, past: KeysValues, layout: Layout, rotary: bool
) -> tuple[jax.Array, KeysValues]:
  """Windowed attention that goes on from what a stream has kept.

  Args:
    q: [batch, tokens, heads, head_size], not turned.
    k: like `q`.
    v: like `q`.
    past: as many keys and values as a window has besides the query's own.
    layout: how the tokens lie in their streams.
    rotary: whether to turn queries and keys, by their places among those that are here: only
      distances matter, and they stay small however long the stream is.

  Returns:
    `(y, past)`: y like `q`, and the keys and values to keep.
  """
  at, document = layout.at, layout.document()
  keys, values = (jnp.concatenate(pair, axis=1) for pair in zip(past, (k, v), strict=True))
  before = past.keys.shape[1]
  place = jnp.arange(keys.shape[1])
  kept = KeysValues(take_rows(keys, at.count, before), take_rows(values, at.count, before))
  if rotary:
    q, keys = rotate(q, place[before:]), rotate(keys, place)
  exists = place >= before - at.age[:, None]
  documents = document, _in_front(document, before)
  window = before + 1
  if q.shape[1] <= window:
    visible = visible_keys(place[before:], place, window, exists, documents)
    return attend(q, keys, values, visible), kept
  keys, values, exists = (_in_front(a, 1) for a in (keys, values, exists))
  documents = document, _in_front(document, window)
  return _in_windows(q, keys, values, window, 0, exists, documents), kept


def _empty_window(batch: int, heads: int, size: int, reach: int, dtype) -> KeysValues:
  shape = (batch, reach - 1, heads, size)
  return KeysValues(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype))


def _empty_sums(batch: int, heads: int, size: int, reach: int, dtype) -> jax.Array:
  del reach
  return jnp.zeros((batch, heads, size, size + 1), at_least_float32(dtype))


def _linear_onward(q, k, v, past, layout, rotary):
  del rotary
  return linear_attention(q, k, v, layout.exists(q.shape[1]), layout.document(), past)


class Kind(NamedTuple):
  """A kind of attention.

  Attributes:
    whole: `(q, k, v, window, mask, document) -> y`, over a stream from its start.
    empty: `(batch, heads, head_size, reach, dtype) -> past`, what a new stream keeps.
    onward: `(q, k, v, past, layout, rotary) -> (y, past)`, over what comes next.
  """

  whole: Callable
  empty: Callable
  onward: Callable


ATTENTION = {
  "full": Kind(
    lambda q, k, v, window, *which: causal_attention(q, k, v, *which),
    _empty_window,
    attend_onward,
  ),
  "window": Kind(local_attention, _empty_window, attend_onward),
  "linear": Kind(
    lambda q, k, v, window, *which: linear_attention(q, k, v, *which)[0],
    _empty_sums,
    _linear_onward,
  ),
}


class Heads(nnx.Module):
  """The projections of multi-head attention: into queries, keys and values, and back.

  Args:
    features: size of a token, a multiple of `num_heads`.
    num_heads: heads; they split the features contiguously.
    dtype: compute type.
    param_dtype: type of the parameters.
    rngs: source of the initial parameters.
  """

  def __init__(self, features: int, num_heads: int, *, dtype, param_dtype, rngs: nnx.Rngs):
    self.num_heads = num_heads
    self.qkv = nnx.Linear(features, 3 * features, dtype=dtype, param_dtype=param_dtype, rngs=rngs)
    self.out = nnx.Linear(features, features, dtype=dtype, param_dtype=param_dtype, rngs=rngs)

  def split(self, x: Tokens) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Queries, keys and values of x: [batch, tokens, heads, head_size] each."""
    shape = 3, self.num_heads, x.shape[2] // self.num_heads
    # Heads are an axis of the matrix, too: devices that share them then make none but their own.
    kernel = self.qkv.kernel[...].astype(self.qkv.dtype).reshape(-1, *shape)
    kernel = placed(kernel, None, None, "heads", None)
    qkv = jnp.einsum("btf,fphd->btphd", x.astype(self.qkv.dtype), kernel)
    qkv += self.qkv.bias[...].astype(self.qkv.dtype).reshape(shape)
    qkv = placed(qkv, "batch", None, None, "heads", None)
    return qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2]

  def join(self, heads: jax.Array) -> Tokens:
    """[batch, tokens, heads, head_size] -> [batch, tokens, features]."""
    return self.out(heads.reshape(*heads.shape[:2], self.out.in_features))


class SelfAttention(Heads):
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
    super().__init__(features, num_heads, dtype=dtype, param_dtype=param_dtype, rngs=rngs)
    self.kind, self.window, self.rotary = kind, window, rotary

  def empty_past(self, batch_size: int, max_length: int) -> Past:
    """What streams of up to `max_length` tokens keep before their first one."""
    size = self.out.in_features // self.num_heads
    reach = max_length if self.window is None else self.window
    return ATTENTION[self.kind].empty(batch_size, self.num_heads, size, reach, self.out.dtype)

  def __call__(
    self, x: Tokens, layout: Layout, past: Past | None = None
  ) -> tuple[Tokens, Past | None]:
    """Mixes each token from those of its document before it.

    Args:
      x: [batch, tokens, features].
      layout: how the tokens lie in their streams.
      past: what the streams have kept; None: they begin here, and nothing is kept.

    Returns:
      `(y, past)`: y like `x`, and what to keep.
    """
    q, k, v = self.split(x)
    kind = ATTENTION[self.kind]
    if past is not None:
      out, past = kind.onward(q, k, v, past, layout, self.rotary)
    else:
      if self.rotary:
        position = jnp.arange(x.shape[1])
        q, k = rotate(q, position), rotate(k, position)
      out = kind.whole(q, k, v, self.window, layout.mask, layout.document())
    return self.join(out), past
