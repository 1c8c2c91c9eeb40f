"""What a run needs to know, as frozen dataclasses. Each command makes its own from its flags."""

import dataclasses
from pathlib import Path
from typing import Any

from tmem.masked_autoencoder import AutoencoderConfig
from tmem.models import LanguageConfig
from tmem.video_models import VideoConfig


@dataclasses.dataclass(frozen=True)
class DataConfig:
  """Which text.

  Attributes:
    dataset: name of a dataset.
    data_dir: folder of downloaded datasets, or None for the default place.
    data_path: file or folder of `dataset="text"`, or None.
    tokenizer: "byte", "char", "word", or None for the dataset's usual one.
    vocabulary: "standard" or "reference".
  """

  dataset: str
  data_dir: str | None
  data_path: str | None
  tokenizer: str | None
  vocabulary: str = "standard"


@dataclasses.dataclass(frozen=True)
class StreamConfig:
  """How the text of a run is cut, and what crosses the cuts.

  Attributes:
    carry_state: whether training batches go on where the last ones stopped: contiguous segments of
      parallel streams, with memories and attention's pasts handed on.
    tbptt: segments of `max_length` tokens in a step, through all of which gradients flow.
    packing: whether documents that share a row or stream do not see one another.
    protocol: of evaluations: "windows", each from an empty memory, or "stream", one pass.
  """

  carry_state: bool = False
  tbptt: int = 1
  packing: bool = False
  protocol: str = "windows"


@dataclasses.dataclass(frozen=True)
class OptimConfig:
  """AdamW with linear warm-up and cosine decay.

  Attributes:
    learning_rate: peak learning rate, reached after the warm-up.
    warmup_steps: steps of linear warm-up.
    steps: all steps, including the warm-up; the cosine ends here.
    final_lr_fraction: learning rate at the end as a fraction of the peak.
    weight_decay: decoupled weight decay of matrices.
    clip_norm: largest global gradient norm; 0 turns clipping off.
    b1: decay of the first moment.
    b2: decay of the second moment.
    accumulate: micro-batches per step.
    coordinate_lr_factor: learning rate of the memory's coordinate heads over that of the rest.
  """

  learning_rate: float
  warmup_steps: int
  steps: int
  final_lr_fraction: float = 0.1
  weight_decay: float = 0.1
  clip_norm: float = 1.0
  b1: float = 0.9
  b2: float = 0.99
  accumulate: int = 1
  coordinate_lr_factor: float = 1.0


@dataclasses.dataclass(frozen=True)
class RunConfig:
  """How a run proceeds and what it leaves behind.

  Attributes:
    workdir: where everything is written.
    seed: seed of parameters, data order and dropout.
    batch_size: global batch size in sequences.
    steps: all steps.
    preset: name of the preset it started from, if any.
    eval_every: steps between evaluations on the validation split.
    eval_tokens: tokens, images or clips of the validation split that those evaluations read; 0
      means all. The final result is always of the whole split.
    log_every: steps between lines of metrics.jsonl.
    checkpoint_every: steps between checkpoints.
    keep: newest checkpoints to keep (the best one is kept besides).
    patience: evaluations without improvement before the run stops; 0 means never.
    max_skipped_steps: the run stops when more steps than this were not finite.
    stop_at: step at which this process saves and ends, as if interrupted; 0 means never.
    checkpoint: what to use of what was trained: a run or one of its checkpoints; None: the best
      checkpoint in `workdir`.
    init_from: run, or one of its checkpoints, whose parameters training starts from; None: from
      random ones.
    mesh: sizes of the mesh axes (data, fsdp, model); one of them may be -1.
    profile: first and last step that are traced; None: none.
    dry_run: whether to say what a step needs, and to train nothing.
  """

  workdir: Path
  seed: int
  batch_size: int
  steps: int
  preset: str | None = None
  eval_every: int = 100
  eval_tokens: int = 0
  log_every: int = 10
  checkpoint_every: int = 100
  keep: int = 2
  patience: int = 0
  max_skipped_steps: int = 10
  stop_at: int = 0
  checkpoint: Path | None = None
  init_from: Path | None = None
  mesh: tuple[int, int, int] = (-1, 1, 1)
  profile: tuple[int, int] | None = None
  dry_run: bool = False


