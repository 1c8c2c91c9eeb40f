"""What a report shows of the runs of each task."""

from typing import NamedTuple


class Curve(NamedTuple):
  """A metric against what a test makes harder.

  Attributes:
    label: of the metric.
    against: what the tests differ by.
    points: how much of it, and the metric's key in result.json.
    factor: to what is drawn.
  """

  label: str
  against: str
  points: tuple[tuple[float, str], ...]
  factor: float = 1.0


class Columns(NamedTuple):
  """The columns of the tables, and the curves.

  Attributes:
    runs: heading, key in result.json and format, of a line for each run.
    seeds: heading, key and digits, of a line for runs that differ by their seed alone.
    curves: drawn of those together.
    pictures: name of a file of every run with rows of pictures, drawn together; None: none.
    left: columns of the first table that are flush left, behind the name.
  """

  runs: tuple[tuple[str, str, str], ...]
  seeds: tuple[tuple[str, str, int], ...]
  curves: tuple[Curve, ...] = ()
  pictures: str | None = None
  left: int = 2


SHARES = (25, 50, 75)  # percent, of what tests of images and videos hide
WHAT = (("method", "method", "{}"), ("dataset", "dataset", "{}"))
COST = (("params", "params", "{:,}"), ("state bytes", "state_bytes", "{:,}"))

LANGUAGE = Columns(
  runs=(
    *WHAT,
    ("protocol", "protocol", "{}"),
    ("steps", "steps", "{}"),
    ("valid nats", "valid_loss", "{:.4f}"),
    ("test nats", "test_loss", "{:.4f}"),
    ("bits/byte", "test_bits_per_byte", "{:.4f}"),
    ("perplexity", "test_perplexity", "{:.2f}"),
    ("params", "params", "{:,}"),
    ("tokens/s", "tokens_per_second", "{:,.0f}"),
    ("state bytes", "state_bytes", "{:,}"),
    ("causal", "causal", "{}"),
  ),
  seeds=(
    ("valid nats", "valid_loss", 4),
    ("test nats", "test_loss", 4),
    ("perplexity", "test_perplexity", 2),
    ("near repeats", "test_loss_near", 4),
    ("far repeats", "test_loss_far", 4),
    ("first seen", "test_loss_first", 4),
  ),
)
IMAGE = Columns(
  runs=(
    *WHAT,
    ("order", "order", "{}"),
    ("steps", "steps", "{}"),
    ("valid loss", "valid_loss", "{:.4f}"),
    *((f"PSNR at {share}", f"test_{share}_psnr", "{:.2f}") for share in SHARES),
    *((f"SSIM at {share}", f"test_{share}_ssim", "{:.4f}") for share in SHARES),
    ("images/s", "images_per_second", "{:,.0f}"),
    *COST,
  ),
  seeds=(
    *((f"PSNR at {share}", f"test_{share}_psnr", 2) for share in SHARES),
    *((f"SSIM at {share}", f"test_{share}_ssim", 4) for share in SHARES),
    ("hidden PSNR at 75", "test_75_masked_psnr", 2),
  ),
  curves=tuple(
    Curve(label, "% of the patches hidden", tuple((s, f"test_{s}_{key}") for s in SHARES))
    for label, key in (("PSNR (dB)", "psnr"), ("SSIM", "ssim"), ("MSE", "mse"))
  ),
  pictures="reconstructions_test_50.npz",
)
VIDEO = Columns(
  runs=(
    *WHAT,
    ("frames", "frames", "{}"),
    ("blank in training", "blank_frames", "{:.0%}"),
    ("encoder", "encoder", "{}"),
    ("steps", "steps", "{}"),
    ("valid loss", "valid_loss", "{:.4f}"),
    ("test loss", "test_loss", "{:.4f}"),
    ("top-1", "test_top1", "{:.1%}"),
    ("top-5", "test_top5", "{:.1%}"),
    *((f"blank {share}", f"test_blank_{share}_top1", "{:.1%}") for share in SHARES),
    *((f"covered {share}", f"test_covered_{share}_top1", "{:.1%}") for share in SHARES),
    ("frames/s", "frames_per_second", "{:,.0f}"),
    *COST,
  ),
  seeds=(
    ("top-1", "test_top1", 3),
    *((f"blank {share}", f"test_blank_{share}_top1", 3) for share in SHARES),
    *((f"covered {share}", f"test_covered_{share}_top1", 3) for share in SHARES),
  ),
  curves=tuple(
    Curve(
      "top-1 (%)",
      against,
      ((0, "test_top1"), *((s, f"test_{key}_{s}_top1") for s in SHARES)),
      factor=100,
    )
    for against, key in (("% of the frames blank", "blank"), ("% of each frame covered", "covered"))
  ),
  left=1,
)
BY_TASK = {"language": LANGUAGE, "image": IMAGE, "video": VIDEO}
