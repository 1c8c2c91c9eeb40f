"""Kills processes at random moments and starts them again, until all have come to their end.

  python -m tests.train.kill_driver trainings FOLDER TEXT [KILLS [SEED]]
  python -m tests.train.kill_driver clips FOLDER VIDEOS [KILLS [SEED]]

Each is a fork of this process, which has imported everything and started nothing: so 20 kills take
seconds. Trainings are `train.language` with a model that takes no time to trace; clips are those
of a folder, decoded into the data cache. The first process is not disturbed (`FOLDER/whole`); what
the others leave (`FOLDER/run_0`, ...) has to equal it. Prints, as JSON, how often each kind of
moment was hit and which runs there are.
"""

import collections
import dataclasses
import itertools
import json
import os
import pathlib
import random
import signal
import sys
import threading
import traceback

import jax
import numpy as np
from flax import nnx

from data import stored_arrays, video_clips, video_sources
from train import assembly, checkpoint, cli, language, language_task, loop

FLAGS = {
  "preset": "smoke",
  "dataset": "text",
  "max_length": 8,
  "window": 4,
  "batch_size": 4,
  "steps": 16,
  "warmup_steps": 2,
  "log_every": 1,
  "eval_every": 4,
  "eval_tokens": 0,
  "checkpoint_every": 2,
}
# The kinds of moments, and of how many of each the one to hit is drawn: few enough for most kills
# to come before the end.
KINDS = {
  "step": 3,  # a step that the device computes
  "evaluation": 2,  # a batch of one
  "save": 64,  # a file or folder below checkpoints/ that is made, renamed or removed
  "writing": 40,  # milliseconds since the first save began
  "files": 8,  # the same as of "save" of everything else in the workdir
  "cache": 11,  # and of the data cache, which is made for the purpose
}
KINDS_OF_CLIPS = {
  "clip": 10,  # a clip is decoded
  "cache": 9,  # as above
}
CHANGES = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate")


class Bigram(nnx.Module):
  """Tells the next token from the one before it, of which some are not shown in training."""

  def __init__(self, vocab_size, rngs):
    self.logits = nnx.Param(0.1 * jax.random.normal(rngs.params(), (vocab_size, vocab_size)))

  def __call__(self, tokens, key=None):
    if key is not None:
      tokens = tokens * jax.random.bernoulli(key, 0.8, tokens.shape)
    return self.logits[...][tokens]


def make_task(config, corpus, make=language_task.make_task):
  return dataclasses.replace(
    make(config, corpus),
    build=lambda rngs: Bigram(corpus.vocab_size, rngs),
    describe=lambda model: {"method": "bigram"},
    watch=lambda model: {},
    export=None,
  )


class Killer:
  """Counts moments of each kind, and ends this process at one of them."""

  def __init__(self, workdir, cache, kind=None, number=0):
    self.workdir, self.cache = f"{workdir}{os.sep}", f"{cache}{os.sep}"
    self.kind, self.number = kind, number
    self.counts, self.lock = collections.Counter(), threading.Lock()

  def install(self):
    sys.addaudithook(self._audit)
    make_step, make_evaluate, save = (
      assembly.make_train_step,
      loop.make_evaluate,
      checkpoint.Checkpoints.save,
    )

    def killing_step(*arguments, **options):
      step = make_step(*arguments, **options)

      def call(state, batch):
        result = step(state, batch)  # under way
        self.count("step")
        return result

      return call

    def killing_evaluate(*arguments):
      evaluate = make_evaluate(*arguments)
      return lambda params, batches, *stop: evaluate(params, map(self._batch, batches), *stop)

    def killing_save(checkpoints, *arguments):
      if self.kind == "writing":
        threading.Timer(self.number / 1000, self._kill).start()
      return save(checkpoints, *arguments)

    decode = video_clips._frames_or_reason

    def killing_decode(job):
      frames = decode(job)
      self.count("clip")
      return frames

    video_clips._frames_or_reason = killing_decode
    assembly.make_train_step, loop.make_evaluate = killing_step, killing_evaluate
    checkpoint.Checkpoints.save = killing_save

  def count(self, kind):
    with self.lock:
      self.counts[kind] += 1
      is_due = kind == self.kind and self.counts[kind] == self.number
    if is_due:
      self._kill()

  def _kill(self):
    os.kill(os.getpid(), signal.SIGKILL)

  def _batch(self, batch):
    self.count("evaluation")
    return batch

  def _audit(self, event, arguments):
    """Before whatever changes a file or folder."""
    if event == "open":
      path, _, flags = arguments
      is_change = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
    else:
      path, is_change = (arguments or [None])[0], event in CHANGES
    if not is_change or not isinstance(path, (str, os.PathLike)):
      return
    folder = arguments[-1] if event in ("os.remove", "os.rmdir") else -1
    if folder != -1 and sys.platform == "linux":  # relative to an open folder
      path = pathlib.Path(f"/proc/self/fd/{folder}").readlink() / path
    path = os.path.abspath(path)  # noqa: PTH100 (links stay)
    if path.startswith(self.cache):
      self.count("cache")
    elif path.startswith(f"{self.workdir}checkpoints"):
      self.count("save")
    elif path.startswith(self.workdir):
      self.count("files")


