"""Means weighted by tokens, and the units losses are reported in."""

import math
from collections.abc import Iterable, Mapping


def weighted_means(batches: Iterable[Mapping[str, float]]) -> dict[str, float]:
  """Means over all batches, each batch counting by its weight.

  Args:
    batches: per batch, sums over its items and the number of items as "weight".

  Returns:
    The mean of every sum; NaN if nothing was counted.
  """
  totals: dict[str, float] = {}
  for batch in batches:
    for name, value in batch.items():
      totals[name] = totals.get(name, 0.0) + float(value)
  weight = totals.pop("weight", 0.0)
  return {name: total / weight if weight else math.nan for name, total in totals.items()}


def perplexity(nats: float) -> float:
  """Exponential of a loss in nats per token; infinity where it overflows."""
  try:
    return math.exp(nats)
  except OverflowError:
    return math.inf


def bits_per_byte(nats: float, bytes_per_token: float) -> float:
  """Converts nats per token to bits per byte of the original text.

  Args:
    nats: loss in nats per token.
    bytes_per_token: bytes of text that a token stands for on average.

  Returns:
    Bits per byte: comparable between tokenizers.
  """
  return nats / math.log(2) / bytes_per_token


def language_metrics(nats: float, bytes_per_token: float) -> dict[str, float]:
  """The three numbers a language run reports about a split."""
  return {
    "loss": nats,
    "perplexity": perplexity(nats),
    "bits_per_byte": bits_per_byte(nats, bytes_per_token),
  }