@dataclasses.dataclass(frozen=True)
class SampleConfig:
  """How text is generated.

  Attributes:
    prompt: text to continue, or None for the start of the validation text, or of what was loaded.
    load_state: file of a stream to go on from, or None.
    save_state: file to write the stream to in the end, or None.
    temperature: 0 takes the likeliest token, 1 samples from the model's distribution.
    top_k: sample among the k likeliest tokens; 0 means all.
    tokens: number of tokens to generate.
  """

  prompt: str | None
  load_state: str | None
  save_state: str | None
  temperature: float
  top_k: int
  tokens: int


@dataclasses.dataclass(frozen=True)
class LanguageRun:
  """Everything `train.language` needs.

  Attributes:
    mode: "train", "eval", "score" or "generate".
    input: text file of the mode "score", or None.
    data: which text.
    stream: how it is cut.
    model: the model; its vocab_size is a placeholder until the text is read.
    optim: the optimizer.
    run: how the run proceeds.
    sample: how text is generated.
    flags: the value of every flag, as JSON: enough to run it again.
  """

  mode: str
  input: str | None
  data: DataConfig
  stream: StreamConfig
  model: LanguageConfig
  optim: OptimConfig
  run: RunConfig
  sample: SampleConfig
  flags: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class ImageDataConfig:
  """Which images, and what of them is hidden.

  Attributes:
    dataset: "photographs", "cub" or "folder".
    data_dir: folder of downloaded datasets, or None.
    data_path: folder of `dataset="folder"`, or None.
    mask_ratio: share of the patches that training hides, in (0, 1).
    order: of the visible patches: "raster" or "random".
  """

  dataset: str
  data_dir: str | None
  data_path: str | None
  mask_ratio: float
  order: str


@dataclasses.dataclass(frozen=True)
class ImageRun:
  """Everything `train.image` needs.

  Attributes:
    mode: "train" or "eval".
    data: which images.
    model: the model.
    optim: the optimizer.
    run: how the run proceeds.
    flags: the value of every flag, as JSON: enough to run it again.
  """

  mode: str
  data: ImageDataConfig
  model: AutoencoderConfig
  optim: OptimConfig
  run: RunConfig
  flags: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class VideoDataConfig:
  """Which videos, and what training sees of them.

  Attributes:
    dataset: "digits", "ucf101" or "folder".
    data_dir: folder of downloaded datasets, or None.
    data_path: folder of `dataset="folder"`, or None.
    split: which of the official splits of UCF-101, 1 to 3.
    allow_missing: whether clips that its lists name may be absent.
    blank_frames: share of a clip's frames that training does not see, in [0, 1).
    label_smoothing: weight of the loss that is on all classes alike, in [0, 1).
    encoder: run of `train.image` whose encoder sees the frames, or None.
  """

  dataset: str
  data_dir: str | None
  data_path: str | None
  split: int = 1
  allow_missing: bool = False
  blank_frames: float = 0.0
  label_smoothing: float = 0.0
  encoder: str | None = None


@dataclasses.dataclass(frozen=True)
class VideoRun:
  """Everything `train.video` needs.

  Attributes:
    mode: "train", "eval" or "online".
    input: video of the mode "online", or None.
    every: of which every so manieth frame is watched.
    data: which videos.
    model: the model; its classes are a placeholder until the videos are found.
    optim: the optimizer.
    run: how the run proceeds.
    flags: the value of every flag, as JSON: enough to run it again.
  """

  mode: str
  input: str | None
  every: int
  data: VideoDataConfig
  model: VideoConfig
  optim: OptimConfig
  run: RunConfig
  flags: dict[str, Any]
