"""Values bound to coordinates, asked for by a noisy coordinate; also over a long distraction."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from data.synthetic_task import (
  Batch,
  SyntheticTask,
  check_int,
  check_not_negative,
  one_hot,
)

AXES = 3  # of a coordinate
FLAGS = 3  # write, query, distractor


@dataclasses.dataclass(frozen=True)
class CoordinateBinding(SyntheticTask):
  """Values are written at points of a cube; a query near a point asks for its value.

  A sample is `writes` tokens WRITE(point, value), points uniform in [-1, 1]^3 and values uniform,
  then `distractors` tokens, then `queries` tokens QUERY(point). A query's point is a written one,
  chosen uniformly, plus Gaussian noise, clamped to the cube. The answer is the value of the
  written point nearest to it in Euclidean distance, whichever was chosen; of equally near ones
  the first. A distractor has a uniform point and value of its own, as a write has, and is never
  an answer: only its flag tells it from a write.

  A token is: point (3), value one-hot (`values`; zeros in a query), flags write, query,
  distractor. Targets count at queries. From one key come the same writes and queries whatever
  `distractors` is.

  Attributes:
    writes: points written, >= 1.
    noise: standard deviation of the noise per axis, >= 0, in units of the coordinates.
    queries: queries at the end, >= 1.
    values: values to choose from, >= 2.
    distractors: tokens between writes and queries, >= 0. A sample is made in one piece: its
      inputs take 4 · length · input_features bytes (2.5 MB with 16384 distractors).

  Raises:
    ValueError: naming the field, what came and what is right.
  """

  name: ClassVar[str] = "coordinate_binding"

  writes: int = 10
  noise: float = 0.05
  queries: int = 4
  values: int = 32
  distractors: int = 0

  def __post_init__(self):
    check_int("writes", self.writes)
    check_not_negative("noise", self.noise)
    check_int("queries", self.queries)
    check_int("values", self.values, minimum=2)
    check_int("distractors", self.distractors, minimum=0)

  @property
  def input_features(self) -> int:
    """Point, value and flags."""
    return AXES + self.values + FLAGS

  @property
  def classes(self) -> int:
    """The values."""
    return self.values

  @property
  def length(self) -> int:
    """Writes, distractors and queries."""
    return self.writes + self.distractors + self.queries

  def ceiling(self) -> float:
    """1: the answer is a function of the tokens."""
    return 1.0

  def row(self, key: jax.Array) -> Batch:
    """One sample, see the class."""
    write_key, distractor_key, choice_key, noise_key = jax.random.split(key, 4)
    points, values = self._points_and_values(write_key, self.writes)
    other_points, other_values = self._points_and_values(distractor_key, self.distractors)

    chosen = jax.random.randint(choice_key, (self.queries,), 0, self.writes, jnp.int32)
    noise = self.noise * jax.random.normal(noise_key, (self.queries, AXES), jnp.float32)
    asked = jnp.clip(points[chosen] + noise, -1.0, 1.0)
    # Differences rather than a matrix product: accelerators round the products' inputs.
    distances = jnp.sum((asked[:, None] - points) ** 2, axis=-1)
    answers = values[jnp.argmin(distances, axis=1)]

    token = jnp.arange(self.length)
    is_write, is_query = token < self.writes, token >= self.length - self.queries
    shown = jnp.concatenate([one_hot(values, self.values), one_hot(other_values, self.values)])
    inputs = [
      jnp.concatenate([points, other_points, asked]),
      jnp.pad(shown, ((0, self.queries), (0, 0))),
      jnp.stack([is_write, is_query, ~(is_write | is_query)], axis=-1).astype(jnp.float32),
    ]
    return {
      "inputs": jnp.concatenate(inputs, axis=-1),
      "targets": jnp.pad(answers, (self.length - self.queries, 0)),
      "mask": is_query,
    }

  def _points_and_values(self, key: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
    point_key, value_key = jax.random.split(key)
    points = jax.random.uniform(point_key, (count, AXES), jnp.float32, -1.0, 1.0)
    return points, jax.random.randint(value_key, (count,), 0, self.values, jnp.int32)


@dataclasses.dataclass(frozen=True)
class LongRecall(CoordinateBinding):
  """`CoordinateBinding` over a long stretch of distractors: the first tokens must be kept.

  Attributes:
    distractors: tokens between writes and queries, >= 1.
  """

  name: ClassVar[str] = "long_recall"

  distractors: int = 1024

  def __post_init__(self):
    super().__post_init__()
    check_int("distractors", self.distractors)
