import json
import os
import random
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

from train import cli

# As the command does, and before jax reads it: processes of their own find what this one compiled.
cli.prepare()

ROOT = Path(__file__).parents[2]

# One block of everything: seconds to compile, milliseconds to run.
SIZES = {
  "preset": "smoke",
  "dataset": "text",
  "num_layers": 1,
  "features": 8,
  "num_heads": 2,
  "max_length": 8,
  "window": 4,
  "memory_channels": 2,
  "grid": "2,2,2",
  "chunk_size": 2,
  "dropout": 0.2,
  "batch_size": 4,
  "steps": 8,
  "warmup_steps": 2,
  "log_every": 1,
  "eval_every": 4,
  "eval_tokens": 64,
  "checkpoint_every": 4,
  "sample_tokens": 12,
}


@pytest.fixture(scope="session", autouse=True)
def compilation_cache(tmp_path_factory):
  """Programs that several tests compile are compiled once."""
  folder = str(tmp_path_factory.mktemp("compiled"))
  jax.config.update("jax_compilation_cache_dir", folder)
  jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
  yield folder
  jax.config.update("jax_compilation_cache_dir", None)


@pytest.fixture(scope="session")
def text_file(tmp_path_factory):
  words = ["grid", "cell", "state", "read", "write", "token", "query", "gate"]
  rng = random.Random(0)
  path = tmp_path_factory.mktemp("text") / "text.txt"
  path.write_text("\n".join(" ".join(rng.choices(words, k=9)) for _ in range(300)) + "\n")
  return path


@pytest.fixture(scope="session")
def options(text_file):
  """Command-line flags of a tiny run."""

  def make(workdir, **changes):
    values = {"workdir": workdir, "data_path": text_file, **SIZES, **changes}
    return [f"--{name}={value}" for name, value in values.items() if value is not None]

  return make


@pytest.fixture(scope="session")
def run(options):
  """Runs `train.language` in this process."""
  from train import language

  def call(workdir, **changes):
    language.main(["language", *options(workdir, **changes)])
    return workdir

  return call


@pytest.fixture(scope="session")
def bare():
  """Runs `train.language` in this process with exactly these flags."""
  from train import language

  def call(**values):
    language.main(["language", *(f"--{name}={value}" for name, value in values.items())])

  return call


@pytest.fixture(scope="session")
def start(compilation_cache):
  """Starts a module in a process of its own, with more environment variables."""
  shared = {
    "JAX_PLATFORMS": "cpu",
    "JAX_COMPILATION_CACHE_DIR": compilation_cache,
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
  }

  def call(module, *arguments, **more):
    environment = {**os.environ, **shared, **more}
    return subprocess.Popen(
      [sys.executable, "-m", module, *arguments],
      cwd=ROOT,
      env=environment,
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
    )

  return call


@pytest.fixture(scope="session")
def config(options, tmp_path_factory):
  """The configuration of the tiny run, with changed flags."""
  from train import flags
  from train.language_flags import COMMAND

  def make(**changes):
    workdir = tmp_path_factory.mktemp("w") / "x"
    return flags.parse(COMMAND, ["language", *options(workdir, **changes)])

  return make


@pytest.fixture(scope="session")
def task(config):
  """The tiny run as a task, with changed flags."""
  from train import language_task

  def make(**changes):
    made = config(**changes)
    return language_task.make_task(made, language_task.load_corpus(made.data)), made

  return make


@pytest.fixture(scope="session")
def finished(run, tmp_path_factory):
  """A finished run; tests do not change it."""
  return run(tmp_path_factory.mktemp("finished") / "run")


@pytest.fixture(scope="session")
def records():
  """Reads the records of metrics.jsonl without what a clock measured."""

  def read(workdir):
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    timed = ("_per_second", "data_wait")
    return [{k: v for k, v in json.loads(line).items() if not k.endswith(timed)} for line in lines]

  return read


@pytest.fixture(scope="session")
def saved():
  """Reads a checkpoint: every array by path, and where the run was."""

  def read(workdir, step):
    folder = (workdir / "checkpoints" / f"{step:08d}").absolute()
    items = [item for item in ("params", "optimizer", "carry") if (folder / item).exists()]
    args = ocp.args.Composite(
      **{item: ocp.args.StandardRestore() for item in items}, progress=ocp.args.JsonRestore()
    )
    found = ocp.Checkpointer(ocp.CompositeCheckpointHandler()).restore(folder, args=args)
    arrays = {
      f"{item}/{name}": np.asarray(value) for item in items for name, value in found[item].items()
    }
    progress = {k: v for k, v in found["progress"]["progress"].items() if "seconds" not in k}
    progress.pop("train_items")  # measured only while nothing compiles
    return {"arrays": arrays, "progress": progress}

  return read


@pytest.fixture(scope="session")
def assert_same_model():
  """Compares two saved models, or a saved one and one in memory, bit for bit."""
  from tmem import interop

  def check(*models):
    first, second = (
      interop.flat_params(interop.load_model(model) if isinstance(model, Path) else model)
      for model in models
    )
    assert first.keys() == second.keys()
    for name, value in first.items():
      np.testing.assert_array_equal(value, second[name], err_msg=name)

  return check


@pytest.fixture(scope="session")
def traces():
  """Times and sizes of everything below a folder."""

  def read(folder):
    stats = {str(path): path.stat() for path in [folder, *sorted(folder.rglob("*"))]}
    return {path: (stat.st_mtime_ns, stat.st_size) for path, stat in stats.items()}

  return read
