"""Text from a trained model."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx


def last_logits(model: nnx.Module, buffer: jax.Array, count: jax.Array | int) -> jax.Array:
  """Logits of the token after the first tokens of a buffer.

  Args:
    model: a language model.
    buffer: int32 [1, max_length].
    count: tokens of text in it. What lies behind them is hidden from the model: one that is not
      causal would write it into the memory that the text reads.

  Returns:
    [vocab_size].
  """
  is_text = jnp.arange(buffer.shape[1])[None] < count
  return model(buffer, mask=is_text)[0, count - 1]


def make_next_token(graphdef: nnx.GraphDef, temperature: float, top_k: int) -> Callable[..., Any]:
  """Builds the function that chooses one more token; it compiles once.

  Args:
    graphdef: structure of a language model.
    temperature: 0 takes the likeliest token; otherwise logits are divided by it.
    top_k: only the k likeliest tokens can be chosen; 0 means all.

  Returns:
    `next_token(params, buffer, count, key)`: the token after the first `count` tokens of
    `buffer`, int32 [1, max_length].
  """

  @jax.jit
  def next_token(params: Any, buffer: jax.Array, count: jax.Array, key: jax.Array) -> jax.Array:
    logits = last_logits(nnx.merge(graphdef, params), buffer, count)
    if temperature == 0:
      return jnp.argmax(logits)
    if 0 < top_k < logits.shape[-1]:
      logits = jnp.where(logits < jax.lax.top_k(logits, top_k)[0][-1], -jnp.inf, logits)
    return jax.random.categorical(key, logits / temperature)

  return next_token


def generate(
  graphdef: nnx.GraphDef,
  params: Any,
  prompt: np.ndarray,
  *,
  count: int,
  max_length: int,
  temperature: float = 1.0,
  top_k: int = 0,
  seed: int = 0,
) -> np.ndarray:
  """Continues a prompt token by token.

  The model sees the last `max_length` tokens: once the buffer is full, the oldest token leaves
  it for each new one, and positions and chunks are counted from the oldest that is left.

  Args:
    graphdef: structure of a language model.
    params: its parameters.
    prompt: int32 [tokens], at least one.
    count: tokens to generate.
    max_length: the model's context in tokens.
    temperature: 0 takes the likeliest token; otherwise logits are divided by it.
    top_k: only the k likeliest tokens can be chosen; 0 means all.
    seed: the same seed gives the same text.

  Returns:
    int32 [count], without the prompt.

  Raises:
    ValueError: if the prompt is empty.
  """
  if not prompt.size:
    raise ValueError("prompt: empty, expected at least one token")
  next_token = make_next_token(graphdef, temperature, top_k)
  tokens = prompt.astype(np.int32).tolist()
  for index in range(count):
    context = tokens[-max_length:]
    buffer = np.zeros((1, max_length), np.int32)
    buffer[0, : len(context)] = context
    key = jax.random.fold_in(jax.random.key(seed), index)
    tokens.append(int(next_token(params, buffer, np.int32(len(context)), key)))
  return np.asarray(tokens[prompt.size :], np.int32)
