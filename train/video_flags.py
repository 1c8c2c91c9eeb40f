"""The flags of `train.video`, their presets, and the configuration they make."""

from typing import Any

from data.video_batches import Missing
from tmem.video_models import METHODS, VideoConfig
from train import flag_table, vision_flags
from train.command import Flag
from train.config import VideoDataConfig, VideoRun
from train.errors import FlagError
from train.parsers import TEXT, Choice, Integer, Number

DATASETS = ("digits", "ucf101", "folder")
PRESETS = ("cpu", "smoke", "paper")
TASK = {
  "workdir": flag_table.WORKDIR,
  "checkpoint": flag_table.CHECKPOINT,
  "preset": flag_table.preset_flag(PRESETS),
  "method": Flag(
    Choice(METHODS),
    "tensor",
    "Attention over all frames, or frame by frame with learned registers or Tensor Memory.",
  ),
  "mode": flag_table.mode_flag(
    {**flag_table.MODES, "online": "say a class after every frame of a video"}
  ),
  "init_from": flag_table.INIT_FROM,
  "seed": flag_table.SEED,
  "input": Flag(TEXT, None, "Video of --mode=online."),
  "every": Flag(Integer(1), 1, "Of that video, watch every so manieth frame."),
}
DATA = {
  "dataset": Flag(
    Choice(DATASETS), DATASETS[0], "Videos to train on; moving digits need no download."
  ),
  "data_dir": flag_table.DATA_DIR,
  "data_path": Flag(TEXT, None, "Folder of --dataset=folder, with a folder of videos per class."),
  "split": Flag(Integer(1, 3), 1, "Of the official splits of UCF-101."),
  "num_frames": Flag(Integer(1), None, "Frames of a clip, at equal distances."),
  "blank_frames": Flag(Number(0, 1), 0.0, "Share of a clip's frames not observed in training."),
  "encoder": Flag(
    TEXT,
    None,
    "Run of train.image whose encoder sees the frames; it is not trained, its features are cached,"
    " and --image_size and --patch_size are its own.",
  ),
  "label_smoothing": Flag(Number(0, 1), 0.0, "Weight of the loss that is on all classes alike."),
}
MODEL = {**flag_table.BLOCKS, **vision_flags.PATCHES, **flag_table.COMPUTE}

# One column per preset; a flag given on the command line overrides its row.
#
# cpu    Minutes on two CPU cores.
# smoke  Seconds: does everything work?
# paper  The sizes of arXiv 2605.27686, for an accelerator: 50 epochs of UCF-101's first split.
TABLE: dict[str, tuple[Any, ...]] = {
  # Data.
  "num_frames": (8, 4, 8),
  "blank_frames": (0.25, 0.0, 0.0),
  # Model.
  "num_layers": (3, 2, 12),
  "features": (96, 16, 384),
  "num_heads": (4, 2, 6),
  "image_size": (32, 16, 224),
  "patch_size": (8, 8, 16),
  "dropout": (0.0, 0.1, 0.1),
  # Memory.
  "dynamics": ("selective", "selective", "convlstm"),
  "memory_channels": (32, 4, 64),
  "grid": ((4, 4, 4), (2, 2, 2), (8, 8, 8)),
  "read_heads": (1, 1, 1),
  "chunk_size": (4, 2, 8),
  "forget_bias": (3.0, 3.0, 0.0),
  "gate_init": (0.0, -2.0, -2.0),
  "memory_every_n_layers": (1, 1, 1),
  # Optimisation.
  "batch_size": (32, 4, 16),
  "learning_rate": (1e-3, 1e-3, 3e-4),
  "steps": (1200, 6, 26_500),
  "warmup_steps": (100, 2, 1500),
  # Rhythm.
  "log_every": (20, 2, 50),
  "eval_every": (200, 3, 600),
  "checkpoint_every": (200, 3, 600),
}


def build(values: dict[str, Any]) -> VideoRun:
  """Makes the configuration from every flag's value.

  Args:
    values: value of every flag by name.

  Returns:
    The configuration; the number of classes is a placeholder until the videos are found.

  Raises:
    FlagError: if values do not fit together.
    ValueError: if the model refuses them.
  """
  if values["mode"] == "online" and not values["input"]:
    raise FlagError("--input: missing, --mode=online needs a video")
  share, frames = values["blank_frames"], values["num_frames"]
  if share and not 0 < share * frames + 0.5 < frames:
    raise FlagError(f"--blank_frames={share}: hides all of --num_frames={frames} frames")
  if share and not Missing(frames=share).count(frames):
    raise FlagError(f"--blank_frames={share}: hides none of --num_frames={frames} frames; use 0")
  for name in ("image_size", "patch_size") if values["encoder"] else ():
    if values[name] != COMMAND.values(values["preset"])[name]:
      raise FlagError(f"--{name}={values[name]}: with --encoder it is the encoder's, leave it out")
  model = vision_flags.model(VideoConfig, values, classes=1)
  more = {"input": values["input"], "every": values["every"]}
  return vision_flags.run(VideoRun, VideoDataConfig, model, values, **more)


COMMAND = vision_flags.command(
  "video",
  {"Task": TASK, "Data": DATA, "Model": MODEL},
  build,
  PRESETS,
  TABLE,
  switches={"allow_missing": "Use the clips that are there, where lists of UCF-101 name more."},
  may_change=("input", "every"),
)
