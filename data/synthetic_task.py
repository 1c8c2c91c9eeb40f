"""What every synthetic task offers, and the checks that their fields share."""

from __future__ import annotations

import abc
import functools
import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

Batch = dict[str, jax.Array]


class SyntheticTask(abc.ABC):
  """A task whose samples are drawn from a key.

  A task is a frozen dataclass: equal fields mean equal samples, and an instance can be a static
  argument of `jax.jit`.

  Attributes:
    name: what `data.synthetic.TASKS` calls the class.
  """

  name: ClassVar[str]

  @property
  @abc.abstractmethod
  def input_features(self) -> int:
    """Features of a token."""

  @property
  @abc.abstractmethod
  def classes(self) -> int:
    """Number of answers to choose from; targets are in [0, classes)."""

  @property
  @abc.abstractmethod
  def length(self) -> int:
    """Tokens of a sample."""

  @abc.abstractmethod
  def ceiling(self) -> float:
    """The accuracy in [0, 1] that no method exceeds: the Bayes-optimal one, exactly."""

  @abc.abstractmethod
  def row(self, key: jax.Array) -> Batch:
    """One sample: the arrays of `sample` without their first axis."""

  def sample(self, key: jax.Array, batch_size: int) -> Batch:
    """Draws independent samples, compiled. Row r depends on the key and r, not on `batch_size`.

    Args:
      key: a PRNG key; under `jax.jit` it may be traced.
      batch_size: number of samples, >= 1.

    Returns:
      "inputs": float32 [batch, length, input_features].
      "targets": int32 [batch, length]; the answer at a token follows from the tokens up to and
        including it. 0 where none is asked for.
      "mask": bool [batch, length], True where a target counts.
      A task may add arrays that start with [batch, length]; it says so itself.

    Raises:
      ValueError: if `batch_size` is no integer of at least 1.
    """
    check_int("batch_size", batch_size)
    return self.sample_rows(key, 0, batch_size)

  def sample_rows(self, key: jax.Array, first: int | jax.Array, count: int) -> Batch:
    """Rows `first` to `first + count - 1` of `sample` with a batch that is large enough.

    Args:
      key: as for `sample`.
      first: index of the first row in [0, 2**32); it may be traced.
      count: number of rows.

    Returns:
      As `sample`, for these rows.
    """
    return _sample_rows(self, key, jnp.asarray(first, jnp.uint32), count)


# Always compiled as a whole: run operation by operation, a sum may round differently.
@functools.partial(jax.jit, static_argnums=(0, 3))
def _sample_rows(task: SyntheticTask, key: jax.Array, first: jax.Array, count: int) -> Batch:
  rows = first + jnp.arange(count, dtype=jnp.uint32)
  return jax.vmap(lambda row: task.row(jax.random.fold_in(key, row)))(rows)


def one_hot(index: jax.Array, size: int) -> jax.Array:
  """One-hot vectors.

  Args:
    index: integers [...] in [0, size), or booleans for a size of 2.
    size: length of a vector.

  Returns:
    float32 [..., size].
  """
  return (index[..., None] == jnp.arange(size)).astype(jnp.float32)


def check_int(name: str, value: Any, minimum: int = 1, maximum: int | None = None) -> None:
  """Raises ValueError unless `value` is an integer from `minimum` to `maximum`."""
  is_int = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
  if not is_int or value < minimum or (maximum is not None and value > maximum):
    right = f"of at least {minimum}" if maximum is None else f"from {minimum} to {maximum}"
    raise ValueError(f"{name}: got {value!r}, expected an integer {right}")


def check_not_negative(name: str, value: Any) -> None:
  """Raises ValueError unless `value` is a finite number of at least 0."""
  is_number = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
  if not is_number or not math.isfinite(value) or value < 0:
    raise ValueError(f"{name}: got {value!r}, expected a finite number of at least 0")


def check_bool(name: str, value: Any) -> None:
  """Raises ValueError unless `value` is True or False."""
  if not isinstance(value, bool):
    raise ValueError(f"{name}: got {value!r}, expected True or False")
