"""Causal attention through a kernel, whose past is a state of fixed size."""

import jax
import jax.numpy as jnp

from tmem.chunks import in_blocks
from tmem.config import at_least_float32
from tmem.layout import documents_by_block
from tmem.typing import Mask

BLOCK = 64  # tokens worked on at once
FLOOR = 1e-6  # added to the normaliser


def linear_attention(
  q: jax.Array,
  k: jax.Array,
  v: jax.Array,
  mask: Mask | None = None,
  document: jax.Array | None = None,
  past: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
  """Attention with the kernel φ(q)·φ(k), φ = elu + 1, in place of the softmax.

  `y_t = φ(q_t) Σ_s φ(k_s) v_sᵀ / (φ(q_t) Σ_s φ(k_s) + 1e-6)` over s <= t. Works block by block:
  inside a block by products of queries and keys, from block to block by the two sums, so no tensor
  of tokens × head_size² is made, and time and memory grow with the tokens.

  Args:
    q: [batch, tokens, heads, head_size].
    k: like `q`.
    v: like `q`.
    mask: [batch, tokens] bool, False on keys that do not exist, or None.
    document: [batch, tokens] int, which document a token belongs to, 0 being that of `past`; it
      sees no other. None: all belong to one.
    past: [batch, heads, head_size, head_size + 1], the two sums over all keys before; None: none.

  Returns:
    `(y, past)`: y like `q`, summed in float32 at least, and the sums after the tokens,
    of the last document.

  Reference: Katharopoulos et al. (2020), linear attention.
  """
  batch, length, heads, size = q.shape
  dtype = at_least_float32(q.dtype)
  queries, keys = (jax.nn.elu(a.astype(dtype)) + 1.0 for a in (q, k))
  if mask is not None:
    keys = jnp.where(mask[..., None, None], keys, 0)
  values = jnp.concatenate([v.astype(dtype), jnp.ones((*v.shape[:-1], 1), dtype)], axis=-1)
  block = max(1, min(BLOCK, length))
  parts = tuple(jnp.moveaxis(in_blocks(a, block), 1, 0) for a in (queries, keys, values))
  documents = documents_by_block(document, length, block)

  def step(past, part):
    queries, keys, values, documents = part
    old = documents.old()
    weights = jnp.einsum("bqhd,bkhd->bhqk", queries, keys)
    weights = jnp.where(documents.within()[:, None], weights, 0)
    sums = jnp.einsum("bhqk,bkhe->bqhe", weights, values)
    before = jnp.einsum("bqhd,bhde->bqhe", queries, past)
    sums += jnp.where(old[..., None, None], before, 0)
    past = jnp.where(old[:, -1, None, None, None], past, 0)
    keys = jnp.where(documents.newest()[..., None, None], keys, 0)
    return past + jnp.einsum("bkhd,bkhe->bhde", keys, values), sums

  if past is None:
    past = jnp.zeros((batch, heads, size, size + 1), dtype)
  past, sums = jax.lax.scan(step, past, (*parts, documents))
  sums = jnp.moveaxis(sums, 0, 1).reshape(batch, -1, heads, size + 1)[:, :length]
  return (sums[..., :-1] / (sums[..., -1:] + FLOOR)).astype(v.dtype), past
