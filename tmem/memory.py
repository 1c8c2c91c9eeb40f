"""The memory module: it owns the parameters and turns tokens into reads and writes."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from tmem import cell, chunks
from tmem.activity import Activity, memory_activity
from tmem.cell import MemoryState, StepInputs
from tmem.config import MemoryConfig
from tmem.dynamics import DYNAMICS
from tmem.grid import nearest_cell
from tmem.layout import checked_reset
from tmem.placement import by_rows, placed
from tmem.recurrent import RecurrentMemory
from tmem.scan import memory_scan
from tmem.scopes import READ, WRITE, scoped
from tmem.typing import Coords, Grid, Mask, Spread, Tokens

_KERNEL = nnx.initializers.lecun_normal()


class Places(NamedTuple):
  """Where chunks read and write.

  Attributes:
    read_at: [batch, chunks, reads, axes] in [-1, 1], last grid axis first; the heads of a read
      stand one after another.
    write_at: [batch, writes, axes], likewise; chunk after chunk, head after head.
    spread: [batch, writes], standard deviation of the write in the same units.
    write: [batch, writes] bool, which of the writes happen; None: all do.
  """

  read_at: Coords
  write_at: Coords
  spread: Spread
  write: jax.Array | None = None


class TensorMemory(RecurrentMemory):
  """A recurrent voxel memory that a stream of tokens writes to and reads from.

  The module holds parameters only; the state is a value that goes in and comes out.

  Args:
    config: sizes and rules.
    features: size of a token, >= 1.
    rngs: source of the initial parameters.

  Raises:
    ValueError: if `features` is not a positive integer.

  Reference: arXiv 2605.27686, memory interface.
  """

  State = MemoryState

  def __init__(self, config: MemoryConfig, features: int, *, rngs: nnx.Rngs):
    super().__init__(config, features)

    # Places need more digits than bfloat16 has: coordinate and spread are never rounded to it.
    places = config.state_dtype
    self.summary = self._linear(config.chunk_size * features, features, rngs, kernel=_summary_start)
    axes, reads, writes = len(config.grid), config.read_heads, config.write_heads
    if config.coordinate_heads == "shared":
      self.coordinate = self._linear(features, max(reads, writes) * axes, rngs, places)
    else:
      self.coordinate = self._linear(features, writes * axes, rngs, places)
      self.read_coordinate = self._linear(features, reads * axes, rngs, places)
    self.spread = self._linear(features, writes, rngs, places, bias=1.0)
    self.content = self._linear(features, writes * config.channels, rngs)
    self.gates = DYNAMICS[config.dynamics].module(config, rngs=rngs)
    self.output = self._linear(reads * config.channels, features, rngs)

  def empty(self, batch_size: int) -> MemoryState:
    """See `RecurrentMemory`: `hidden` and `cell` [batch_size, *grid, channels] of zeros."""
    return cell.init_state(self.config, batch_size)

  def run(self, parts: chunks.Chunks, state: MemoryState) -> tuple[jax.Array, MemoryState]:
    """See `RecurrentMemory`."""
    scan = functools.partial(
      memory_scan,
      window=self._window,
      implementation=self.config.implementation,
      remat=self.config.remat,
    )
    inputs = _by_step(self._step_inputs(parts))
    state, reads = by_rows(scan, of=(None, 0, 1), to=(0, 1))(
      self.gates.params(), _placed(state), inputs
    )
    reads = self._fetched(jnp.moveaxis(reads, 0, 1))
    fresh = parts.fresh()
    if fresh is not None:
      reads = jnp.where(fresh[..., None, None], 0, reads)
    return self._outputs(reads), _placed(state)

  @property
  def _window(self) -> Grid | None:
    """Cells per axis that a write changes; None: all."""
    return self.config.window if self.config.update == "window" else None

  @scoped(READ)
  def _fetched(self, reads: jax.Array) -> jax.Array:
    """What each query got, from the reads of every step: [batch, chunks, queries, heads, C]."""
    config = self.config
    batch, steps, count, channels = reads.shape
    heads, writes = config.read_heads, config.write_heads
    # All heads read before the first of them writes.
    reads = reads.reshape(batch, steps // writes, writes, count // heads, heads, channels)
    return reads[:, :, 0].astype(config.dtype)

  @scoped(READ)
  def _outputs(self, reads: jax.Array) -> Tokens:
    """Projects what the heads read back to tokens: [batch, chunks, queries, features].

    Channels are an axis of the matrix, too: devices that share them project their own.
    """
    output, shape = self.output, reads.shape[-2:]
    kernel = output.kernel[...].astype(output.dtype).reshape(*shape, output.out_features)
    kernel = placed(kernel, None, "channels", None)
    return jnp.tensordot(reads, kernel, axes=2) + output.bias[...].astype(output.dtype)

  def places(
    self,
    x: Tokens,
    state: MemoryState | None = None,
    mask: Mask | None = None,
    *,
    tail: str | None = None,
    count: jax.Array | None = None,
    reset: jax.Array | None = None,
  ) -> Places:
    """Where a call with these arguments reads and writes.

    Args:
      x: as in a call.
      state: as in a call; None: the empty memory.
      mask: as in a call.
      tail: as in a call.
      count: as in a call.
      reset: as in a call.

    Returns:
      The places of every chunk, of those, too, that do not write.
    """
    inputs, _ = self._called_with(x, state, mask, tail, count, reset)
    return Places(inputs.read_at, inputs.write_at, inputs.spread, inputs.write)

  def activity(
    self,
    x: Tokens,
    state: MemoryState,
    mask: Mask | None = None,
    *,
    tail: str | None = None,
    count: jax.Array | None = None,
    reset: jax.Array | None = None,
  ) -> Activity:
    """What a call with these arguments does to the memory, in a few numbers.

    It runs the plain scan: to look at a model now and then, not in training.
    """
    inputs, state = self._called_with(x, state, mask, tail, count, reset)
    return memory_activity(self.gates.params(), state, _by_step(inputs), self._window)

  def _called_with(self, x, state, mask, tail, count, reset) -> tuple[StepInputs, MemoryState]:
    """The steps of a call, [batch, steps, ...], and the state before them."""
    tail = self._tail(tail)
    state = self.init_state(len(x), tail) if state is None else state
    if tail == "hold" and state.pending is None:
      state = self._with_room(state, len(x))
    x, reset = x.astype(self.config.dtype), checked_reset(reset, x.shape[:2])
    parts, state = chunks.split(x, mask, state, self.config.chunk_size, tail, count, reset)
    return self._step_inputs(parts), state

  def _step_inputs(self, parts: chunks.Chunks) -> StepInputs:
    """What each step reads and writes, with axes [batch, steps, ...]: one step per write head."""
    batch, count, size, features = parts.tokens.shape
    heads = self.config.write_heads
    contents, _ = parts.contents()
    with jax.named_scope(WRITE):
      summary = self.summary(contents.reshape(batch, count, size * features))
      write_at, spread = self._place(summary)
      content = self.content(summary).reshape(batch, count * heads, self.config.channels)
    write, clear = parts.written(), parts.cleared()
    return StepInputs(
      read_at=jnp.repeat(self._read_at(parts), heads, axis=1),
      write_at=write_at,
      content=content,
      spread=spread,
      write=None if write is None else jnp.repeat(write, heads, axis=1),
      clear=None if clear is None else _first_of(clear, heads),
    )

  @scoped(READ)
  def _read_at(self, parts: chunks.Chunks) -> Coords:
    """Where each chunk reads: [batch, chunks, queries * heads, axes]."""
    config, axes = self.config, len(self.config.grid)
    head = self.coordinate if config.coordinate_heads == "shared" else self.read_coordinate
    raw = head(self._read_queries(parts))[..., : config.read_heads * axes]
    batch, count, queries, _ = raw.shape
    return jnp.tanh(raw).reshape(batch, count, queries * config.read_heads, axes)

  def _place(self, summary: jax.Array) -> tuple[Coords, Spread]:
    """Where each step writes, and how wide: [batch, steps, axes] and [batch, steps]."""
    config, axes = self.config, len(self.config.grid)
    raw = self.coordinate(summary)[..., : config.write_heads * axes]
    batch, count, _ = raw.shape
    write_at = jnp.tanh(raw).reshape(batch, count * config.write_heads, axes)
    if config.write == "nearest":
      write_at = nearest_cell(write_at, config.grid)
      return write_at, jnp.zeros(write_at.shape[:-1], write_at.dtype)
    return write_at, self._spread(summary)

  def _read_queries(self, parts: chunks.Chunks) -> jax.Array:
    """The tokens that choose where to read: [batch, chunks, reads, features]."""
    if self.config.read_query == "token":
      return parts.tokens
    if parts.real is None:
      return parts.tokens[:, :, :1]
    first = jnp.argmax(parts.real, axis=-1)[..., None, None]
    return jnp.take_along_axis(parts.tokens, first, axis=2)

  def _spread(self, summary: jax.Array) -> Spread:
    config = self.config
    raw = self.spread(summary)
    raw = raw.reshape(len(raw), raw.shape[1] * config.write_heads)
    spread = config.sigma_scale * (jax.nn.softplus(raw) + 1e-4)
    if config.sigma_min is None and config.sigma_max is None:
      return spread
    return jnp.clip(spread, config.sigma_min, config.sigma_max)


def _placed(state: MemoryState) -> MemoryState:
  """The state with its rows and channels where they belong on a mesh."""
  axes = ("batch", *(None,) * (state.hidden.ndim - 2), "channels")
  return state._replace(hidden=placed(state.hidden, *axes), cell=placed(state.cell, *axes))


def _by_step(inputs: StepInputs) -> StepInputs:
  """With the steps in front of the rows of the batch, as scans take them."""
  return jax.tree.map(lambda a: jnp.moveaxis(a, 1, 0), inputs)


def _first_of(chunks: jax.Array, heads: int) -> jax.Array:
  """[batch, chunks] -> [batch, chunks * heads]: what happens once, before all heads of a chunk."""
  first = jnp.pad(chunks[..., None], [(0, 0), (0, 0), (0, heads - 1)])
  return first.reshape(len(chunks), -1)


def _summary_start(key: jax.Array, shape: tuple[int, ...], dtype) -> jax.Array:
  """Start value of the summary: the mean of a chunk's tokens, and of several a random mix besides.

  The mean lets a token that asks for another find the place where that one was written from the
  first step on: reads and writes share their coordinate head. Alone it would hide which token of
  a chunk said what, the more so the more tokens there are.
  """
  size = shape[0] // shape[1]
  mean = jnp.tile(jnp.eye(shape[1], dtype=dtype) / size, (size, 1))
  return mean + (1 - 1 / size) * _KERNEL(key, shape, dtype)
