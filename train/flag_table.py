"""The flags that commands share, by group. Each command chooses its own defaults and more flags."""

from collections.abc import Mapping, Sequence

import tmem
from tmem.config import COORDINATE_HEADS, DYNAMICS, IMPLEMENTATIONS, READ_QUERIES, UPDATES, WRITES
from tmem.slots import SlotConfig
from tmem.stack_config import STATE_SCOPES
from train.command import Flag
from train.parsers import TEXT, Boolean, Choice, Grid, Integer, MeshSizes, Number, Remat, Steps

_MEMORY = tmem.MemoryConfig()
_SLOTS = SlotConfig()

# Where and what for. A flag whose default is None has to get one from the command that uses it,
# unless it may stay without.
WORKDIR = Flag(
  TEXT,
  None,
  "Folder of the run: everything is written there. Required.",
  "the folder of the run, as in --workdir=runs/a",
)
CHECKPOINT = Flag(
  TEXT,
  None,
  "What was trained, to be used in place of --workdir: a run (its best checkpoint), or one of its"
  " checkpoints, as RUN/checkpoints/00000150.",
)
INIT_FROM = Flag(
  TEXT,
  None,
  "Run of the same model, or one of its checkpoints, whose parameters training starts from.",
)
SEED = Flag(Integer(0, 2**31 - 1), 0, "Seed of parameters, data order, dropout and sampling.")
DATA_DIR = Flag(TEXT, None, "Folder of downloaded datasets; without it, $TMEM_DATA_DIR.")
MODES = {"train": "Train (or resume)", "eval": "evaluate the best checkpoint"}


def mode_flag(modes: Mapping[str, str]) -> Flag:
  """The flag "mode".

  Args:
    modes: what each does, by name; "train" among them, which is the default.

  Returns:
    The flag.
  """
  *first, last = modes.values()
  return Flag(Choice(tuple(modes)), "train", f"{', '.join(first)}, or {last}.")


def preset_flag(presets: Sequence[str]) -> Flag:
  """The flag "preset".

  Args:
    presets: names of the presets, the usual one first.

  Returns:
    The flag.
  """
  return Flag(
    Choice(tuple(presets)),
    presets[0],
    f"Set of defaults; those shown here are {presets[0]}'s.",
  )


