"""What attention keeps of a stream, so that it can go on from there."""

from typing import NamedTuple

import jax


class KeysValues(NamedTuple):
  """The newest keys and values, right aligned; what came before the stream is never seen.

  Attributes:
    keys: [batch, reach - 1, heads, head_size], not turned by any position.
    values: like `keys`.
  """

  keys: jax.Array
  values: jax.Array


class DeltaPast(NamedTuple):
  """The past of `tmem.gated_delta.GatedDelta`.

  Attributes:
    state: [batch, heads, head_size, head_size].
    projected: [batch, taps - 1, 3 * features], the newest inputs of the convolution.
  """

  state: jax.Array
  projected: jax.Array


Past = KeysValues | DeltaPast | jax.Array
