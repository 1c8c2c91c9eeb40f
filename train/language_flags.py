"""The flags of `train.language`, their presets, and the configuration they make."""

from typing import Any

from data.text import DATASETS, TOKENIZERS, VOCABULARIES
from tmem.decoder_config import METHODS
from tmem.models import LanguageConfig
from train import configure, flag_table
from train.command import Command, Flag, columns
from train.config import DataConfig, LanguageRun, SampleConfig, StreamConfig
from train.errors import FlagError
from train.parsers import TEXT, Choice, Integer, Number

PROTOCOLS = ("windows", "stream")
ORDERS = ("shuffled", "contiguous")
PRESETS = ("quickstart", "cpu", "smoke", "paper", "standard")
TASK = {
  "workdir": flag_table.WORKDIR,
  "checkpoint": flag_table.CHECKPOINT,
  "preset": flag_table.preset_flag(PRESETS),
  "method": Flag(
    Choice(tuple(METHODS)),
    None,
    "Attention over everything or a window; without memory, with slots, or with Tensor Memory.",
  ),
  "mode": flag_table.mode_flag(
    {**flag_table.MODES, "score": "score a text file", "generate": "generate"}
  ),
  "init_from": flag_table.INIT_FROM,
  "seed": flag_table.SEED,
  "dataset": Flag(Choice(tuple(DATASETS)), None, "Text to train on; stdlib needs no download."),
  "data_dir": flag_table.DATA_DIR,
  "data_path": Flag(TEXT, None, "File or folder of --dataset=text."),
  "tokenizer": Flag(Choice(TOKENIZERS), None, "Default: the dataset's usual one."),
  "vocabulary": Flag(
    Choice(VOCABULARIES),
    "standard",
    "Of words: all and ends of lines, or 30,000 as the paper's code; losses cannot be compared.",
  ),
}
STREAM = {
  "order": Flag(
    Choice(ORDERS), None, "Of training segments. Default: contiguous with --carry_state."
  ),
  "tbptt": Flag(Integer(1), 1, "Segments that gradients flow through, with --carry_state."),
  "protocol": Flag(
    Choice(PROTOCOLS),
    None,
    "Evaluation: windows from an empty memory, or one pass as a stream. Default: stream with"
    " --carry_state.",
  ),
}
MODEL = {
  **flag_table.BLOCKS,
  "max_length": Flag(Integer(1), None, "Tokens per training sequence."),
  "window": Flag(Integer(1), None, "Tokens a query sees, itself included, in the local methods."),
  "cache_length": Flag(
    Integer(0), None, "Tokens in front of a segment that method xl sees. Default: --max_length."
  ),
  **flag_table.COMPUTE,
}
SAMPLE = {
  "prompt": Flag(
    TEXT,
    None,
    "Text to continue with --mode=generate; without it, the start of the validation text.",
  ),
  "load_state": Flag(TEXT, None, "Stream to go on from with --mode=generate, before any --prompt."),
  "save_state": Flag(TEXT, None, "File for the stream in the end, with --mode=generate."),
  "input": Flag(TEXT, None, "Text file of any length to score, with --mode=score."),
  "temperature": Flag(Number(0), 0.8, "0 takes the likeliest token."),
  "top_k": Flag(Integer(0), 0, "Sample among the k likeliest tokens; 0 means all."),
  "sample_tokens": Flag(Integer(1), None, "Tokens to generate."),
}

