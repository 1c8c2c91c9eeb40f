"""The models: decoders with their inputs and outputs."""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx

from tmem.config import at_least_float32, check_int
from tmem.decoder import Decoder, States, Stream
from tmem.decoder_config import DecoderConfig
from tmem.layout import Layout, checked_reset
from tmem.placement import placed
from tmem.recurrent import check_mask
from tmem.typing import Logits, Mask, TokenIds, Tokens


@dataclasses.dataclass(frozen=True, kw_only=True)
class LanguageConfig(DecoderConfig):
  """Sizes and composition of a causal language model.

  Attributes: those of `DecoderConfig`, and
    vocab_size: number of token types.

  Raises:
    ValueError: naming the field, what came and what is right.
  """

  vocab_size: int

  def __post_init__(self):
    check_int("vocab_size", self.vocab_size)
    super().__post_init__()


class LanguageModel(Decoder):
  """Pre-norm Transformer language model with a tied head and positions as its method has them.

  Args:
    config: sizes and composition.
    rngs: source of the initial parameters.

  Reference: arXiv 2605.27686, language modelling; strictly causal unless the configuration
  asks for the published state scope.
  """

  def __init__(self, config: LanguageConfig, *, rngs: nnx.Rngs):
    types = {"dtype": config.dtype, "param_dtype": config.param_dtype, "rngs": rngs}
    normal = nnx.initializers.normal(0.02)
    self.embedding = nnx.Embed(config.vocab_size, config.features, embedding_init=normal, **types)
    self.positions = _positions(config, rngs) if config.learned_positions else None
    super().__init__(config, rngs=rngs)

  def __call__(
    self,
    tokens: TokenIds,
    key: jax.Array | None = None,
    mask: Mask | None = None,
    reset: jax.Array | None = None,
  ) -> Logits:
    """Logits of the next token after each token, from an empty memory.

    Args:
      tokens: [batch, tokens] integers in [0, vocab_size), at most `max_length` in a row if
        positions are learned. No value can be checked under `jax.jit`: a token with an id outside
        has NaN logits, and for all others it is a token without features.
      key: dropout is on iff a key is given.
      mask: [batch, tokens] bool, False on tokens that do not exist; None: all are real.
      reset: [batch, tokens] bool, True on the first token of a document; None: a row is one
        document. Nothing crosses from one to the next, and positions begin anew.

    Returns:
      [batch, tokens, vocab_size] in float32 (float64 if the model computes in it).

    Raises:
      ValueError: naming the argument, what came and what is right.
    """
    tokens = jnp.asarray(tokens)
    mask = None if mask is None else jnp.asarray(mask)
    self._check(tokens, mask)
    layout = Layout(mask, checked_reset(reset, tokens.shape))
    x, known = self._embed(tokens)
    x = _placed(x, self.positions, layout)
    x, _ = self.decode(x, self.init_states(tokens.shape[0]), layout, key)
    return self._logits(x, known)

  def onward(
    self,
    tokens: TokenIds,
    stream: Stream,
    count: jax.Array | None = None,
    reset: jax.Array | None = None,
    key: jax.Array | None = None,
  ) -> tuple[Logits, Stream]:
    """Logits after the next tokens of streams; `tmem.streaming` offers it compiled.

    Learned positions begin anew after `max_length` tokens, as with segments of a long text;
    attention over everything then sees the last `max_length` tokens.

    Args:
      tokens: [batch, tokens] integers in [0, vocab_size).
      stream: what the streams have kept, as from `init_stream`.
      count: [batch] int32, how many of a row's tokens there are; None: all. Logits behind them mean
        nothing.
      reset: as in a call.
      key: dropout is on iff a key is given.

    Returns:
      `(logits, stream)`: as a call's, and what to keep.

    Raises:
      ValueError: naming the argument, what came and what is right.
    """
    tokens = jnp.asarray(tokens)
    self._check_ids(tokens)
    self.check_stream(stream)
    batch, length = tokens.shape
    if batch != len(stream.seen):
      raise ValueError(f"tokens: got {batch} rows for {len(stream.seen)} streams")
    count = checked_count("count", count, batch, length)
    layout = self.next_layout(stream, count, checked_reset(reset, tokens.shape))
    x, known = self._embed(tokens)
    x = _placed(x, self.positions, layout)
    x, stream = self.decode_onward(x, stream, layout, key)
    return self._logits(x, known), stream

  def _embed(self, tokens: TokenIds) -> tuple[Tokens, jax.Array]:
    """The tokens' features, zeros for an unknown id, and which of the ids are known."""
    known = (tokens >= 0) & (tokens < self.config.vocab_size)
    x = jnp.take(self._table(), jnp.where(known, tokens, 0), axis=0)
    return jnp.where(known[..., None], x, 0), known

  def _logits(self, x: jax.Array, known: jax.Array) -> Logits:
    x = jnp.where(known[..., None], x, jnp.nan)
    dtype = at_least_float32(self.config.dtype)
    return jnp.matmul(x, self._table().T, preferred_element_type=dtype)

  def _table(self) -> jax.Array:
    """The features of every token type, [vocab_size, features], in the compute type."""
    return placed(self.embedding.embedding[...].astype(self.config.dtype), "vocabulary", None)

  def _check_ids(self, tokens: TokenIds) -> None:
    if tokens.ndim != 2 or not jnp.issubdtype(tokens.dtype, jnp.integer):
      raise ValueError(
        f"tokens: got {tokens.dtype}{list(tokens.shape)}, expected integers [batch, tokens]"
      )

  def _check(self, tokens: TokenIds, mask: Mask | None) -> None:
    self._check_ids(tokens)
    if self.positions is not None:
      _check_length("tokens", tokens.shape[1], self.config)
    check_mask(mask, tokens.shape)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SequenceConfig(DecoderConfig):
  """Sizes and composition of a sequence classifier.

  Attributes: those of `DecoderConfig`, and
    input_features: size of an input token.
    classes: number of classes.
    positions: whether tokens have learned positions. Without them `max_length` bounds nothing,
      and a stream of any length can be fed in segments.

  Raises:
    ValueError: naming the field, what came and what is right.
  """

  input_features: int
  classes: int
  positions: bool = True

  def __post_init__(self):
    check_int("input_features", self.input_features)
    check_int("classes", self.classes)
    super().__post_init__()

  @property
  def learned_positions(self) -> bool:
    """Whether tokens have learned positions, which bound the length of an input."""
    return self.positions and super().learned_positions


