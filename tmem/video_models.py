"""Models of videos: a class after every frame, from all frames so far."""

import dataclasses
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from tmem.config import at_least_float32, check_int
from tmem.encoder import Encoder
from tmem.image_models import PatchConfig, learned_tokens, patch_projection
from tmem.patches import patchify
from tmem.stack import States, bytes_of
from tmem.typing import Tokens

METHODS = ("joint", "registers", "tensor")
Frames = jax.Array  # [batch, frames, *VideoConfig.frame_shape]


@dataclasses.dataclass(frozen=True, kw_only=True)
class VideoConfig(PatchConfig):
  """Sizes and composition of a classifier of videos.

  The method says how frames are brought together. "joint": attention over the patches of all
  frames; "registers": frame by frame, learned tokens are handed on; "tensor": frame by frame, the
  memory is handed on.

  Attributes: those of `PatchConfig`, whose images are the frames, and
    classes: number of classes.
    num_frames: frames that "joint" sees, the newest.
    frame_features: frames come as so many features of each patch, of a frozen encoder; None: as
      pixels.

  Raises:
    ValueError: naming the field, what came and what is right.
  """

  methods: ClassVar[tuple[str, ...]] = METHODS
  classes: int
  num_frames: int = 8
  frame_features: int | None = None

  def __post_init__(self):
    super().__post_init__()
    check_int("classes", self.classes)
    check_int("num_frames", self.num_frames)
    if self.frame_features is not None:
      check_int("frame_features", self.frame_features)

  @property
  def frame_shape(self) -> tuple[int, ...]:
    """Of a frame: (height, width, channels), or (patches, features)."""
    if self.frame_features is not None:
      return self.patches, self.frame_features
    return self.image_size, self.image_size, self.input_channels

  @property
  def patch_inputs(self) -> int:
    """Numbers that describe a patch."""
    return self.frame_features or super().patch_inputs


class VideoStream(NamedTuple):
  """All that videos carry from one frame to the next; every array has a row for each video.

  Attributes:
    memories: states of the memories.
    registers: [batch, registers, features], what the last frame has made of them; None: none.
    patches: [batch, num_frames, patches, features], the newest frames, newest last; None: none.
    seen: [batch] int32, how many of those there are; None with `patches`.
  """

  memories: States
  registers: jax.Array | None
  patches: jax.Array | None
  seen: jax.Array | None


