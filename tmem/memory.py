"""The memory module: it owns the parameters and turns tokens into reads and writes."""

import jax
import jax.numpy as jnp
from flax import nnx

from tmem import cell, chunks
from tmem.cell import GateParams, MemoryState, StepInputs
from tmem.config import TAILS, MemoryConfig, check_choice, check_int
from tmem.scan import memory_scan
from tmem.typing import Coords, Mask, Spread, Tokens


class GateConv(nnx.Module):
  """Parameters of the factorised gate convolution; identity depthwise, Xavier pointwise."""

  def __init__(self, config: MemoryConfig, *, rngs: nnx.Rngs):
    axes, channels, dtype = len(config.grid), config.channels, config.param_dtype
    identity = jnp.zeros((axes, 3, 2 * channels), dtype).at[:, 1].set(1.0)
    forget = jnp.zeros(4 * channels, dtype).at[channels : 2 * channels].set(config.forget_bias)
    xavier = nnx.initializers.xavier_uniform()
    self.depthwise = nnx.Param(identity)
    self.depthwise_bias = nnx.Param(jnp.zeros((axes, 2 * channels), dtype))
    self.pointwise = nnx.Param(xavier(rngs.params(), (2 * channels, 4 * channels), dtype))
    self.pointwise_bias = nnx.Param(forget)

  def params(self) -> GateParams:
    """The arrays, as the functional core takes them."""
    return GateParams(*(getattr(self, name)[...] for name in GateParams._fields))


