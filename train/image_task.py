"""Masked reconstruction of images as a task of the loop."""

import functools
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax
from flax import nnx

from data import example_batches, image_batches, image_sources
from data.errors import DatasetError
from data.image_batches import Images, Masking, masked_examples
from data.image_file import EncodedImage
from tmem import interop
from tmem.masked_autoencoder import MaskedAutoencoder
from train.config import ImageDataConfig, ImageRun
from train.errors import RunError
from train.health import Health
from train.image_losses import reconstruction_loss, reconstruction_quality
from train.image_plots import draw_places, draw_reconstructions, encode_visible
from train.report_columns import SHARES
from train.task import HostBatch, Task

RATIOS = {f"test_{percent}": percent / 100 for percent in SHARES}  # hidden in tests
Splits = dict[str, Images]


def load_images(config: ImageDataConfig) -> Splits:
  """Finds the images of a run: "train", "valid" (every tenth of those for training) and "test".

  Raises:
    RunError: saying what is missing and what would be right.
  """
  try:
    files = image_sources.find(config.dataset, config.data_dir, config.data_path)
    train, test = (image_batches.readable(files[split]) for split in ("train", "test"))
    if len(train) < 2:
      raise DatasetError(
        f"{train.files[0].name}: the only image for training, expected two or more"
      )
  except DatasetError as error:
    raise RunError(str(error)) from error
  rest = [file for index, file in enumerate(train.files) if index % 10]
  return {"train": Images(rest), "valid": Images(train.files[::10]), "test": test}


def fingerprint(images: Splits) -> dict[str, Any]:
  """What tells these images from others, as JSON: names and contents in every split."""
  return {
    split: {"images": len(shown), "crc32": functools.reduce(_checksum, shown.files, 0)}
    for split, shown in images.items()
  }


def _checksum(before: int, file: EncodedImage) -> int:
  name = "/".join(Path(file.name).parts[-2:])
  return zlib.crc32(file.read(), zlib.crc32(name.encode(), before))


def make_task(config: ImageRun, images: Splits) -> Task:
  """Describes a run on images to the loop.

  Args:
    config: the run.
    images: as from `load_images`.

  Returns:
    The task; its splits are "valid", masked as in training, and the test images masked less and
    more.
  """
  model, data, run = config.model, config.data, config.run
  masking = functools.partial(Masking, model.image_size, model.patch_size, order=data.order)

  def train_batches() -> Any:
    make = masked_examples(images["train"], masking(data.mask_ratio), augment=True)
    host = {"host_index": jax.process_index(), "host_count": jax.process_count()}
    return example_batches.train_batches(
      make, len(images["train"]), run.batch_size, run.seed, **host
    )

  def eval_batches(split: str, limit: int) -> Iterable[HostBatch]:
    shown = images[split.partition("_")[0]]
    make = masked_examples(shown, masking(RATIOS.get(split, data.mask_ratio)), augment=False)
    return example_batches.eval_batches(make, len(shown), run.batch_size, limit)

  def describe(trained: nnx.Module) -> dict[str, Any]:
    return {
      "method": model.method,
      "dataset": data.dataset,
      "mask_ratio": data.mask_ratio,
      "order": data.order,
      "images": {split: len(files) for split, files in images.items()},
      "causal": False,
      "state_bytes": trained.memory_bytes(),
      "fusion_gates": trained.fusion_gates(),
    }

  def figures(folder: Path, trained: nnx.Module) -> None:
    for split in RATIOS:
      batch = next(iter(eval_batches(split, 0)))
      draw_reconstructions(trained, batch, folder / f"reconstructions_{split}.png")
    if model.remembers:
      draw_places(trained, next(iter(eval_batches("test_50", 0))), folder / "places.png")

  return Task(
    name="image",
    item="images",
    count_items=lambda batch: len(batch["images"]),
    splits=("valid", *RATIOS),
    protocol="middle crops, masks of a fixed seed",
    build=lambda rngs: MaskedAutoencoder(model, rngs=rngs),
    loss_fn=reconstruction_loss,
    eval_loss_fn=reconstruction_quality,
    train_batches=train_batches,
    eval_batches=eval_batches,
    metrics=image_metrics,
    shown=("loss", "psnr", "ssim"),
    describe=describe,
    export=interop.save_model,
    figures=figures,
    watch=Health(lambda: next(iter(eval_batches("valid", 0))), encode_visible),
  )


def image_metrics(means: dict[str, float], split: str) -> dict[str, float]:
  """What is reported of a split: its means, and how many patches they are of."""
  del split
  return {**{k: v for k, v in means.items() if k != "weight"}, "hidden_patches": means["weight"]}