BLOCKS = {
  "num_layers": Flag(Integer(1), None, "Transformer blocks."),
  "features": Flag(Integer(1), None, "Width of the model."),
  "num_heads": Flag(Integer(1), None, "Attention heads; they divide --features."),
  "mlp_features": Flag(Integer(0), 0, "Width of the MLP; 0 means four times --features."),
}
COMPUTE = {
  "dropout": Flag(Number(0, 1), None, "Dropout rate."),
  "dtype": Flag(
    Choice(("float32", "bfloat16")), "float32", "Compute type; parameters are float32."
  ),
  "remat_blocks": Flag(
    Boolean(), False, "Recompute whole blocks in the backward pass: saves memory if there are many."
  ),
}
MEMORY = {
  "memory_channels": Flag(Integer(1), None, "Features per voxel."),
  "grid": Flag(Grid(), None, "Cells per axis of the voxel grid, one to four axes."),
  "chunk_size": Flag(Integer(1), None, "Tokens per memory step."),
  "forget_bias": Flag(Number(), None, "Start value of the forget gate's bias."),
  "read_query": Flag(
    Choice(READ_QUERIES),
    _MEMORY.read_query,
    "Who reads: the chunk's first token for all, or each token.",
  ),
  "dynamics": Flag(
    Choice(DYNAMICS),
    None,
    "What the gates see: write and state (flow moves the state first), write, or a vector.",
  ),
  "memory_update": Flag(
    Choice(UPDATES), _MEMORY.update, "Which cells a write changes: all, or a window around it."
  ),
  "write_window": Flag(Grid(), _MEMORY.window, "Cells per axis of that window."),
  "memory_write": Flag(
    Choice(WRITES), _MEMORY.write, "A Gaussian around the coordinate, or the nearest cell alone."
  ),
  "read_heads": Flag(Integer(1), None, "Places that a query reads."),
  "write_heads": Flag(Integer(1), _MEMORY.write_heads, "Places that a chunk writes."),
  "coordinate_heads": Flag(
    Choice(COORDINATE_HEADS), _MEMORY.coordinate_heads, "One for reads and writes, or two."
  ),
  "depthwise": Flag(
    Boolean(),
    _MEMORY.depthwise,
    "Whether the gates see a cell's neighbours; selective ones never do.",
  ),
  "sigma_scale": Flag(
    Number(0, open_low=True), _MEMORY.sigma_scale, "Factor on the write's spread."
  ),
  "sigma_min": Flag(Number(0, open_low=True), _MEMORY.sigma_min, "Lower bound of the spread."),
  "sigma_max": Flag(Number(0, open_low=True), _MEMORY.sigma_max, "Upper bound of the spread."),
  "memory_implementation": Flag(
    Choice(IMPLEMENTATIONS),
    _MEMORY.implementation,
    "Hand-written backward pass, or autodiff of the plain scan.",
  ),
  "remat": Flag(Remat(), False, "Recompute memory steps in the backward pass to save memory."),
  "slot_count": Flag(Integer(1), _SLOTS.count, "Slots of the methods with slots."),
  "memory_every_n_layers": Flag(Integer(1), 1, "Every n-th block has memory."),
  "state_scope": Flag(
    Choice(STATE_SCOPES),
    "layer",
    "One state per block, or one handed from block to block (not causal).",
  ),
  "gate_init": Flag(Number(), 0.0, "Start value of the fusion gate's logit."),
}
OPTIM = {
  "learning_rate": Flag(Number(0, open_low=True), None, "Peak learning rate."),
  "warmup_steps": Flag(Integer(0), None, "Steps of linear warm-up; a cosine follows."),
  "final_lr_fraction": Flag(Number(0, 1.000001), 0.1, "Final learning rate over the peak."),
  "steps": Flag(Integer(1), None, "Steps in all; the cosine ends there."),
  "batch_size": Flag(Integer(1), None, "Sequences per step, over all devices."),
  "accumulate": Flag(Integer(1), 1, "Micro-batches per step; they divide --batch_size."),
  "weight_decay": Flag(Number(0), 0.1, "Decoupled weight decay, on matrices only."),
  "clip_norm": Flag(Number(0), 1.0, "Largest gradient norm; 0 turns clipping off."),
  "b1": Flag(Number(0, 1), 0.9, "AdamW: decay of the first moment."),
  "b2": Flag(Number(0, 1), 0.99, "AdamW: decay of the second moment."),
  "coordinate_lr_factor": Flag(
    Number(0), 1.0, "Learning rate of the memory's coordinate heads over that of the rest."
  ),
}
RUN = {
  "log_every": Flag(Integer(1), None, "Steps between lines of metrics.jsonl."),
  "eval_every": Flag(Integer(1), None, "Steps between evaluations on the validation split."),
  "eval_tokens": Flag(
    Integer(0),
    None,
    "Tokens, images or clips those evaluations read, 0 for all; the final result is always of the"
    " whole split.",
  ),
  "checkpoint_every": Flag(Integer(1), None, "Steps between checkpoints."),
  "keep": Flag(Integer(1), 2, "Newest checkpoints to keep, besides the best."),
  "patience": Flag(
    Integer(0), 0, "Evaluations without improvement before stopping; 0 means never."
  ),
  "max_skipped_steps": Flag(Integer(0), 10, "Stop when more steps than this were not finite."),
  "stop_at": Flag(Integer(0), 0, "Save and end at this step, to be resumed; 0 means never."),
  "mesh": Flag(MeshSizes(), "data:-1,fsdp:1,model:1", "Devices per mesh axis."),
  "profile": Flag(
    Steps(), None, "Steps that are traced, as in 20:25: WORKDIR/profile is for Perfetto and XProf."
  ),
}
SWITCHES = {"debug": "Show the stack trace of an error."}
DRY_RUN = {
  "dry_run": "Print what a training step needs of the devices of --mesh, and what they tell one"
  " another; nothing is run."
}

# Flags of MEMORY that are not named like the fields they set, by field.
RENAMED = {
  "channels": "memory_channels",
  "update": "memory_update",
  "window": "write_window",
  "write": "memory_write",
  "implementation": "memory_implementation",
}
# Belong to one process, not to the run: never stored.
OF_THE_PROCESS = (
  "workdir",
  "checkpoint",
  "mode",
  "debug",
  "dry_run",
  "stop_at",
  "profile",
  "jobs",
  "worker",
)
# May differ when a run is resumed; everything else decides what is computed. `steps` does: the
# learning rate of every step depends on it.
MAY_CHANGE = (
  *OF_THE_PROCESS,
  "data_dir",
  "memory_implementation",
  "remat",
  "remat_blocks",
  "log_every",
  "checkpoint_every",
  "keep",
  "max_skipped_steps",
  "mesh",
)
