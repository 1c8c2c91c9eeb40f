"""Models of single images: patches, a class token and a bidirectional encoder."""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from tmem.config import MemoryConfig, at_least_float32, check_choice, check_int, known_fields
from tmem.encoder import Encoder, EncoderConfig
from tmem.patches import Images, patchify
from tmem.typing import Tokens

METHODS = ("base", "local", "registers", "tensor")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PatchConfig(EncoderConfig):
  """Sizes and composition of an encoder of patches.

  Attributes: those of `EncoderConfig`, and
    methods: names that `method` may have.
    image_size: pixels along an edge of the square images, a multiple of `patch_size`.
    patch_size: pixels along an edge of a patch.
    input_channels: of a pixel.
    method: one of `methods`; "registers" has learned tokens, "tensor" a memory.
    num_registers: learned tokens of the method "registers".

  Raises:
    ValueError: naming the field, what came and what is right.
  """

  methods: ClassVar[tuple[str, ...]]
  image_size: int = 64
  patch_size: int = 8
  input_channels: int = 3
  method: str = "tensor"
  num_registers: int = 4

  def __post_init__(self):
    super().__post_init__()
    for name in ("image_size", "patch_size", "input_channels", "num_registers"):
      check_int(name, getattr(self, name))
    check_choice("method", self.method, self.methods)
    if self.image_size % self.patch_size:
      raise ValueError(
        f"image_size: {self.image_size} is not a multiple of patch_size {self.patch_size}"
      )

  @property
  def remembers(self) -> bool:
    """Whether there is a memory."""
    return self.method == "tensor"

  @property
  def patches(self) -> int:
    """Patches of an image."""
    return (self.image_size // self.patch_size) ** 2

  @property
  def patch_inputs(self) -> int:
    """Numbers that describe a patch."""
    return self.patch_size**2 * self.input_channels

  @classmethod
  def from_dict(cls, fields: Mapping[str, Any]) -> Self:
    """Rebuilds a configuration from `to_dict`; raises ValueError on unknown names."""
    fields = known_fields(cls, fields)
    if "memory" in fields:
      fields["memory"] = MemoryConfig.from_dict(fields["memory"])
    return cls(**fields)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageConfig(PatchConfig):
  """Sizes and composition of an encoder of images.

  In the method "base" every patch sees every other one, in "local" those around it alone.

  Attributes: those of `PatchConfig`, and
    reach: how many patches away another may be, along either axis, in the method "local".

  Raises:
    ValueError: naming the field, what came and what is right.
  """

  methods: ClassVar[tuple[str, ...]] = METHODS
  reach: int = 1

  def __post_init__(self):
    super().__post_init__()
    check_int("reach", self.reach)


class PatchEncoder(Encoder):
  """An encoder of images as sequences: the class token, registers if there are any, patches.

  Args:
    config: sizes and composition.
    rngs: source of the initial parameters.

  Reference: arXiv 2605.27686, vision.
  """

  def __init__(self, config: ImageConfig, *, rngs: nnx.Rngs):
    super().__init__(config, rngs=rngs)
    self.patches = patch_projection(config, rngs)
    self.class_token = learned_tokens(config, (config.features,), rngs)
    self.positions = learned_tokens(config, (1 + config.patches, config.features), rngs)
    registers = (config.num_registers, config.features)
    self.registers = (
      learned_tokens(config, registers, rngs) if config.method == "registers" else None
    )

  def encode_patches(
    self, patches: Tokens, places: jax.Array | None = None, key: jax.Array | None = None
  ) -> tuple[jax.Array, Tokens]:
    """Encodes patches, all of an image or some.

    Args:
      patches: [batch, n, patch_size * patch_size * input_channels], in the order in which the
        memory gets them.
      places: [batch, n] int32, which patches of the image they are; None: all, in their order.
      key: dropout is on iff a key is given.

    Returns:
      `(summary, patches)`: of the class token [batch, features], and of each patch
      [batch, n, features].
    """
    positions = self.positions[...].astype(self.config.dtype)
    own = positions[1:] if places is None else positions[1 + places]
    x = self.patches(patches.astype(self.config.dtype)) + own
    class_token = (self.class_token[...] + self.positions[0]).astype(x.dtype)
    front = [class_token[None]]
    if self.registers is not None:
      front.append(self.registers[...].astype(x.dtype))
    front = jnp.concatenate(front)
    x = jnp.concatenate([jnp.broadcast_to(front, (len(x), *front.shape)), x], axis=1)
    visible = self._visible(len(front), places)
    x, _ = self.encode(x, self.init_states(len(x)), visible, key)
    x = self.norm(x)
    return x[:, 0], x[:, len(front) :]

  def _visible(self, front: int, places: jax.Array | None) -> jax.Array | None:
    """What tokens see, [batch or 1, 1, tokens, tokens]; the `front` see and are seen everywhere."""
    if self.config.method != "local":
      return None
    edge = self.config.image_size // self.config.patch_size
    places = np.arange(self.config.patches)[None] if places is None else places
    near = True
    for along in (places // edge, places % edge):
      near = near & (abs(along[:, :, None] - along[:, None, :]) <= self.config.reach)
    return jnp.pad(near, [(0, 0), (front, 0), (front, 0)], constant_values=True)[:, None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageClassifierConfig(ImageConfig):
  """Sizes and composition of a classifier of images.

  Attributes: those of `ImageConfig`, and
    classes: number of classes.

  Raises:
    ValueError: naming the field, what came and what is right.
  """

  classes: int

  def __post_init__(self):
    check_int("classes", self.classes)
    super().__post_init__()


class ImageClassifier(PatchEncoder):
  """A class for each image, from the class token.

  Args:
    config: sizes and composition.
    rngs: source of the initial parameters.
  """

  def __init__(self, config: ImageClassifierConfig, *, rngs: nnx.Rngs):
    super().__init__(config, rngs=rngs)
    types = {"dtype": config.dtype, "param_dtype": config.param_dtype, "rngs": rngs}
    self.head = nnx.Linear(config.features, config.classes, **types)

  def __call__(self, images: Images, key: jax.Array | None = None) -> jax.Array:
    """Logits of each image's class.

    Args:
      images: [batch, image_size, image_size, input_channels], floating.
      key: dropout is on iff a key is given.

    Returns:
      [batch, classes] in float32 (float64 if the model computes in it).

    Raises:
      ValueError: if `images` has another shape.
    """
    config = self.config
    expected = (config.image_size, config.image_size, config.input_channels)
    if images.ndim != 4 or images.shape[1:] != expected:
      raise ValueError(f"images: got shape {images.shape}, expected [batch, *{expected}]")
    summary, _ = self.encode_patches(patchify(images, config.patch_size), key=key)
    logits = self.head(summary)
    return logits.astype(at_least_float32(logits.dtype))


def patch_projection(config: PatchConfig, rngs: nnx.Rngs) -> nnx.Linear:
  """From what describes a patch to a token."""
  types = {"dtype": config.dtype, "param_dtype": config.param_dtype, "rngs": rngs}
  return nnx.Linear(config.patch_inputs, config.features, **types)


def learned_tokens(config: EncoderConfig, shape: tuple[int, ...], rngs: nnx.Rngs) -> nnx.Param:
  """Learned vectors that start small."""
  return nnx.Param(nnx.initializers.normal(0.02)(rngs.params(), shape, config.param_dtype))