class VideoClassifier(Encoder):
  """A class for a video, from the class token of its last frame.

  `onward` takes frames through one scan, so compile time does not grow with their number, nor does
  what is carried from frame to frame.

  Args:
    config: sizes and composition.
    rngs: source of the initial parameters.

  Reference: arXiv 2605.27686, video.
  """

  def __init__(self, config: VideoConfig, *, rngs: nnx.Rngs):
    super().__init__(config, rngs=rngs)
    types = {"dtype": config.dtype, "param_dtype": config.param_dtype, "rngs": rngs}
    self.patches = patch_projection(config, rngs)
    self.class_token = learned_tokens(config, (config.features,), rngs)
    self.positions = learned_tokens(config, (config.patches, config.features), rngs)

    def only(method: str, count: int) -> nnx.Param | None:
      own = config.method == method
      return learned_tokens(config, (count, config.features), rngs) if own else None

    self.times = only("joint", config.num_frames)
    self.registers = only("registers", config.num_registers)
    self.head = nnx.Linear(config.features, config.classes, **types)

  def init_stream(self, batch_size: int) -> VideoStream:
    """What `batch_size` videos carry before their first frame.

    Raises:
      ValueError: on a batch size below 1.
    """
    check_int("batch_size", batch_size)
    config, patches, seen, registers = self.config, None, None, None
    if self.registers is not None:
      registers = self.registers[...].astype(config.dtype)
      registers = jnp.broadcast_to(registers, (batch_size, *registers.shape))
    if self.times is not None:
      shape = (batch_size, config.num_frames, config.patches, config.features)
      patches, seen = jnp.zeros(shape, config.dtype), jnp.zeros((batch_size,), jnp.int32)
    return VideoStream(self.init_states(batch_size), registers, patches, seen)

  def stream_bytes(self) -> int:
    """Bytes that one video carries from frame to frame."""
    return bytes_of(lambda: self.init_stream(1))

  def __call__(self, frames: Frames, key: jax.Array | None = None) -> jax.Array:
    """Logits of each video's class after its last frame.

    Args:
      frames: [batch, frames, *config.frame_shape], floating, at least one.
      key: dropout is on iff a key is given.

    Returns:
      [batch, classes] in float32 (float64 if the model computes in it).

    Raises:
      ValueError: if `frames` has another shape.
    """
    stream = self.init_stream(len(frames))
    if self.config.method != "joint":
      return self.onward(frames, stream, key)[0][:, -1]
    self._check(frames)
    newest = frames[:, -self.config.num_frames :]
    tokens = self._tokens(newest.reshape(-1, *newest.shape[2:]))
    newest = tokens.reshape(*newest.shape[:2], *tokens.shape[1:])
    times = self.times[...].astype(newest.dtype)[: newest.shape[1], None]
    x = (newest + times).reshape(len(newest), -1, newest.shape[-1])
    return self._classes(self._encode(x, (), None, None, key)[0])

  def onward(
    self, frames: Frames, stream: VideoStream, key: jax.Array | None = None
  ) -> tuple[jax.Array, VideoStream]:
    """Logits after each of the next frames.

    Args:
      frames: as in a call.
      stream: what the videos have carried, as from `init_stream`.
      key: dropout is on iff a key is given.

    Returns:
      `(logits, stream)`: [batch, frames, classes], as a call's, and what to carry on.

    Raises:
      ValueError: as a call.
    """
    self._check(frames)
    keys = None if key is None else jax.random.split(key, frames.shape[1])

    def step(stream, now):
      frame, key = now
      return self._next(self._tokens(frame), key, stream)

    stream, summaries = jax.lax.scan(step, stream, (jnp.moveaxis(frames, 1, 0), keys))
    return jnp.moveaxis(self._classes(summaries), 0, 1), stream

  def next_frame(
    self, frame: jax.Array, stream: VideoStream, key: jax.Array | None = None
  ) -> tuple[jax.Array, VideoStream]:
    """As `onward` with one frame [batch, *config.frame_shape], but without a scan.

    Returns:
      `(logits, stream)`: [batch, classes], and what to carry on.
    """
    stream, summary = self._next(self._tokens(frame), key, stream)
    return self._classes(summary), stream

  def _check(self, frames: Frames) -> None:
    expected = self.config.frame_shape
    if frames.shape[2:] != expected or not frames.shape[1]:
      raise ValueError(f"frames: got shape {frames.shape}, expected [batch, frames, *{expected}]")

  def _tokens(self, frames: jax.Array) -> Tokens:
    """Embedded patches of [batch, *frame_shape], in their places: [batch, patches, features]."""
    patches = frames.astype(self.config.dtype)
    if self.config.frame_features is None:
      patches = patchify(patches, self.config.patch_size)
    return self.patches(patches) + self.positions[...].astype(self.config.dtype)

  def _next(self, tokens: Tokens, key: jax.Array | None, stream: VideoStream):
    """One frame [batch, patches, features]: `(stream, class token [batch, features])`."""
    memories, registers, patches, seen = stream
    if patches is None:
      summary, registers, memories = self._encode(tokens, memories, registers, None, key)
      return VideoStream(memories, registers, None, None), summary
    count = self.config.num_frames
    patches = jnp.concatenate([patches[:, 1:], tokens[:, None]], axis=1)
    seen = jnp.minimum(seen + 1, count)
    time = jnp.arange(count) - (count - seen[:, None])  # of the frames that there are, from 0 on
    x = patches + self.times[...].astype(tokens.dtype)[jnp.maximum(time, 0)][:, :, None]
    exists = jnp.repeat(time >= 0, tokens.shape[1], axis=1)
    visible = jnp.pad(exists, [(0, 0), (1, 0)], constant_values=True)[:, None, None]
    x = x.reshape(len(x), -1, x.shape[-1])
    summary, _, memories = self._encode(x, memories, None, visible, key)
    return VideoStream(memories, None, patches, seen), summary

  def _encode(self, x: Tokens, memories: States, registers, visible, key):
    """Class token, registers and memories after tokens."""
    front = self.class_token[...].astype(x.dtype)
    front = jnp.broadcast_to(front, (len(x), 1, *front.shape))
    parts = (front, x) if registers is None else (front, registers, x)
    x, memories = self.encode(jnp.concatenate(parts, axis=1), memories, visible, key)
    kept = None if registers is None else x[:, 1 : 1 + registers.shape[1]]
    return self.norm(x[:, 0]), kept, memories

  def _classes(self, summary: jax.Array) -> jax.Array:
    logits = self.head(summary)
    return logits.astype(at_least_float32(logits.dtype))