def ends(folder, killer, work):
  """Does some work in a process of its own; returns whether it came to its end, unkilled."""
  child = os.fork()
  if child == 0:
    status = 1
    try:
      log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
      os.dup2(log, 1)
      os.dup2(log, 2)
      os.environ["TMEM_CACHE_DIR"] = killer.cache
      killer.install()
      work(pathlib.Path(killer.workdir))
      status = 0
    except BaseException:
      traceback.print_exc()
    finally:
      sys.stdout.flush()
      os._exit(status)
  status = os.waitpid(child, 0)[1]
  if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
    return False
  if status:
    raise RuntimeError((folder / "log").read_text()[-3000:])
  return True


def trainings(folder, text, kills, rng):
  """Data caches are made anew where they are what is killed, else there from the start."""
  language_task.make_task = make_task

  def train(workdir):
    flags = {"workdir": workdir, "data_path": text, **FLAGS}
    language.main(["language", *(f"--{name}={value}" for name, value in flags.items())])

  caches = (folder / f"cache_{index}" for index in itertools.count())
  assert ends(folder, Killer(folder / "whole", folder / "cache"), train)

  def start(workdir, kind=None, number=0):
    cache = next(caches) if kind == "cache" else folder / "cache"
    return ends(folder, Killer(workdir, cache, kind, number), train)

  return disturb(folder, KINDS, kills, rng, start)


def clips(folder, videos, kills, rng):
  """Every run has a cache of its own, which all its processes share."""
  stored_arrays.SHARD = 3
  found = video_sources.read_folder(videos).clips["train"]

  def decode(workdir):
    arrays = list(video_clips.decoded(found, 4, 16).clips)
    workdir.mkdir()
    np.save(workdir / "clips.npy", arrays)

  def start(workdir, kind=None, number=0):
    return ends(folder, Killer(workdir, f"{workdir}_cache", kind, number), decode)

  assert start(folder / "whole")
  return disturb(folder, KINDS_OF_CLIPS, kills, rng, start)


def disturb(folder, kinds, kills, rng, start):
  """Every kind is as frequent; which moment of it is left to chance."""
  landed, names, order = collections.Counter(), [], itertools.cycle(kinds)
  while landed.total() < kills:
    names.append(f"run_{len(names)}")
    workdir, is_over = folder / names[-1], False
    while not is_over and landed.total() < kills:
      kind = next(order)
      is_over = start(workdir, kind, rng.randint(1, kinds[kind]))
      landed[kind] += not is_over
    is_over = is_over or start(workdir)
  return {"landed": landed, "runs": names}


def main(what, folder, source, kills="20", seed="0"):
  work = {"trainings": trainings, "clips": clips}[what]
  report = work(pathlib.Path(folder), source, int(kills), random.Random(int(seed)))
  print(json.dumps(report))


if __name__ == "__main__":
  cli.prepare()
  main(*sys.argv[1:])
