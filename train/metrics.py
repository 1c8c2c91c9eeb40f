"""Means weighted by tokens, and the units losses are reported in."""

import math
from collections.abc import Iterable, Mapping

from data.repeats import REPEATS


def weighted_means(batches: Iterable[Mapping[str, float]]) -> dict[str, float]:
  """Means over all batches, each batch counting by its weight.

  Args:
    batches: per batch, sums over its items and the number of items as "weight".

  Returns:
    The mean of every sum, and "weight", the items in all; NaN means if nothing was counted.
  """
  totals: dict[str, float] = {}
  for batch in batches:
    for name, value in batch.items():
      totals[name] = totals.get(name, 0.0) + float(value)
  weight = totals.pop("weight", 0.0)
  means = {name: total / weight if weight else math.nan for name, total in totals.items()}
  return {**means, "weight": weight}


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


def language_metrics(means: Mapping[str, float], bytes_per_token: float) -> dict[str, float]:
  """What a language run reports about a split.

  Args:
    means: of the sums of `train.losses.language_sums`, from `weighted_means`.
    bytes_per_token: bytes of text that a token stands for on average.

  Returns:
    "loss" in nats per token, "perplexity", "bits_per_byte" and "tokens"; where repeats were told
    apart, "loss_near", "loss_far" and "loss_first", and the shares of all tokens that are such,
    "share_near", "share_far" and "share_first".
  """
  nats = means["loss"]
  metrics = {
    "loss": nats,
    "perplexity": perplexity(nats),
    "bits_per_byte": bits_per_byte(nats, bytes_per_token),
    "tokens": means["weight"],
  }
  for kind in REPEATS:
    if means.get(kind):
      metrics[f"loss_{kind}"] = means[f"{kind}_loss"] / means[kind]
      metrics[f"share_{kind}"] = means[kind]
  return metrics
