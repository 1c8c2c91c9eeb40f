"""Counting in a circle: nothing to remember, so that a memory can only do harm."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from data.synthetic_task import Batch, SyntheticTask, check_int, one_hot


@dataclasses.dataclass(frozen=True)
class NoHarm(SyntheticTask):
  """The next symbol is the present one plus 1, modulo `symbols`, from a uniform start.

  A token is its symbol one-hot. The target of each token is the next symbol, and all count.

  Attributes:
    symbols: symbols of the circle, >= 2.
    tokens: tokens of a sample, >= 1.

  Raises:
    ValueError: naming the field, what came and what is right.
  """

  name: ClassVar[str] = "no_harm"

  symbols: int = 16
  tokens: int = 32

  def __post_init__(self):
    check_int("symbols", self.symbols, minimum=2)
    check_int("tokens", self.tokens)

  @property
  def input_features(self) -> int:
    """The symbols."""
    return self.symbols

  @property
  def classes(self) -> int:
    """The symbols."""
    return self.symbols

  @property
  def length(self) -> int:
    """All tokens."""
    return self.tokens

  def ceiling(self) -> float:
    """1: the present token decides."""
    return 1.0

  def row(self, key: jax.Array) -> Batch:
    """One sample, see the class."""
    start = jax.random.randint(key, (), 0, self.symbols, jnp.int32)
    symbols = (start + jnp.arange(self.tokens + 1, dtype=jnp.int32)) % self.symbols
    return {
      "inputs": one_hot(symbols[:-1], self.symbols),
      "targets": symbols[1:],
      "mask": jnp.ones(self.tokens, bool),
    }
