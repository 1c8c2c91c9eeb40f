"""Text from a trained model, token by token at a constant cost."""

import functools
from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tmem import streaming


class Place(NamedTuple):
  """Where a text stands.

  Attributes:
    stream: what the model carries of it, a stream of one row.
    logits: [1, vocab_size], of the token that comes next.
  """

  stream: streaming.Stream
  logits: jax.Array


class Sampling(NamedTuple):
  """How the next token is chosen.

  Attributes:
    temperature: 0 takes the likeliest token; otherwise logits are divided by it.
    top_k: only the k likeliest tokens can be chosen; 0 means all.
  """

  temperature: float = 1.0
  top_k: int = 0


def read(
  model: streaming.Model,
  prompt: np.ndarray,
  stream: streaming.Stream | None = None,
) -> Place:
  """Reads a prompt.

  Args:
    model: a causal language model, or as `tmem.streaming.frozen` makes it.
    prompt: int32 [tokens], at least one.
    stream: what it goes on from; None: it begins a text.

  Returns:
    Where the text stands then.

  Raises:
    ValueError: if the prompt is empty, or the model is not causal.
  """
  if not prompt.size:
    raise ValueError("prompt: empty, expected at least one token")
  stream = streaming.init(model, 1) if stream is None else stream
  logits, stream = streaming.prefill(model, prompt.astype(np.int32)[None], stream)
  return Place(stream, logits)


def generate(
  model: streaming.Model,
  place: Place,
  count: int,
  sampling: Sampling,
  seed: int = 0,
) -> Iterator[tuple[int, Place]]:
  """Continues a text.

  Args:
    model: likewise.
    place: where the text stands.
    count: tokens to generate.
    sampling: how they are chosen.
    seed: with it, each place of a text has its own random numbers: a text that is continued
      later is the same as one that is not interrupted.

  Yields:
    `(token, place)`: each token, and where the text stands behind it.
  """
  model = streaming.frozen(model)
  for _ in range(count):
    token, place = _next(model, sampling, place, np.uint32(seed))
    yield int(token), place


@functools.partial(jax.jit, static_argnums=1)
def _next(model: streaming.Frozen, sampling: Sampling, place: Place, seed: jax.Array):
  """One more token, and where the text stands behind it."""
  key = jax.random.fold_in(jax.random.key(seed), place.stream.seen[0])
  token = _choose(place.logits[0], sampling, key).astype(jnp.int32)
  logits, stream = model.model().onward(token[None, None], place.stream)
  return token, Place(stream, logits[:, 0])


def _choose(logits: jax.Array, sampling: Sampling, key: jax.Array) -> jax.Array:
  if sampling.temperature == 0:
    return jnp.argmax(logits)
  if 0 < sampling.top_k < logits.shape[-1]:
    least = jax.lax.top_k(logits, sampling.top_k)[0][-1]
    logits = jnp.where(logits < least, -jnp.inf, logits)
  return jax.random.categorical(key, logits / sampling.temperature)
