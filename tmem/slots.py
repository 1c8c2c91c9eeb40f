"""A memory of learned slots, read and updated by cross-attention: the control for the grid."""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from tmem import chunks
from tmem.cell import select_rows
from tmem.config import (
  check_finite,
  check_int,
  check_stream_fields,
  known_fields,
  to_json_dict,
)
from tmem.layer_norm import LayerNorm
from tmem.recurrent import RecurrentMemory
from tmem.typing import Tokens


@dataclasses.dataclass(frozen=True)
class SlotConfig:
  """Sizes and rules of a slot memory.

  Attributes:
    count: number of slots, >= 1; each has the features of a token.
    chunk_size: tokens per memory step, >= 1.
    forget_bias: start value of the keep gate's bias.
    tail: "commit" or "hold", as in `MemoryConfig`.
    dtype: compute type of the projections.
    param_dtype: type of the parameters.
    state_dtype: type of the slots; at least float32 and at least `dtype`.

  Raises:
    ValueError: naming the field, what came and what is right.
  """

  count: int = 16
  chunk_size: int = 1
  forget_bias: float = 3.0
  tail: str = "commit"
  dtype: Any = jnp.float32
  param_dtype: Any = jnp.float32
  state_dtype: Any = jnp.float32

  def __post_init__(self):
    check_int("count", self.count)
    check_finite("forget_bias", self.forget_bias)
    check_stream_fields(self)

  def to_dict(self) -> dict[str, Any]:
    """The fields as JSON values; `from_dict` is the inverse."""
    return to_json_dict(self)

  @classmethod
  def from_dict(cls, fields: Mapping[str, Any]) -> "SlotConfig":
    """Rebuilds a configuration from `to_dict`; raises ValueError on unknown names."""
    return cls(**known_fields(cls, fields))


class SlotState(NamedTuple):
  """What a stream carries; the last three fields are those of `MemoryState`.

  Attributes:
    slots: [batch, count, features].
    pending: as in `MemoryState`, like the two below.
    pending_mask: see above.
    fill: see above.
  """

  slots: jax.Array
  pending: Tokens | None = None
  pending_mask: jax.Array | None = None
  fill: jax.Array | None = None


class SlotMemory(RecurrentMemory):
  """Slots that the tokens of a chunk read by cross-attention, and that then attend to the chunk.

  Each slot takes in its mixture of the chunk's tokens through a keep gate. A chunk reads before
  it writes, so no token influences an earlier one. Tokens compete for slots: attention weights
  of the update are normalised over slots, as in Slot Attention (Locatello et al., 2020).

  Tokens are compared with the slots themselves, behind a LayerNorm: projections of the slots to
  keys, values and queries would be products with those of the tokens and of the output, and say
  nothing more.

  Args:
    config: sizes and rules.
    features: size of a token, >= 1.
    rngs: source of the initial parameters.

  Raises:
    ValueError: if `features` is not a positive integer.
  """

  State = SlotState

  def __init__(self, config: SlotConfig, features: int, *, rngs: nnx.Rngs):
    super().__init__(config, features)

    normal = nnx.initializers.normal(1.0)
    self.initial = nnx.Param(normal(rngs.params(), (config.count, features), config.param_dtype))
    self.slot_norm = LayerNorm(
      features, dtype=config.dtype, param_dtype=config.param_dtype, rngs=rngs
    )
    # Queries of the read and of the write, value and gate.
    self.token = self._linear(features, 4 * features, rngs)
    self.keep = self._linear(features, features, rngs, bias=config.forget_bias)
    self.output = self._linear(features, features, rngs)

  def empty(self, batch_size: int) -> SlotState:
    """See `RecurrentMemory`: every stream starts from the learned slots."""
    start = self.initial[...].astype(self.config.state_dtype)
    return SlotState(jnp.broadcast_to(start, (batch_size, *start.shape)))

  def run(self, parts: chunks.Chunks, state: SlotState) -> tuple[jax.Array, SlotState]:
    """See `RecurrentMemory`."""
    _, own = parts.contents()
    by_chunk = jax.tree.map(
      lambda a: jnp.moveaxis(a, 1, 0),
      (self.token(parts.tokens), own, parts.written(), parts.fresh(), parts.cleared()),
    )
    # A step is cheaper to do again than to keep for the backward pass.
    step = jax.checkpoint(self._step, prevent_cse=False)
    slots, reads = jax.lax.scan(step, state.slots, by_chunk)
    return self.output(jnp.moveaxis(reads, 0, 1)), state._replace(slots=slots)

  def _step(self, slots: jax.Array, chunk):
    """One chunk: its tokens read the slots, then the slots take it in."""
    tokens, own, write, fresh, clear = chunk
    read_query, write_query, value, token_gate = jnp.split(tokens, 4, axis=-1)
    normed = self.slot_norm(slots.astype(self.config.dtype))
    scale = self.features**-0.5
    y = self._read(read_query, normed)
    if clear is not None:
      start = self.empty(len(slots)).slots
      slots = select_rows(clear, start, slots)
      normed = self.slot_norm(slots.astype(self.config.dtype))
      empty = self.slot_norm(start.astype(self.config.dtype))
      y = jnp.where(fresh[..., None], self._read(read_query, empty), y)

    share = jax.nn.softmax(jnp.einsum("bsf,btf->bst", normed, write_query) * scale, axis=1)
    if own is not None:
      share = jnp.where(own[:, None], share, 0)
    taken = jnp.einsum("bst,btf->bsf", share, value)
    gate = jnp.einsum("bst,btf->bsf", share, token_gate)
    keep = jax.nn.sigmoid(self.keep(normed) + gate).astype(slots.dtype)
    new = keep * slots + (1 - keep) * jnp.tanh(taken).astype(slots.dtype)
    return select_rows(write, new, slots), y

  def _read(self, query: jax.Array, normed: jax.Array) -> jax.Array:
    """What tokens [batch, tokens, features] get from slots [batch, count, features]."""
    scores = jnp.einsum("btf,bsf->bts", query, normed) * self.features**-0.5
    return jnp.einsum("bts,bsf->btf", jax.nn.softmax(scores, axis=-1), normed)
