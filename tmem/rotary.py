"""Rotary positions: queries and keys turned by an angle that grows along the stream."""

import jax
import jax.numpy as jnp

from tmem.config import at_least_float32

BASE = 10_000.0


def rotate(x: jax.Array, position: jax.Array) -> jax.Array:
  """Turns pairs of features, the slower the later in the head they stand.

  A pair is a feature of the first half of a head and its counterpart in the second half; pair p
  of n turns by `position * 10000^(-p / n)`. The product of a query and a key turned so depends on
  the distance between them, not on where they are.

  Args:
    x: [batch, tokens, heads, head_size], queries or keys; head_size even.
    position: [tokens] integers.

  Returns:
    Like `x`; turned in float32 at least.

  Reference: Su et al. (2021), RoFormer.
  """
  dtype = at_least_float32(x.dtype)
  low, high = jnp.split(x.astype(dtype), 2, axis=-1)
  pairs = low.shape[-1]
  speed = BASE ** -(jnp.arange(pairs, dtype=dtype) / pairs)
  angle = position.astype(dtype)[:, None, None] * speed
  cos, sin = jnp.cos(angle), jnp.sin(angle)
  return jnp.concatenate([low * cos - high * sin, low * sin + high * cos], axis=-1).astype(x.dtype)
