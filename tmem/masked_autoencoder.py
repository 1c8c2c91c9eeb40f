"""Masked reconstruction of images: an encoder of the visible patches, a light decoder of all."""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx

from tmem.config import check_int
from tmem.encoder import EncoderBlock, EncoderConfig
from tmem.image_models import ImageConfig, PatchEncoder, learned_tokens
from tmem.layer_norm import LayerNorm
from tmem.rows import put_rows
from tmem.typing import Tokens


@dataclasses.dataclass(frozen=True, kw_only=True)
class AutoencoderConfig(ImageConfig):
  """Sizes and composition of a masked autoencoder.

  Attributes: those of `ImageConfig`, for the encoder, and
    decoder_features: size of a token of the decoder, a multiple of `decoder_heads`.
    decoder_heads: its attention heads.
    decoder_layers: its blocks, none of which uses a memory.

  Raises:
    ValueError: naming the field, what came and what is right.
  """

  decoder_features: int = 64
  decoder_heads: int = 4
  decoder_layers: int = 1

  def __post_init__(self):
    super().__post_init__()
    for name in ("decoder_features", "decoder_heads", "decoder_layers"):
      check_int(name, getattr(self, name))
    if self.decoder_features % self.decoder_heads:
      raise ValueError(
        f"decoder_features: {self.decoder_features} is not a multiple of decoder_heads"
        f" {self.decoder_heads}"
      )


class _DecoderConfig(EncoderConfig):
  remembers = False


class MaskedAutoencoder(PatchEncoder):
  """Tells the pixels of all patches of an image from some of them.

  Args:
    config: sizes and composition.
    rngs: source of the initial parameters.

  Reference: arXiv 2605.27686, masked image reconstruction; arXiv 2111.06377, masked autoencoders.
  """

  def __init__(self, config: AutoencoderConfig, *, rngs: nnx.Rngs):
    super().__init__(config, rngs=rngs)
    types = {"dtype": config.dtype, "param_dtype": config.param_dtype}
    decoder = _DecoderConfig(
      features=config.decoder_features,
      num_heads=config.decoder_heads,
      num_layers=config.decoder_layers,
      dropout=config.dropout,
      **types,
    )
    self.to_decoder = nnx.Linear(config.features, decoder.features, rngs=rngs, **types)
    self.mask_token = learned_tokens(decoder, (decoder.features,), rngs)
    self.decoder_positions = learned_tokens(decoder, (config.patches, decoder.features), rngs)
    self.decoder_blocks = nnx.List(
      EncoderBlock(decoder, layer, rngs=rngs) for layer in range(decoder.num_layers)
    )
    self.decoder_norm = LayerNorm(decoder.features, rngs=rngs, **types)
    self.pixels = nnx.Linear(decoder.features, config.patch_inputs, rngs=rngs, **types)

  def __call__(self, patches: Tokens, visible: jax.Array, key: jax.Array | None = None) -> Tokens:
    """The pixels of every patch, seen or not.

    Args:
      patches: [batch, patches, patch_size * patch_size * input_channels], all of each image, as
        from `tmem.patches.patchify`. Those that are not visible have no influence.
      visible: [batch, n] int32, all different in a row: which patches are seen, in the order in
        which the memory gets them.
      key: dropout is on iff a key is given.

    Returns:
      Like `patches`, in `config.dtype`.

    Raises:
      ValueError: if the shapes do not fit.
    """
    config = self.config
    expected = (config.patches, config.patch_inputs)
    if patches.ndim != 3 or patches.shape[1:] != expected:
      raise ValueError(f"patches: got shape {patches.shape}, expected [batch, *{expected}]")
    if visible.ndim != 2 or len(visible) != len(patches) or not visible.shape[1]:
      raise ValueError(f"visible: got shape {visible.shape}, expected [{len(patches)}, n]")
    keys = (None,) * 2 if key is None else jax.random.split(key)
    seen = jnp.take_along_axis(patches, visible[..., None], axis=1, mode="clip")
    _, seen = self.encode_patches(seen, visible, keys[0])
    return self._decode(self.to_decoder(seen), visible, keys[1])

  def _decode(self, seen: Tokens, visible: jax.Array, key: jax.Array | None) -> Tokens:
    mask_token = self.mask_token[...].astype(seen.dtype)
    x = jnp.broadcast_to(mask_token, (len(seen), self.config.patches, len(mask_token)))
    x = put_rows(x, visible, seen) + self.decoder_positions[...].astype(seen.dtype)
    blocks = self.decoder_blocks
    keys = [None] * len(blocks) if key is None else jax.random.split(key, len(blocks))
    for block, own in zip(blocks, keys, strict=True):
      x, _ = block(x, key=own)
    return self.pixels(self.decoder_norm(x))
