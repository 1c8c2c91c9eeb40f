"""Text from a trained model."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from tmem import streaming


def make_next_token(graphdef: nnx.GraphDef, temperature: float, top_k: int) -> Callable[..., Any]:
  """Builds the function that chooses one more token and goes on from it; it compiles once.

  Args:
    graphdef: structure of a language model.
    temperature: 0 takes the likeliest token; otherwise logits are divided by it.
    top_k: only the k likeliest tokens can be chosen; 0 means all.

  Returns:
    `next_token(params, logits, stream, key) -> (token, logits, stream)`: logits [1, vocab_size] of
    the token that is chosen, and then of the one after it.
  """

  def choose(logits: jax.Array, key: jax.Array) -> jax.Array:
    if temperature == 0:
      return jnp.argmax(logits)
    if 0 < top_k < logits.shape[-1]:
      logits = jnp.where(logits < jax.lax.top_k(logits, top_k)[0][-1], -jnp.inf, logits)
    return jax.random.categorical(key, logits / temperature)

  @jax.jit
  def next_token(params: Any, logits: jax.Array, stream: streaming.Stream, key: jax.Array):
    token = choose(logits[0], key).astype(jnp.int32)
    logits, stream = nnx.merge(graphdef, params).onward(token[None, None], stream)
    return token, logits[:, 0], stream

  return next_token


def generate(
  model: nnx.Module,
  prompt: np.ndarray,
  *,
  count: int,
  temperature: float = 1.0,
  top_k: int = 0,
  seed: int = 0,
) -> np.ndarray:
  """Continues a prompt token by token, at a constant cost per token.

  Args:
    model: a causal language model.
    prompt: int32 [tokens], at least one.
    count: tokens to generate.
    temperature: 0 takes the likeliest token; otherwise logits are divided by it.
    top_k: only the k likeliest tokens can be chosen; 0 means all.
    seed: the same seed gives the same text.

  Returns:
    int32 [count], without the prompt.

  Raises:
    ValueError: if the prompt is empty, or the model is not causal.
  """
  if not prompt.size:
    raise ValueError("prompt: empty, expected at least one token")
  stream = streaming.init(model, 1)
  logits, stream = streaming.prefill(model, prompt.astype(np.int32)[None], stream)
  graphdef, params = nnx.split(model)
  next_token = make_next_token(graphdef, temperature, top_k)
  tokens = []
  for index in range(count):
    key = jax.random.fold_in(jax.random.key(seed), index)
    token, logits, stream = next_token(params, logits, stream, key)
    tokens.append(token)
  return np.asarray(tokens, np.int32)
