"""A hidden grid seen through random patches; cells of it are asked for."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import ClassVar

import jax
import jax.numpy as jnp

from data.synthetic_task import Batch, SyntheticTask, check_bool, check_int, one_hot

FLAGS = 2  # observation, query


@dataclasses.dataclass(frozen=True)
class MapBuilding(SyntheticTask):
  """Is a cell of a hidden map occupied? The map is known from small patches at known places.

  Each sample has a map of its own: `size` x `size` cells, each occupied with probability 1/2.
  `observations` tokens show a `patch` x `patch` piece of it, the top-left cell uniform over the
  places where the piece lies inside. Then `queries` tokens ask for a cell each, uniform over the
  map, or over what was shown; the answer is 1 if it is occupied.

  A token is: row and column, one-hot (`size` each) and once more as two coordinates in [-1, 1],
  of the patch's top-left cell or the cell asked for; the patch row by row (`patch`², 1 occupied,
  -1 free; zeros in a query); flags observation, query. Targets count at queries. `sample` adds
  "observed": bool [batch, length], True at a query if a patch showed its cell.

  Attributes:
    observations: patches shown, >= 1.
    size: cells per side of the map, >= 2.
    patch: cells per side of a patch, 1 to `size`.
    queries: queries at the end, >= 1.
    ask_shown: whether queries ask for nothing but cells that a patch showed, uniform over the
      cells of a random patch: a lesson without noise.

  Raises:
    ValueError: naming the field, what came and what is right.
  """

  name: ClassVar[str] = "map_building"

  observations: int = 32
  size: int = 8
  patch: int = 2
  queries: int = 1
  ask_shown: bool = False

  def __post_init__(self):
    check_int("observations", self.observations)
    check_int("size", self.size, minimum=2)
    check_int("patch", self.patch, maximum=self.size)
    check_int("queries", self.queries)
    check_bool("ask_shown", self.ask_shown)

  @property
  def input_features(self) -> int:
    """One-hot place, coordinates, patch and flags."""
    return 2 * self.size + 2 + self.patch**2 + FLAGS

  @property
  def classes(self) -> int:
    """Free and occupied."""
    return 2

  @property
  def length(self) -> int:
    """Observations and queries."""
    return self.observations + self.queries

  def ceiling(self) -> float:
    """A cell that was shown is known, any other is a fair coin: 1 - (1 - observed fraction)/2."""
    return 0.5 + 0.5 * self.observed_fraction()

  def observed_fraction(self) -> float:
    """Probability that the cell asked for was shown.

    A patch shows cell c with probability p_c, the share of the patch's places that cover it; the
    result is the mean of 1 - (1 - p_c)^observations over the cells.
    """
    if self.ask_shown:
      return 1.0
    shown = [1.0 - (1.0 - p) ** self.observations for p in self._coverage()]
    return math.fsum(shown) / len(shown)

  def row(self, key: jax.Array) -> Batch:
    """One sample, see the class."""
    map_key, place_key, query_key = jax.random.split(key, 3)
    cells = jax.random.bernoulli(map_key, 0.5, (self.size, self.size))
    places = self.size - self.patch + 1
    corners = jax.random.randint(place_key, (self.observations, 2), 0, places, jnp.int32)
    queries = self._asked(query_key, corners)

    span = corners[:, :, None] + jnp.arange(self.patch)  # [observations, row or column, patch]
    patches = cells[span[:, 0, :, None], span[:, 1, None, :]].reshape(self.observations, -1)
    distance = queries[:, None] - corners  # [queries, observations, row or column]
    covers = jnp.all((distance >= 0) & (distance < self.patch), axis=-1)

    place = jnp.concatenate([corners, queries])
    coordinates = jnp.array([2 * i / (self.size - 1) - 1 for i in range(self.size)], jnp.float32)
    is_query = jnp.arange(self.length) >= self.observations
    before = (self.observations, 0)
    shown = jnp.where(patches, 1.0, -1.0).astype(jnp.float32)
    inputs = [
      one_hot(place, self.size).reshape(self.length, -1),
      coordinates[place],
      jnp.pad(shown, ((0, self.queries), (0, 0))),
      one_hot(is_query, FLAGS),
    ]
    answers = cells[queries[:, 0], queries[:, 1]].astype(jnp.int32)
    return {
      "inputs": jnp.concatenate(inputs, axis=-1),
      "targets": jnp.pad(answers, before),
      "mask": is_query,
      "observed": jnp.pad(jnp.any(covers, axis=-1), before),
    }

  def _asked(self, key: jax.Array, corners: jax.Array) -> jax.Array:
    """Row and column of the cells asked for: [queries, 2]."""
    if not self.ask_shown:
      return jax.random.randint(key, (self.queries, 2), 0, self.size, jnp.int32)
    which_key, offset_key = jax.random.split(key)
    which = jax.random.randint(which_key, (self.queries,), 0, self.observations)
    return corners[which] + jax.random.randint(offset_key, (self.queries, 2), 0, self.patch)

  def _coverage(self) -> Iterator[float]:
    """For each cell, the share of the places of a patch that cover it."""
    last = self.size - self.patch
    along = [min(i, last) - max(0, i - self.patch + 1) + 1 for i in range(self.size)]
    return (rows * columns / (last + 1) ** 2 for rows in along for columns in along)
