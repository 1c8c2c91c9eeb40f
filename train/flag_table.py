"""Every flag of `train.language`, by group: how it is parsed, its default, its help."""

from absl import flags

import tmem
from data.text import DATASETS, TOKENIZERS
from tmem.decoder import METHODS
from train.parsers import Choice, Grid, Integer, MeshSizes, Number, Remat
from train.presets import PRESETS

MODES = ("train", "eval", "generate")
_MEMORY = tmem.MemoryConfig()
_TEXT = flags.ArgumentParser()

# name: (parser, default where no preset sets it, help)
TASK = {
  "workdir": (_TEXT, None, "Folder of the run: everything is written there. Required."),
  "preset": (Choice(PRESETS), PRESETS[0], "Set of defaults; those shown here are quickstart's."),
  "method": (
    Choice(tuple(METHODS)),
    None,
    "Attention over everything or a window, with or without Tensor Memory.",
  ),
  "mode": (Choice(MODES), "train", "Train (or resume), evaluate the best checkpoint, or generate."),
  "seed": (Integer(0, 2**31 - 1), 0, "Seed of parameters, data order, dropout and sampling."),
  "dataset": (Choice(tuple(DATASETS)), None, "Text to train on; stdlib needs no download."),
  "data_dir": (_TEXT, None, "Folder of downloaded datasets; without it, $TMEM_DATA_DIR."),
  "data_path": (_TEXT, None, "File or folder of --dataset=text."),
  "tokenizer": (Choice(TOKENIZERS), None, "Default: the dataset's usual one."),
}
MODEL = {
  "num_layers": (Integer(1), None, "Transformer blocks."),
  "features": (Integer(1), None, "Width of the model."),
  "num_heads": (Integer(1), None, "Attention heads; they divide --features."),
  "mlp_features": (Integer(0), 0, "Width of the MLP; 0 means four times --features."),
  "max_length": (Integer(1), None, "Tokens per training sequence."),
  "window": (Integer(1), None, "Tokens a query sees, itself included, in the local methods."),
  "dropout": (Number(0, 1), None, "Dropout rate."),
  "dtype": (Choice(("float32", "bfloat16")), "float32", "Compute type; parameters are float32."),
}
MEMORY = {
  "memory_channels": (Integer(1), None, "Features per voxel."),
  "grid": (Grid(), None, "Voxel grid, depth, height, width."),
  "chunk_size": (Integer(1), None, "Tokens per memory step."),
  "forget_bias": (Number(), None, "Start value of the forget gate's bias."),
  "read_query": (
    Choice(("first", "token")),
    _MEMORY.read_query,
    "Who reads: the chunk's first token for all, or each token.",
  ),
  "sigma_scale": (Number(0, open_low=True), _MEMORY.sigma_scale, "Factor on the write's spread."),
  "sigma_min": (Number(0, open_low=True), _MEMORY.sigma_min, "Lower bound of the spread."),
  "sigma_max": (Number(0, open_low=True), _MEMORY.sigma_max, "Upper bound of the spread."),
  "memory_implementation": (
    Choice(("fast", "plain")),
    "fast",
    "Hand-written backward pass, or autodiff of the plain scan.",
  ),
  "remat": (Remat(), False, "Recompute memory steps in the backward pass to save memory."),
  "memory_every_n_layers": (Integer(1), 1, "Every n-th block has memory."),
  "state_scope": (
    Choice(("layer", "depth")),
    "layer",
    "One state per block, or one handed from block to block (not causal).",
  ),
  "gate_init": (Number(), 0.0, "Start value of the fusion gate's logit."),
}
OPTIM = {
  "learning_rate": (Number(0, open_low=True), None, "Peak learning rate."),
  "warmup_steps": (Integer(0), None, "Steps of linear warm-up; a cosine follows."),
  "final_lr_fraction": (Number(0, 1.000001), 0.1, "Final learning rate over the peak."),
  "steps": (Integer(1), None, "Steps in all; the cosine ends there."),
  "batch_size": (Integer(1), None, "Sequences per step, over all devices."),
  "accumulate": (Integer(1), 1, "Micro-batches per step; they divide --batch_size."),
  "weight_decay": (Number(0), 0.1, "Decoupled weight decay, on matrices only."),
  "clip_norm": (Number(0), 1.0, "Largest gradient norm; 0 turns clipping off."),
  "b1": (Number(0, 1), 0.9, "AdamW: decay of the first moment."),
  "b2": (Number(0, 1), 0.99, "AdamW: decay of the second moment."),
}
RUN = {
  "log_every": (Integer(1), None, "Steps between lines of metrics.jsonl."),
  "eval_every": (Integer(1), None, "Steps between evaluations on the validation split."),
  "eval_tokens": (
    Integer(0),
    None,
    "Tokens those evaluations read, 0 for all; the final result is always of the whole split.",
  ),
  "checkpoint_every": (Integer(1), None, "Steps between checkpoints."),
  "keep": (Integer(1), 2, "Newest checkpoints to keep, besides the best."),
  "patience": (Integer(0), 0, "Evaluations without improvement before stopping; 0 means never."),
  "max_skipped_steps": (Integer(0), 10, "Stop when more steps than this were not finite."),
  "stop_at": (Integer(0), 0, "Save and end at this step, to be resumed; 0 means never."),
  "mesh": (MeshSizes(), "data:-1,fsdp:1", "Devices per mesh axis."),
}
SAMPLE = {
  "prompt": (
    _TEXT,
    None,
    "Text to continue with --mode=generate; without it, the start of the validation text.",
  ),
  "temperature": (Number(0), 0.8, "0 takes the likeliest token."),
  "top_k": (Integer(0), 0, "Sample among the k likeliest tokens; 0 means all."),
  "sample_tokens": (Integer(1), None, "Tokens to generate."),
}
SWITCHES = {
  "allow_future_leak": "Allow --state_scope=depth although it lets tokens see later ones.",
  "debug": "Show the stack trace of an error.",
}
GROUPS = {
  "Task": TASK,
  "Model": MODEL,
  "Memory": MEMORY,
  "Optimisation": OPTIM,
  "Run": RUN,
  "Generation": SAMPLE,
}
VALUES = {**TASK, **MODEL, **MEMORY, **OPTIM, **RUN, **SAMPLE}

# Belong to one process, not to the run: never stored.
OF_THE_PROCESS = ("workdir", "mode", "debug", "stop_at")
# May differ when a run is resumed; everything else decides what is computed. `steps` does: the
# learning rate of every step depends on it.
MAY_CHANGE = (
  *OF_THE_PROCESS,
  "data_dir",
  "data_path",
  "memory_implementation",
  "remat",
  "log_every",
  "checkpoint_every",
  "keep",
  "max_skipped_steps",
  "mesh",
  *SAMPLE,
)
# What a trained model does not depend on, by what it is used for.
USE_MAY_CHANGE = {"train": (), "eval": ("batch_size", "seed"), "generate": ("seed",)}
