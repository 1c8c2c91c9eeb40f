"""The flags of `train.image`, their presets, and the configuration they make."""

from typing import Any

from data.image_batches import ORDERS
from data.image_sources import DATASETS
from tmem.image_models import METHODS
from tmem.masked_autoencoder import AutoencoderConfig
from train import flag_table, vision_flags
from train.command import Flag
from train.config import ImageDataConfig, ImageRun
from train.errors import FlagError
from train.parsers import TEXT, Choice, Integer, Number

SSIM_FILTER = 11  # pixels along an edge, of `dm_pix.ssim`
PRESETS = ("cpu", "smoke", "small", "base", "large")
TASK = {
  "workdir": flag_table.WORKDIR,
  "checkpoint": flag_table.CHECKPOINT,
  "preset": flag_table.preset_flag(PRESETS),
  "method": Flag(
    Choice(METHODS),
    "tensor",
    "Attention over everything, over neighbours, with learned registers, or with Tensor Memory.",
  ),
  "mode": flag_table.mode_flag(flag_table.MODES),
  "init_from": flag_table.INIT_FROM,
  "seed": flag_table.SEED,
  "dataset": Flag(
    Choice(tuple(DATASETS)), "photographs", "Images to train on; photographs need no download."
  ),
  "data_dir": flag_table.DATA_DIR,
  "data_path": Flag(TEXT, None, "Folder of --dataset=folder."),
}
MASKING = {
  "mask_ratio": Flag(Number(0, 1, open_low=True), 0.75, "Share of the patches that is hidden."),
  "order": Flag(Choice(ORDERS), ORDERS[0], "In which the memory gets the visible patches."),
}
MODEL = {
  **flag_table.BLOCKS,
  **vision_flags.PATCHES,
  "reach": Flag(Integer(1), 1, "Patches that local attention reaches, along either axis."),
  "decoder_features": Flag(Integer(1), None, "Width of the decoder."),
  "decoder_heads": Flag(Integer(1), 4, "Its attention heads."),
  "decoder_layers": Flag(Integer(1), None, "Its blocks."),
  **flag_table.COMPUTE,
}

# One column per preset; a flag given on the command line overrides its row.
#
# cpu    Minutes on two CPU cores.
# smoke  Seconds: does everything work?
# small, base, large  The sizes of arXiv 2605.27686, for an accelerator.
TABLE: dict[str, tuple[Any, ...]] = {
  # Model.
  "num_layers": (3, 2, 4, 6, 12),
  "features": (96, 16, 192, 384, 768),
  "num_heads": (4, 2, 4, 6, 12),
  "image_size": (64, 16, 224, 224, 224),
  "patch_size": (8, 4, 16, 16, 16),
  "decoder_features": (64, 16, 128, 192, 384),
  "decoder_layers": (1, 1, 2, 2, 4),
  "dropout": (0.0, 0.1, 0.0, 0.0, 0.0),
  # Memory.
  "dynamics": ("selective", "selective", "convlstm", "convlstm", "convlstm"),
  "memory_channels": (32, 4, 32, 32, 64),
  "grid": ((4, 4, 4), (2, 2, 2), (6, 6, 6), (6, 6, 6), (8, 8, 8)),
  "read_heads": (1, 1, 1, 1, 1),
  "chunk_size": (1, 2, 16, 16, 16),
  "forget_bias": (3.0, 3.0, 0.0, 0.0, 0.0),
  "memory_every_n_layers": (3, 1, 2, 2, 2),
  # Optimisation.
  "batch_size": (32, 4, 256, 256, 256),
  "learning_rate": (1e-3, 1e-3, 6e-4, 6e-4, 3e-4),
  "steps": (1500, 6, 40_000, 40_000, 40_000),
  "warmup_steps": (100, 2, 2000, 2000, 2000),
  # Rhythm.
  "log_every": (20, 2, 50, 50, 50),
  "eval_every": (250, 3, 1000, 1000, 1000),
  "checkpoint_every": (250, 3, 1000, 1000, 1000),
}


def build(values: dict[str, Any]) -> ImageRun:
  """Makes the configuration from every flag's value.

  Args:
    values: value of every flag by name.

  Returns:
    The configuration.

  Raises:
    FlagError: if values do not fit together.
    ValueError: if the model refuses them.
  """
  model = vision_flags.model(AutoencoderConfig, values)
  if model.image_size < SSIM_FILTER:
    raise FlagError(
      f"--image_size={model.image_size}: below {SSIM_FILTER}, the edge of what SSIM looks at"
    )
  hidden = round(model.patches * values["mask_ratio"])
  if not 0 < hidden < model.patches:
    raise FlagError(
      f"--mask_ratio={values['mask_ratio']}: hides {hidden} of {model.patches} patches, expected"
      " some but not all"
    )
  return vision_flags.run(ImageRun, ImageDataConfig, model, values)


COMMAND = vision_flags.command(
  "image", {"Task": TASK, "Masking": MASKING, "Model": MODEL}, build, PRESETS, TABLE
)
