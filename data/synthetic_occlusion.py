"""A ball in steady motion that is out of sight for some frames; where is it at the end?"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from data.synthetic_task import Batch, SyntheticTask, check_bool, check_int, one_hot


@dataclasses.dataclass(frozen=True)
class Occlusion(SyntheticTask):
  """In which quarter of the picture is a ball in the last of some frames?

  A square ball starts anywhere in a picture of `size` x `size` pixels and moves by the same whole
  number of pixels per frame, uniform over all velocities of at most `max_speed` per axis but
  standing still. What leaves the picture enters it on the opposite side. Hidden frames are blank.
  The answer is the quadrant of the ball's top-left pixel in the last frame: 0 top left, 1 top
  right, 2 bottom left, 3 bottom right.

  Frames are cut into patches, a token each, frame after frame and row by row within a frame, and
  a query ends the sample; or, for lessons, one ends each frame and asks for the quadrant then. A
  token is: pixels of the patch row by row (`patch`², 1 ball, 0 not), place of the patch one-hot
  ((size / patch)²), flag query; a query has only the flag. Targets count at queries.

  Attributes:
    frames: frames of a sample, >= 1.
    hidden: hidden frames. In the middle, at most `frames - 1`: the last one is then always seen.
      At the end, at most `frames - 2`: two are needed to know the velocity.
    fewest_hidden: with it, each sample has its own number of hidden frames, uniform from this one,
      in [0, `hidden`], to `hidden`.
    until_end: whether the hidden frames are the last ones, rather than those in the middle, which
      begin at frame (frames - hidden) // 2.
    size: pixels per side of a frame, even and a multiple of `patch`.
    patch: pixels per side of a patch, >= 1.
    ball: pixels per side of the ball, 1 to `size - 1`.
    max_speed: pixels per frame and axis, >= 1.
    ask_each_frame: whether every frame ends with a query, not the last one alone.
    count_last: whether of all queries only the one at the end counts.

  Raises:
    ValueError: naming the field, what came and what is right.
  """

  name: ClassVar[str] = "occlusion"

  frames: int = 8
  hidden: int = 4
  fewest_hidden: int | None = None
  until_end: bool = False
  size: int = 16
  patch: int = 4
  ball: int = 2
  max_speed: int = 2
  ask_each_frame: bool = False
  count_last: bool = False

  def __post_init__(self):
    check_bool("until_end", self.until_end)
    check_bool("ask_each_frame", self.ask_each_frame)
    check_bool("count_last", self.count_last)
    visible = 2 if self.until_end else 1
    check_int("frames", self.frames, minimum=visible)
    check_int("hidden", self.hidden, minimum=0, maximum=self.frames - visible)
    if self.fewest_hidden is not None:
      check_int("fewest_hidden", self.fewest_hidden, minimum=0, maximum=self.hidden)
    check_int("patch", self.patch)
    check_int("size", self.size, minimum=2)
    if self.size % 2:
      raise ValueError(f"size: got {self.size}, expected an even number: frames have quadrants")
    if self.size % self.patch:
      raise ValueError(f"size: got {self.size}, expected a multiple of patch = {self.patch}")
    check_int("ball", self.ball, maximum=self.size - 1)
    check_int("max_speed", self.max_speed)

  @property
  def input_features(self) -> int:
    """Pixels, place of the patch and the query's flag."""
    return self.patch**2 + self.patches + 1

  @property
  def classes(self) -> int:
    """The quadrants."""
    return 4

  @property
  def length(self) -> int:
    """The patches of all frames and the queries."""
    return self.frames * self.patches + (self.frames if self.ask_each_frame else 1)

  @property
  def patches(self) -> int:
    """Patches of a frame."""
    return (self.size // self.patch) ** 2

  @property
  def hidden_frames(self) -> range:
    """Indices of the hidden frames, of the most that there can be."""
    first = self._first_hidden(self.hidden)
    return range(first, first + self.hidden)

  def _first_hidden(self, hidden: int | jax.Array) -> int | jax.Array:
    visible = self.frames - hidden
    return visible if self.until_end else visible // 2

  def ceiling(self) -> float:
    """1: either the last frame is seen, or two in a row before it, and they give the velocity.

    Velocities that two frames cannot tell apart differ by a multiple of `size` per axis, and lead
    to the same place.
    """
    return 1.0

  def row(self, key: jax.Array) -> Batch:
    """One sample, see the class."""
    start_key, velocity_key = jax.random.split(key)
    start = jax.random.randint(start_key, (2,), 0, self.size, jnp.int32)
    span = 2 * self.max_speed + 1
    index = jax.random.randint(velocity_key, (), 0, span**2 - 1, jnp.int32)
    index += index >= span**2 // 2  # skips the velocity 0, which is in the middle
    velocity = jnp.stack([index // span, index % span]) - self.max_speed

    hidden = self.hidden
    if self.fewest_hidden is not None:
      count_key = jax.random.fold_in(key, 2)
      hidden = jax.random.randint(count_key, (), self.fewest_hidden, hidden + 1, jnp.int32)
    first = self._first_hidden(hidden)

    time = jnp.arange(self.frames, dtype=jnp.int32)
    corners = (start + velocity * time[:, None]) % self.size
    below = (jnp.arange(self.size) - corners[:, :, None]) % self.size < self.ball
    seen = (time < first) | (time >= first + hidden)
    pixels = below[:, 0, :, None] & below[:, 1, None, :] & seen[:, None, None]

    side = self.size // self.patch
    cut = pixels.reshape(self.frames, side, self.patch, side, self.patch)
    cut = cut.transpose(0, 1, 3, 2, 4).reshape(self.frames, self.patches, self.patch**2)
    place = jnp.broadcast_to(
      one_hot(jnp.arange(self.patches), self.patches), (self.frames, self.patches, self.patches)
    )
    tokens = jnp.concatenate([cut, place], axis=-1, dtype=jnp.float32)
    tokens = jnp.pad(tokens, ((0, 0), (0, 1), (0, 1))).at[:, -1, -1].set(1.0)  # and its query

    below_middle, right_of_middle = jnp.moveaxis(corners >= self.size // 2, 1, 0)
    quadrant = (2 * below_middle + right_of_middle).astype(jnp.int32)
    targets = jnp.pad(quadrant[:, None], ((0, 0), (self.patches, 0))).reshape(-1)
    counts = (time == self.frames - 1) | (self.ask_each_frame and not self.count_last)
    is_query = (jnp.arange(self.patches + 1) == self.patches) & counts[:, None]
    left = np.flatnonzero(self._kept())
    return {
      "inputs": tokens.reshape(-1, self.input_features)[left],
      "targets": jnp.where(is_query.reshape(-1), targets, 0)[left],
      "mask": is_query.reshape(-1)[left],
    }

  def _kept(self) -> np.ndarray:
    """Which tokens of frames that all end with a query are there: [frames * (patches + 1)]."""
    kept = np.ones((self.frames, self.patches + 1), bool)
    kept[:-1, -1] = self.ask_each_frame
    return kept.reshape(-1)
