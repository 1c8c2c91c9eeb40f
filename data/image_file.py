"""Image files of any kind as RGB pixels."""

import io
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from data.errors import DatasetError

# What Pillow warns of is refused here; its own filter could not be set in threads.
warnings.simplefilter("ignore", Image.DecompressionBombWarning)
warnings.filterwarnings("ignore", module=r"PIL\.")  # of damage that does not keep it from reading
_LEVELS = {"I;16": 65535, "I;16L": 65535, "I;16B": 65535, "I;16N": 65535, "I": 65535}


class EncodedImage(NamedTuple):
  """An image file, on disk or elsewhere.

  Attributes:
    name: for messages.
    read: gives its contents; raises OSError if it cannot be read.
  """

  name: str
  read: Callable[[], bytes]

  @classmethod
  def at(cls, path: Path) -> Self:
    """The file on disk."""
    return cls(str(path), path.read_bytes)


def read_image(encoded: bytes, name: str) -> np.ndarray:
  """Decodes an image.

  Greyscale, palettes, CMYK, 16 bits per channel and floating point become RGB of 8 bits, what is
  transparent becomes white, and an image that its EXIF data say is turned is turned back. Of an
  animation the first picture counts.

  Args:
    encoded: the file's contents: JPEG, PNG, or whatever else Pillow reads.
    name: of the file, for the message.

  Returns:
    [height, width, 3] uint8.

  Raises:
    DatasetError: if the file is no image, broken, cut off or larger than Pillow thinks safe.
  """
  try:
    with Image.open(io.BytesIO(encoded)) as image:
      if image.width * image.height > Image.MAX_IMAGE_PIXELS:
        raise ValueError(f"{image.width} x {image.height} pixels are too many")
      image.load()
      return np.asarray(_as_rgb(ImageOps.exif_transpose(image)))
  # Pillow's decoders raise whatever comes to them from a damaged file.
  except UnidentifiedImageError as error:
    raise DatasetError(f"{name}: not an image that can be read (of no known format)") from error
  except Exception as error:
    reason = str(error).replace("\n", " ") or type(error).__name__
    raise DatasetError(f"{name}: not an image that can be read ({reason})") from error


def _as_rgb(image: Image.Image) -> Image.Image:
  if image.mode in _LEVELS:
    pixels = np.asarray(image).astype(np.float64) / _LEVELS[image.mode]
    image = Image.fromarray(np.round(255 * pixels.clip(0, 1)).astype(np.uint8))
  elif image.mode == "F":  # of an unknown range
    pixels = np.nan_to_num(np.asarray(image).astype(np.float64))
    low, high = pixels.min(), pixels.max()
    image = Image.fromarray(
      np.round(255 * (pixels - low) / max(high - low, 1e-12)).astype(np.uint8)
    )
  if image.has_transparency_data:
    image = image.convert("RGBA")
    white = Image.new("RGBA", image.size, "white")
    image = Image.alpha_composite(white, image)
  return image.convert("RGB")
