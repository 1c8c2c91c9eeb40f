"""The gated delta rule: a linear attention that overwrites what a key held before."""

import jax
import jax.numpy as jnp
from flax import nnx

from tmem.chunks import in_blocks, take_rows
from tmem.config import at_least_float32
from tmem.layout import Layout, documents_by_block
from tmem.past import DeltaPast
from tmem.typing import Tokens

BLOCK = 32  # tokens worked on at once
TAPS = 4  # tokens that a query, key or value is mixed from
EPSILON = 1e-6


def gated_delta_rule(
  q: jax.Array,
  k: jax.Array,
  v: jax.Array,
  log_decay: jax.Array,
  rate: jax.Array,
  document: jax.Array | None = None,
  state: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
  """Reads `y_t = S_tᵀ q_t` from `S_t = α_t (I - β_t k_t k_tᵀ) S_{t-1} + β_t k_t v_tᵀ`.

  Works block by block. Inside a block the states unroll to a triangular system with one unknown
  vector per token, its new value; from block to block goes S. No S is made for a single token.

  Args:
    q: [batch, tokens, heads, head_size].
    k: like `q`, of length 1.
    v: like `q`.
    log_decay: [batch, tokens, heads], ln α <= 0.
    rate: [batch, tokens, heads], β in [0, 1]. A token of rate and `log_decay` 0 changes nothing.
    document: [batch, tokens] int, which document a token belongs to, 0 being that of `state`;
      each begins with an empty S. None: all belong to one.
    state: [batch, heads, head_size, head_size], S before the tokens; None: zeros.

  Returns:
    `(y, state)`: y like `q`, and S after the tokens.

  Reference: Yang et al. (2024), Gated Delta Networks, chunkwise form.
  """
  batch, length, heads, size = q.shape
  block = max(1, min(BLOCK, length))

  def cut(a):  # [batch, tokens, heads, ...] -> [blocks, batch, heads, block, ...]
    return jnp.moveaxis(jnp.swapaxes(in_blocks(a, block), 2, 3), 1, 0)

  def step(state, part):
    q, k, v, log_decay, rate, documents = part
    masks = documents.within(), documents.old(), documents.newest()
    within, old, newest = (mask[:, None] for mask in masks)
    # ln of the decay from the start of the block, or of the document: no sum crosses a border.
    since = jnp.einsum("bxij,bhj->bhi", within.astype(log_decay.dtype), log_decay)
    between = since[..., :, None] - since[..., None, :]
    decay = jnp.exp(jnp.where(within, between, -jnp.inf))
    start = jnp.where(old, jnp.exp(since), 0)[..., None]
    scaled = rate[..., None] * k
    coupling = jnp.tril(jnp.einsum("bhik,bhjk->bhij", scaled, k) * decay, -1)
    known = rate[..., None] * v - start * jnp.einsum("bhik,bhkv->bhiv", scaled, state)
    new = jnp.matmul(unit_lower_inverse(coupling), known, precision="highest")
    y = start * jnp.einsum("bhik,bhkv->bhiv", q, state)
    y += jnp.einsum("bhij,bhjv->bhiv", jnp.einsum("bhik,bhjk->bhij", q, k) * decay, new)
    kept = jnp.exp(jnp.where(newest, since[..., -1:] - since, -jnp.inf))[..., None] * k
    state = start[..., -1:, :] * state + jnp.einsum("bhik,bhiv->bhkv", kept, new)
    return state, y

  if state is None:
    state = jnp.zeros((batch, heads, size, size), q.dtype)
  parts = tuple(cut(a) for a in (q, k, v, log_decay, rate))
  state, y = jax.lax.scan(step, state, (*parts, documents_by_block(document, length, block)))
  y = jnp.swapaxes(jnp.moveaxis(y, 0, 1), 2, 3)  # [batch, blocks, block, heads, size]
  return y.reshape(batch, -1, heads, size)[:, :length], state


@jax.custom_jvp
def unit_lower_inverse(lower: jax.Array) -> jax.Array:
  """The inverse of `I + lower`, by products of matrices alone.

  Inverses of small blocks on the diagonal make those of blocks twice as large, as
  `[[A, 0], [B, D]]⁻¹ = [[A⁻¹, 0], [-D⁻¹ B A⁻¹, D⁻¹]]`. XLA's triangular solver on CPUs waits for
  threads of the pool that it runs in, and with several devices in a process for ever.

  Args:
    lower: [..., n, n], zero on the diagonal and above.

  Returns:
    [..., n, n].
  """
  count = lower.shape[-1]
  whole = 1 << (count - 1).bit_length()
  batch = lower.shape[:-2]
  lower = jnp.pad(lower, [*[(0, 0)] * len(batch), *[(0, whole - count)] * 2])
  inverse, size = jnp.ones((*batch, whole, 1, 1), lower.dtype), 1
  while size < whole:
    pairs = whole // (2 * size)
    tiles = lower.reshape(*batch, pairs, 2 * size, pairs, 2 * size)
    tiles = jnp.moveaxis(jnp.diagonal(tiles, axis1=-4, axis2=-2), -1, -3)
    first, second = jnp.moveaxis(inverse.reshape(*batch, pairs, 2, size, size), -3, 0)
    corner = jnp.matmul(second, tiles[..., size:, :size], precision="highest")
    corner = -jnp.matmul(corner, first, precision="highest")
    above = jnp.concatenate([first, jnp.zeros_like(first)], axis=-1)
    below = jnp.concatenate([corner, second], axis=-1)
    inverse, size = jnp.concatenate([above, below], axis=-2), 2 * size
  return inverse[..., 0, :count, :count]


@unit_lower_inverse.defjvp
def _inverse_and_change(primals, tangents):
  inverse = unit_lower_inverse(*primals)
  change = jnp.matmul(inverse, tangents[0], precision="highest")
  return inverse, -jnp.matmul(change, inverse, precision="highest")


class GatedDelta(nnx.Module):
  """Token mixing by the gated delta rule, in the place of `SelfAttention`.

  Queries, keys and values pass a causal convolution over a few tokens and SiLU; queries and
  keys have length 1. Decay and rate are of each token and head. What is read is normalised by
  head and gated.

  Args:
    features: size of a token, a multiple of `num_heads`.
    num_heads: heads; they split the features contiguously.
    dtype: compute type of the projections; the rule runs in float32 at least.
    param_dtype: type of the parameters.
    rngs: source of the initial parameters.

  Reference: Yang et al. (2024), Gated Delta Networks.
  """

  def __init__(self, features: int, num_heads: int, *, dtype, param_dtype, rngs: nnx.Rngs):
    self.num_heads, self.dtype = num_heads, dtype
    types = {"dtype": dtype, "param_dtype": param_dtype, "rngs": rngs}
    self.qkv = nnx.Linear(features, 3 * features, use_bias=False, **types)
    self.gates = nnx.Linear(features, 2 * num_heads, **types)  # decay, rate
    self.output_gate = nnx.Linear(features, features, **types)
    self.out = nnx.Linear(features, features, **types)
    own_token_only = jnp.zeros((TAPS, 3 * features), param_dtype).at[-1].set(1.0)
    self.depthwise = nnx.Param(own_token_only)
    # Heads forget at rates from fast to slow: ln α = -exp(log_speed) * softplus(decay).
    speeds = jnp.linspace(0.0, -4.0, num_heads, dtype=param_dtype)
    self.log_speed = nnx.Param(speeds)
    self.norm_scale = nnx.Param(jnp.ones((features // num_heads,), param_dtype))

  def empty_past(self, batch_size: int, max_length: int) -> DeltaPast:
    """What streams keep before their first token; its size does not depend on `max_length`."""
    del max_length
    features, size = self.out.in_features, len(self.norm_scale[...])
    dtype = at_least_float32(self.dtype)
    return DeltaPast(
      jnp.zeros((batch_size, self.num_heads, size, size), dtype),
      jnp.zeros((batch_size, TAPS - 1, 3 * features), dtype),
    )

  def __call__(
    self, x: Tokens, layout: Layout, past: DeltaPast | None = None
  ) -> tuple[Tokens, DeltaPast | None]:
    """As `SelfAttention`; tokens that do not exist are passed over."""
    batch, length, features = x.shape
    dtype = at_least_float32(self.dtype)
    projected = self.qkv(x).astype(dtype)
    decay, rate = jnp.split(self.gates(x).astype(dtype), 2, axis=-1)
    log_decay = -jnp.exp(self.log_speed[...].astype(dtype)) * jax.nn.softplus(decay)
    rate = jax.nn.sigmoid(rate)
    exists, document = layout.exists(length), layout.document()
    if exists is not None:
      projected = jnp.where(exists[..., None], projected, 0)
      log_decay, rate = (jnp.where(exists[..., None], a, 0) for a in (log_decay, rate))

    before = self.empty_past(batch, 0) if past is None else past
    projected = jnp.concatenate([before.projected, projected], axis=1)
    taps = self.depthwise[...].astype(dtype)
    mixed = jax.nn.silu(_causal_mix(projected, taps, document))
    heads = mixed.reshape(batch, length, 3, self.num_heads, features // self.num_heads)
    q, k, v = (heads[:, :, part] for part in range(3))
    y, state = gated_delta_rule(_unit(q), _unit(k), v, log_decay, rate, document, before.state)
    if past is not None:
      if document is not None:
        newest = jnp.pad(document, [(0, 0), (TAPS - 1, 0)]) == document[:, -1:]
        projected = jnp.where(newest[..., None], projected, 0)
      past = DeltaPast(state, take_rows(projected, layout.at.count, TAPS - 1))
    y = y * jax.lax.rsqrt(jnp.mean(jnp.square(y), axis=-1, keepdims=True) + EPSILON)
    y = (y * self.norm_scale[...].astype(dtype)).reshape(batch, length, features)
    gate = jax.nn.silu(self.output_gate(x).astype(dtype))
    return self.out((y * gate).astype(self.dtype)), past


def _causal_mix(x: Tokens, taps: jax.Array, document: jax.Array | None) -> Tokens:
  """Each channel of each token as a sum over the last few of its document.

  Args:
    x: [batch, taps - 1 + tokens, features], with those before the tokens in front.
    taps: [taps, features].
    document: [batch, tokens] of the tokens, 0 being that of those in front; None: all of one.
  """
  length = x.shape[1] - len(taps) + 1
  parts = [x[:, shift : shift + length] for shift in range(len(taps))]
  if document is not None:
    all_documents = jnp.pad(document, [(0, 0), (len(taps) - 1, 0)])
    parts = [
      jnp.where((all_documents[:, shift : shift + length] == document)[..., None], part, 0)
      for shift, part in enumerate(parts)
    ]
  return sum(tap * part for tap, part in zip(taps, parts, strict=True))


def _unit(x: jax.Array) -> jax.Array:
  """Vectors scaled to length 1; zero stays zero."""
  return x * jax.lax.rsqrt(jnp.sum(jnp.square(x), axis=-1, keepdims=True) + EPSILON)