# One column per preset; a flag given on the command line overrides its row.
#
# quickstart  Memory against its baseline in minutes on two CPU cores.
# cpu         One block more, trained twice as long.
# smoke       Seconds: does everything work?
# paper       The sizes and the memory of arXiv 2605.27686, one state per block (causal).
# standard    For an accelerator, like paper: WikiText-2 with what worked in small, regularised.
TABLE: dict[str, tuple[Any, ...]] = {
  "dataset": ("stdlib", "stdlib", "stdlib", "wikitext2", "wikitext2"),
  "method": ("tensor_local", "tensor_local", "tensor_local", "tensor_local", "tensor_local"),
  # Model.
  "num_layers": (2, 3, 2, 8, 8),
  "features": (128, 128, 32, 384, 384),
  "num_heads": (4, 4, 2, 8, 8),
  "max_length": (256, 256, 32, 512, 256),
  "window": (16, 16, 8, 64, 64),
  "dropout": (0.0, 0.0, 0.1, 0.2, 0.4),
  # Memory.
  "dynamics": ("selective", "selective", "selective", "convlstm", "selective"),
  "memory_channels": (128, 128, 4, 32, 256),
  "grid": ((2, 2, 2), (2, 2, 2), (2, 2, 2), (8, 8, 8), (2, 2, 2)),
  "read_heads": (4, 4, 2, 1, 4),
  "chunk_size": (1, 1, 2, 16, 1),
  "forget_bias": (3.0, 3.0, 3.0, 0.0, 3.0),
  "memory_every_n_layers": (2, 3, 1, 1, 4),
  # Optimisation.
  "batch_size": (8, 8, 4, 32, 32),
  "learning_rate": (2e-3, 2e-3, 1e-3, 3e-4, 6e-4),
  "steps": (600, 1200, 8, 10_000, 20_000),
  "warmup_steps": (100, 100, 2, 1000, 1000),
  # Rhythm.
  "log_every": (20, 20, 2, 50, 50),
  "eval_every": (150, 200, 4, 500, 500),
  "eval_tokens": (32_768, 65_536, 2048, 0, 0),
  "checkpoint_every": (150, 200, 4, 500, 500),
  # Generation.
  "sample_tokens": (300, 300, 40, 200, 200),
}


def build(values: dict[str, Any]) -> LanguageRun:
  """Makes the configuration from every flag's value.

  Args:
    values: value of every flag by name.

  Returns:
    The configuration.

  Raises:
    FlagError: if values do not fit together.
    ValueError: if the model refuses them.
  """
  optim = configure.optim_config(values)
  if values["mode"] == "score" and not values["input"]:
    raise FlagError("--input: missing, --mode=score needs a text file")
  if values["dataset"] == "text" and not values["data_path"]:
    raise FlagError("--data_path: missing, --dataset=text needs a file or a folder")
  model = configure.pick(
    LanguageConfig,
    values,
    vocab_size=1,
    mlp_features=values["mlp_features"] or None,
    memory=configure.memory_config(values),
    slots=configure.slot_config(values),
  )
  return LanguageRun(
    mode=values["mode"],
    input=values["input"],
    data=configure.pick(DataConfig, values, data_dir=configure.data_dir(values)),
    stream=stream_config(values, model),
    model=model,
    optim=optim,
    run=configure.run_config(values),
    sample=configure.pick(SampleConfig, values, tokens=values["sample_tokens"]),
    flags=configure.stored(values),
  )


def stream_config(values: dict[str, Any], model: LanguageConfig) -> StreamConfig:
  """How the text is cut; raises FlagError if the flags do not fit together."""
  carry, order = values["carry_state"], values["order"]
  if carry and order == "shuffled":
    raise FlagError(
      "--carry_state: segments in --order=shuffled do not follow one another, so there is nothing"
      " to carry; use --order=contiguous"
    )
  if model.method == "xl" and not carry:
    raise FlagError(
      "--method=xl: sees in front of its segment what is carried, and nothing is; add --carry_state"
    )
  if order == "contiguous" and not carry:
    raise FlagError("--order=contiguous: only for --carry_state, which it is the default of")
  if values["tbptt"] > 1 and not carry:
    raise FlagError(f"--tbptt={values['tbptt']}: without --carry_state a row is one segment")
  protocol = values["protocol"] or ("stream" if carry else "windows")
  if not model.causal and (carry or protocol == "stream"):
    raise FlagError(
      "--state_scope=depth: reads what later tokens write, and a stream has no end; leave"
      " --carry_state and --protocol=stream out"
    )
  return configure.pick(StreamConfig, values, protocol=protocol)


COMMAND = Command(
  name="language",
  groups={
    "Task": TASK,
    "Streams": STREAM,
    "Model": MODEL,
    "Memory": flag_table.MEMORY,
    "Optimisation": flag_table.OPTIM,
    "Run": flag_table.RUN,
    "Generation": SAMPLE,
  },
  build=build,
  switches={
    "carry_state": "Hand memories and attention's pasts on from segment to segment.",
    "packing": "Documents that share a row do not see one another.",
    "allow_future_leak": "Allow --state_scope=depth although it lets tokens see later ones.",
    **flag_table.DRY_RUN,
    **flag_table.SWITCHES,
  },
  presets=columns(PRESETS, TABLE),
  may_change=(*flag_table.MAY_CHANGE, "data_path", *SAMPLE),
  # What a trained model does not depend on.
  use_may_change={"eval": ("batch_size", "accumulate", "seed", "protocol"), "generate": ("seed",)},
  renamed=flag_table.RENAMED,
)