class SequenceModel(Decoder):
  """A causal Transformer from a stream of real-valued tokens to a class at each.

  Args:
    config: sizes and composition.
    rngs: source of the initial parameters.
  """

  def __init__(self, config: SequenceConfig, *, rngs: nnx.Rngs):
    types = {"dtype": config.dtype, "param_dtype": config.param_dtype, "rngs": rngs}
    self.inputs = nnx.Linear(config.input_features, config.features, **types)
    self.positions = _positions(config, rngs) if config.learned_positions else None
    super().__init__(config, rngs=rngs)
    self.head = nnx.Linear(config.features, config.classes, **types)

  def __call__(
    self, inputs: Tokens, key: jax.Array | None = None, mask: Mask | None = None
  ) -> Logits:
    """Logits of the class at each token, from an empty memory.

    Args:
      inputs: [batch, tokens, input_features], floating.
      key: dropout is on iff a key is given.
      mask: [batch, tokens] bool, False on tokens that do not exist; None: all are real.

    Returns:
      [batch, tokens, classes] in float32 (float64 if the model computes in it).

    Raises:
      ValueError: naming the argument, what came and what is right.
    """
    inputs = jnp.asarray(inputs)
    return self.advance(inputs, self.init_states(len(inputs)), key, mask)[0]

  def advance(
    self,
    inputs: Tokens,
    states: States,
    key: jax.Array | None = None,
    mask: Mask | None = None,
  ) -> tuple[Logits, States]:
    """As a call, with the memories before the tokens given and those after them returned.

    The memories are all that crosses from one segment of a stream to the next: attention sees
    its own segment only, and positions begin anew.
    """
    inputs = jnp.asarray(inputs)
    mask = None if mask is None else jnp.asarray(mask)
    self._check(inputs, mask)
    layout = Layout(mask)
    x = _placed(self.inputs(inputs), self.positions, layout)
    x, states = self.decode(x, states, layout, key)
    logits = self.head(x)
    return logits.astype(at_least_float32(logits.dtype)), states

  def _check(self, inputs: Tokens, mask: Mask | None) -> None:
    expected = self.config.input_features
    if inputs.ndim != 3 or inputs.shape[-1] != expected:
      raise ValueError(f"inputs: got shape {inputs.shape}, expected [batch, tokens, {expected}]")
    if not jnp.issubdtype(inputs.dtype, jnp.floating):
      raise ValueError(f"inputs: got dtype {inputs.dtype}, expected a floating type")
    if self.positions is not None:
      _check_length("inputs", inputs.shape[1], self.config)
    check_mask(mask, inputs.shape[:2])


def _positions(config: DecoderConfig, rngs: nnx.Rngs) -> nnx.Param:
  shape = (config.max_length, config.features)
  return nnx.Param(nnx.initializers.normal(0.02)(rngs.params(), shape, config.param_dtype))


def _placed(x: Tokens, positions: nnx.Param | None, layout: Layout) -> Tokens:
  """Tokens with their learned positions added, if there are any; the first follow the last."""
  if positions is None:
    return x
  table = positions[...].astype(x.dtype)
  if layout.at is None and layout.reset is None:
    return x + table[: x.shape[1]]
  return x + table[layout.position(x.shape[1]) % len(table)]


def checked_count(name: str, count: jax.Array | None, batch: int, length: int) -> jax.Array:
  """How many of `length` tokens each row has, [batch] int32; None: all."""
  if count is None:
    return jnp.full((batch,), length, jnp.int32)
  count = jnp.asarray(count)
  if count.shape != (batch,) or not jnp.issubdtype(count.dtype, jnp.integer):
    raise ValueError(f"{name}: got {count.dtype}{list(count.shape)}, expected integers [{batch}]")
  return count.astype(jnp.int32)


def _check_length(name: str, length: int, config: DecoderConfig) -> None:
  if length > config.max_length:
    raise ValueError(
      f"{name}: got {length} in a row, but the model has {config.max_length} positions (max_length)"
    )
