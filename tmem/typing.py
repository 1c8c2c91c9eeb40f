"""Shape aliases and the axis conventions that every module shares.

A memory grid is written `(D, H, W)` and stored channels last: `[batch, D, H, W, channels]`.
Coordinates are written `(x, y, z)` in [-1, 1]: x runs along W, y along H, z along D, so the
last grid axis comes first. ±1 are the centres of the outermost cells. Everything is written
for any number of axes; `*grid` below stands for them.
"""

import jax

Volume = jax.Array  # [batch, *grid, channels]
Coords = jax.Array  # [..., axes] in [-1, 1], last grid axis first
Spread = jax.Array  # [...] standard deviation of a write, in coordinate units
Features = jax.Array  # [batch, channels]
Tokens = jax.Array  # [batch, tokens, features]
TokenIds = jax.Array  # [batch, tokens] int32
Logits = jax.Array  # [batch, tokens, vocabulary]
Mask = jax.Array  # [batch, tokens] bool, True on real tokens
Grid = tuple[int, ...]
