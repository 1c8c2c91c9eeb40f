"""Image files of all kinds: one picture in many encodings, and files that are none."""

import io

import numpy as np
import pytest
from PIL import Image

from data.errors import DatasetError
from data.image_file import read_image

HEIGHT, WIDTH = 6, 9
GREY = np.linspace(0, 255, HEIGHT * WIDTH).reshape(HEIGHT, WIDTH).round().astype(np.uint8)
COLOUR = np.stack([GREY, GREY[::-1], GREY[:, ::-1]], axis=-1)


def encoded(image, kind="PNG", **options):
  file = io.BytesIO()
  image.save(file, kind, **options)
  return file.getvalue()


def test_colours_come_back():
  np.testing.assert_array_equal(read_image(encoded(Image.fromarray(COLOUR)), "a.png"), COLOUR)


@pytest.mark.parametrize(
  ("image", "kind"),
  [
    (Image.fromarray(GREY), "PNG"),
    (Image.fromarray(GREY.astype(np.uint16) * 257), "PNG"),
    (Image.fromarray(GREY.astype(np.int32) * 257), "TIFF"),
    (Image.fromarray(GREY).convert("P"), "PNG"),
  ],
  ids=["8 bits", "16 bits", "32 bits", "palette"],
)
def test_grey_becomes_three_equal_channels(image, kind):
  pixels = read_image(encoded(image, kind), "a.png")
  assert pixels.dtype == np.uint8
  np.testing.assert_array_equal(pixels, np.stack([GREY] * 3, axis=-1))


def test_floats_are_stretched_to_what_there_is():
  image = Image.fromarray(GREY.astype(np.float32) / 51 - 2)
  pixels = read_image(encoded(image, "TIFF"), "a.tif")
  np.testing.assert_allclose(pixels[..., 0], GREY, atol=1)
  flat = Image.fromarray(np.full((2, 2), 3.0, np.float32))
  assert not read_image(encoded(flat, "TIFF"), "a.tif").any()


def test_cmyk_is_rgb():
  image = Image.fromarray(COLOUR).convert("CMYK")
  pixels = read_image(encoded(image, "JPEG", quality=100, subsampling=0), "a.jpg")
  assert np.abs(pixels.astype(int) - COLOUR).mean() < 6


def test_what_is_transparent_is_white():
  alpha = np.zeros((HEIGHT, WIDTH, 1), np.uint8)
  alpha[:, :4] = 255
  pixels = read_image(encoded(Image.fromarray(np.concatenate([COLOUR, alpha], -1))), "a.png")
  np.testing.assert_array_equal(pixels[:, :4], COLOUR[:, :4])
  assert (pixels[:, 4:] == 255).all()


def test_an_image_that_was_turned_is_turned_back():
  exif = Image.Exif()
  exif[0x0112] = 6  # to be turned by a quarter, clockwise
  pixels = read_image(encoded(Image.fromarray(COLOUR), exif=exif), "a.png")
  np.testing.assert_array_equal(pixels, np.rot90(COLOUR, -1))


def test_of_an_animation_the_first_picture_counts():
  first, second = Image.fromarray(GREY), Image.fromarray(255 - GREY)
  pixels = read_image(encoded(first, "GIF", save_all=True, append_images=[second]), "a.gif")
  assert np.abs(pixels[..., 0].astype(int) - GREY).max() <= 2


def test_one_pixel_is_an_image():
  assert read_image(encoded(Image.new("RGB", (1, 1), "red")), "a.png").tolist() == [[[255, 0, 0]]]


JPEG = encoded(Image.fromarray(COLOUR), "JPEG")


@pytest.mark.parametrize(
  "contents",
  [b"", b"no image", JPEG[: len(JPEG) // 2], encoded(Image.fromarray(COLOUR))[:-30]],
  ids=["empty", "text", "half a JPEG", "cut PNG"],
)
def test_what_is_no_image_is_named(contents):
  with pytest.raises(DatasetError, match=r"^bird\.jpg: not an image that can be read \(.+\)$"):
    read_image(contents, "bird.jpg")


def test_a_bomb_is_refused(monkeypatch):
  monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 20)
  with pytest.raises(DatasetError, match="exceeds limit"):
    read_image(encoded(Image.fromarray(COLOUR)), "a.png")