class TensorMemory(nnx.Module):
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

  def __init__(self, config: MemoryConfig, features: int, *, rngs: nnx.Rngs):
    check_int("features", features)
    self.config = config
    self.features = features

    def linear(inputs, outputs, dtype=config.dtype, bias=0.0):
      return nnx.Linear(
        inputs,
        outputs,
        dtype=dtype,
        param_dtype=config.param_dtype,
        bias_init=nnx.initializers.constant(bias),
        rngs=rngs,
      )

    self.summary = linear(config.chunk_size * features, features)
    # Places need more digits than bfloat16 has: coordinate and spread are never rounded to it.
    self.coordinate = linear(features, len(config.grid), config.state_dtype)
    self.spread = linear(features, 1, config.state_dtype, bias=1.0)
    self.content = linear(features, config.channels)
    self.gates = GateConv(config, rngs=rngs)
    self.output = linear(config.channels, features)

  def init_state(self, batch_size: int, tail: str | None = None) -> MemoryState:
    """The empty memory of `batch_size` streams.

    Args:
      batch_size: rows, >= 1.
      tail: "hold" adds room for the tokens of an unfinished chunk; None means `config.tail`.

    Returns:
      A state of zeros, `hidden` and `cell` [batch_size, *grid, channels] in `state_dtype`.

    Raises:
      ValueError: on a batch size below 1 or an unknown tail.
    """
    state = cell.init_state(self.config, batch_size)
    return self._empty_pending(state) if self._tail(tail) == "hold" else state

  def __call__(
    self, x: Tokens, state: MemoryState, mask: Mask | None = None, *, tail: str | None = None
  ) -> tuple[Tokens, MemoryState]:
    """Reads the memory for every token and writes the tokens into it, chunk by chunk.

    A token reads what chunks before its own have written, so no token influences an earlier
    one.

    Args:
      x: [batch, tokens, features], floating.
      state: the state before `x`. Tokens that wait in it come first.
      mask: [batch, tokens] bool, False on tokens that do not exist: they change nothing,
        whatever they contain, and their `y` is zero. None: all are real.
      tail: "commit" writes the unfinished last chunk, "hold" keeps its tokens in the state;
        None means `config.tail`.

    Returns:
      `(y, state)`: y [batch, tokens, features] in `config.dtype`, and the state after `x`.

    Raises:
      ValueError: naming the argument, what came and what is right.
    """
    tail = self._tail(tail)
    x = jnp.asarray(x)
    self._check(x, state, mask)
    if tail == "hold" and state.pending is None:
      state = self._empty_pending(state)
    x = x.astype(self.config.dtype)
    parts, state = chunks.split(x, mask, state, self.config.chunk_size, tail)
    y, state = self._run(parts, state)
    y = chunks.join(y, parts.offset, x.shape[1])
    return (y if mask is None else jnp.where(mask[..., None], y, 0)), state

  def _run(self, parts: chunks.Chunks, state: MemoryState) -> tuple[jax.Array, MemoryState]:
    """Memory outputs [batch, chunks, chunk_size, features] of chunked tokens."""
    batch, count, size, _ = parts.tokens.shape
    state, reads = memory_scan(
      self.gates.params(),
      state,
      jax.tree.map(lambda a: jnp.moveaxis(a, 1, 0), self._step_inputs(parts)),
      implementation=self.config.implementation,
      remat=self.config.remat,
    )
    y = self.output(jnp.moveaxis(reads, 0, 1).astype(self.config.dtype))
    if parts.real is not None:
      y = jnp.where(jnp.any(parts.real, -1)[..., None, None], y, 0)
    return jnp.broadcast_to(y, (batch, count, size, self.features)), state

  def _step_inputs(self, parts: chunks.Chunks) -> StepInputs:
    """What each chunk reads and writes, with axes [batch, chunks, ...]."""
    batch, count, size, features = parts.tokens.shape
    summary = self.summary(parts.tokens.reshape(batch, count, size * features))
    write = parts.complete
    if parts.real is not None:
      any_real = jnp.any(parts.real, axis=-1)
      write = any_real if write is None else write & any_real
    return StepInputs(
      read_at=self._coords(self._read_queries(parts)),
      write_at=self._coords(summary),
      content=self.content(summary),
      spread=self._spread(summary),
      write=write,
    )

  def _read_queries(self, parts: chunks.Chunks) -> jax.Array:
    """The tokens that choose where to read: [batch, chunks, reads, features]."""
    if self.config.read_query == "token":
      return parts.tokens
    if parts.real is None:
      return parts.tokens[:, :, :1]
    first = jnp.argmax(parts.real, axis=-1)[..., None, None]
    return jnp.take_along_axis(parts.tokens, first, axis=2)

  def _coords(self, query: jax.Array) -> Coords:
    return jnp.tanh(self.coordinate(query))

  def _spread(self, summary: jax.Array) -> Spread:
    config = self.config
    spread = config.sigma_scale * (jax.nn.softplus(self.spread(summary)[..., 0]) + 1e-4)
    if config.sigma_min is None and config.sigma_max is None:
      return spread
    return jnp.clip(spread, config.sigma_min, config.sigma_max)

  def _empty_pending(self, state: MemoryState) -> MemoryState:
    return chunks.empty_pending(state, self.config.chunk_size, self.features, self.config.dtype)

  def _tail(self, tail: str | None) -> str:
    tail = self.config.tail if tail is None else tail
    check_choice("tail", tail, TAILS)
    return tail

  def _check(self, x: Tokens, state: MemoryState, mask: Mask | None) -> None:
    if x.ndim != 3 or x.shape[-1] != self.features:
      raise ValueError(f"x: got shape {x.shape}, expected [batch, tokens, {self.features}]")
    if not jnp.issubdtype(x.dtype, jnp.floating):
      raise ValueError(f"x: got dtype {x.dtype}, expected a floating type")
    check_state(state, self.config, x.shape[0], self.features)
    if mask is not None and (mask.shape != x.shape[:2] or mask.dtype != jnp.bool_):
      raise ValueError(
        f"mask: got {mask.dtype}{list(mask.shape)}, expected bool{list(x.shape[:2])}"
      )


def check_state(state: MemoryState, config: MemoryConfig, batch: int, features: int) -> None:
  """Raises ValueError unless `state` is one of `config` for `batch` rows, naming the field."""
  if not isinstance(state, MemoryState):
    raise ValueError(f"state: got {type(state).__name__}, expected a MemoryState (init_state)")
  volume = ((batch, *config.grid, config.channels), config.state_dtype)
  expected = {"hidden": volume, "cell": volume}
  held = config.chunk_size - 1
  if any(value is not None for value in state[len(expected) :]):
    expected |= {
      "pending": ((batch, held, features), config.dtype),
      "pending_mask": ((batch, held), jnp.bool_),
      "fill": ((batch,), jnp.int32),
    }
  for name, (shape, dtype) in expected.items():
    value = getattr(state, name)
    if value is None or value.shape != shape or value.dtype != dtype:
      came = None if value is None else f"{value.dtype}{list(value.shape)}"
      raise ValueError(
        f"state.{name}: got {came}, expected {jnp.dtype(dtype).name}{list(shape)} for a batch of"
        f" {batch} and grid {config.grid}"
      )
