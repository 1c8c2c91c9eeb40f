"""Images as sequences of patches, and back."""

import jax

from tmem.typing import Tokens

Images = jax.Array  # [batch, height, width, channels]


def patchify(images: Images, size: int) -> Tokens:
  """Cuts images into square patches, row by row.

  Args:
    images: [batch, height, width, channels]; height and width are multiples of `size`.
    size: pixels along a patch's edge.

  Returns:
    [batch, patches, size * size * channels]; within a patch row by row, channels last.

  Raises:
    ValueError: if `images` has no such shape.
  """
  if images.ndim != 4 or images.shape[1] % size or images.shape[2] % size:
    raise ValueError(
      f"images: got shape {images.shape}, expected [batch, height, width, channels] with height and"
      f" width multiples of the patch size {size}"
    )
  batch, height, width, channels = images.shape
  parts = images.reshape(batch, height // size, size, width // size, size, channels)
  return parts.swapaxes(2, 3).reshape(batch, -1, size * size * channels)


def unpatchify(patches: Tokens, size: int, shape: tuple[int, int]) -> Images:
  """Puts patches together again, the inverse of `patchify`.

  Args:
    patches: [batch, patches, size * size * channels].
    size: pixels along a patch's edge.
    shape: height and width of the images.

  Returns:
    [batch, height, width, channels].

  Raises:
    ValueError: if there are not as many patches as such images have.
  """
  rows, columns = shape[0] // size, shape[1] // size
  if patches.ndim != 3 or patches.shape[1] != rows * columns:
    raise ValueError(
      f"patches: got shape {patches.shape}, expected [batch, {rows * columns}, features] for images"
      f" of {shape[0]} x {shape[1]} pixels"
    )
  parts = patches.reshape(len(patches), rows, columns, size, size, -1)
  return parts.swapaxes(2, 3).reshape(len(patches), rows * size, columns * size, -1)
