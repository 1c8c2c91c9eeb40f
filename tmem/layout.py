"""How the tokens of a call lie in their streams: which there are, and where documents begin."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from tmem.typing import Mask


class Place(NamedTuple):
  """Where the tokens of a call stand in their streams.

  Attributes:
    seen: [batch] int32, tokens of each stream before the call.
    age: [batch] int32, those of them that belong to its newest document.
    count: [batch] int32, how many of the call's tokens there are; the stream goes on in front of
      those behind them.
  """

  seen: jax.Array
  age: jax.Array
  count: jax.Array


class Layout(NamedTuple):
  """How the tokens of a call lie in their streams.

  Attributes:
    mask: [batch, tokens] bool, False on tokens that do not exist; None: all do.
    reset: [batch, tokens] bool, True on the first token of a document; None: none begins.
    at: where the tokens stand; None: the streams begin with them.
  """

  mask: Mask | None = None
  reset: jax.Array | None = None
  at: Place | None = None

  def exists(self, length: int) -> Mask | None:
    """[batch, length] bool, which tokens there are; None: all."""
    if self.at is None:
      return self.mask
    there = jnp.arange(length) < self.at.count[:, None]
    return there if self.mask is None else self.mask & there

  def document(self) -> jax.Array | None:
    """[batch, tokens] int32: 0 in the document before the call, 1 in the next; None: 0 in all."""
    if self.reset is None:
      return None
    return jnp.cumsum(self.reset, axis=1, dtype=jnp.int32)

  def position(self, length: int) -> jax.Array:
    """[batch or 1, length] int32: how many tokens of its own document are before each."""
    index = jnp.arange(length, dtype=jnp.int32)[None]
    begin = jnp.zeros((1, 1), jnp.int32) if self.at is None else -self.at.age[:, None]
    if self.reset is not None:
      begin = jax.lax.cummax(jnp.where(self.reset, index, begin), axis=1)
    return index - begin


class Documents(NamedTuple):
  """The documents of the tokens of a block; with leading axes [blocks, batch or 1] of many blocks.

  Attributes:
    own: [..., block] int32, the document of each token.
    before: [..., 1] int32, that which was the newest before the block.
  """

  own: jax.Array
  before: jax.Array

  def within(self) -> jax.Array:
    """[..., block, block] bool, tokens up to each of its own document."""
    block = self.own.shape[-1]
    together = self.own[..., :, None] == self.own[..., None, :]
    return together & jnp.tril(jnp.ones((block, block), bool))

  def old(self) -> jax.Array:
    """[..., block] bool, tokens of the document that was the newest before the block."""
    return self.own == self.before

  def newest(self) -> jax.Array:
    """[..., block] bool, tokens of the document that goes on behind the block."""
    return self.own == self.own[..., -1:]


def documents_by_block(document: jax.Array | None, length: int, block: int) -> Documents:
  """Cuts documents [batch, length], as of `Layout.document`, into blocks: [blocks, batch or 1]."""
  document = jnp.zeros((1, length), jnp.int32) if document is None else document
  # What fills the last block belongs to the last document.
  document = jnp.pad(
    document, [(0, 0), (0, -length % block)], mode="edge" if length else "constant"
  )
  own = jnp.moveaxis(document.reshape(len(document), -1, block), 1, 0)
  return Documents(own, jnp.concatenate([jnp.zeros_like(own[:1, :, :1]), own[:-1, :, -1:]]))


def checked_reset(reset: jax.Array | None, shape: tuple[int, ...]) -> jax.Array | None:
  """Returns `reset` as an array; raises ValueError unless it is None or bool of `shape`."""
  if reset is None:
    return None
  reset = jnp.asarray(reset)
  if reset.shape != shape or reset.dtype != jnp.bool_:
    raise ValueError(f"reset: got {reset.dtype}{list(reset.shape)}, expected bool{list(shape)}")
  return reset
