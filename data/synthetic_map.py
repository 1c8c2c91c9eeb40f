"""A hidden grid seen through random patches; one cell of it is asked for."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import ClassVar

import jax
import jax.numpy as jnp

from data.synthetic_task import Batch, SyntheticTask, check_int, one_hot

FLAGS = 2  # observation, query


@dataclasses.dataclass(frozen=True)
class MapBuilding(SyntheticTask):
  """Is a cell of a hidden map occupied? The map is known from small patches at known places.

  Each sample has a map of its own: `size` x `size` cells, each occupied with probability 1/2.
  `observations` tokens show a `patch` x `patch` piece of it, the top-left cell uniform over the
  places where the piece lies inside. A last token asks for a cell, uniform over the map; the
  answer is 1 if it is occupied.

  A token is: row and column, one-hot (`size` each) and once more as two coordinates in [-1, 1],
  of the patch's top-left cell or the cell asked for; the patch row by row (`patch`², 1 occupied,
  -1 free; zeros in the query); flags observation, query. The target of the last token counts.
  `sample` adds "observed": bool [batch, length], True at the query if a patch showed its cell.

  Attributes:
    observations: patches shown, >= 1.
    size: cells per side of the map, >= 2.
    patch: cells per side of a patch, 1 to `size`.

  Raises:
    ValueError: naming the field, what came and what is right.
  """

  name: ClassVar[str] = "map_building"

  observations: int = 32
  size: int = 8
  patch: int = 2

  def __post_init__(self):
    check_int("observations", self.observations)
    check_int("size", self.size, minimum=2)
    check_int("patch", self.patch, maximum=self.size)

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
    """Observations and the query."""
    return self.observations + 1

  def ceiling(self) -> float:
    """A cell that was shown is known, any other is a fair coin: 1 - (1 - observed fraction)/2."""
    return 0.5 + 0.5 * self.observed_fraction()

  def observed_fraction(self) -> float:
    """Probability that the cell asked for was shown.

    A patch shows cell c with probability p_c, the share of the patch's places that cover it; the
    result is the mean of 1 - (1 - p_c)^observations over the cells.
    """
    shown = [1.0 - (1.0 - p) ** self.observations for p in self._coverage()]
    return math.fsum(shown) / len(shown)

  def row(self, key: jax.Array) -> Batch:
    """One sample, see the class."""
    map_key, place_key, query_key = jax.random.split(key, 3)
    cells = jax.random.bernoulli(map_key, 0.5, (self.size, self.size))
    places = self.size - self.patch + 1
    corners = jax.random.randint(place_key, (self.observations, 2), 0, places, jnp.int32)
    query = jax.random.randint(query_key, (2,), 0, self.size, jnp.int32)

    span = corners[:, :, None] + jnp.arange(self.patch)  # [observations, row or column, patch]
    patches = cells[span[:, 0, :, None], span[:, 1, None, :]].reshape(self.observations, -1)
    covers = jnp.all((corners <= query) & (query < corners + self.patch), axis=-1)

    place = jnp.concatenate([corners, query[None]])
    coordinates = jnp.array([2 * i / (self.size - 1) - 1 for i in range(self.size)], jnp.float32)
    is_query = jnp.arange(self.length) == self.observations
    inputs = [
      one_hot(place, self.size).reshape(self.length, -1),
      coordinates[place],
      jnp.pad(jnp.where(patches, 1.0, -1.0).astype(jnp.float32), ((0, 1), (0, 0))),
      one_hot(is_query, FLAGS),
    ]
    return {
      "inputs": jnp.concatenate(inputs, axis=-1),
      "targets": jnp.where(is_query, cells[query[0], query[1]], False).astype(jnp.int32),
      "mask": is_query,
      "observed": is_query & jnp.any(covers),
    }

  def _coverage(self) -> Iterator[float]:
    """For each cell, the share of the places of a patch that cover it."""
    last = self.size - self.patch
    along = [min(i, last) - max(0, i - self.patch + 1) + 1 for i in range(self.size)]
    return (rows * columns / (last + 1) ** 2 for rows in along for columns in along)
