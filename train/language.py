"""Trains a causal language model, evaluates it, or lets it write.

  python -m train.language --workdir=runs/memory --preset=quickstart
  python -m train.language --workdir=runs/memory --mode=eval
  python -m train.language --workdir=runs/memory --mode=score --input=book.txt
  python -m train.language --workdir=runs/memory --mode=generate --prompt="import "

The same command again resumes a run that was stopped. A flag overrides the preset.
"""

from collections.abc import Sequence

import jax

from train import (
  cli,
  dry_run,
  flags,
  inference,
  language_task,
  loop,
  outputs,
  processes,
  result,
  scoring,
  writing,
)
from train.config import LanguageRun
from train.language_flags import COMMAND
from train.task import Task

SPLITS = ("valid", "test")
PROMPT_TOKENS = 16  # kept with a run, to be continued where no prompt is given


def main(argv: Sequence[str]) -> None:
  """Runs the command.

  Args:
    argv: the command line, program name first.
  """
  config = flags.parse(COMMAND, argv, __doc__)
  if config is not None:
    modes = {"train": train, "eval": evaluate, "score": scoring.score, "generate": writing.write}
    if config.mode not in ("train", "eval") or config.run.dry_run:
      processes.refuse_many("--dry_run" if config.run.dry_run else f"--mode={config.mode}")
    (plan if config.run.dry_run else modes[config.mode])(config)


def plan(config: LanguageRun) -> None:
  """Says what training would need."""

  def make_task(config: LanguageRun) -> Task:
    return language_task.make_task(config, language_task.load_corpus(config.data))

  dry_run.show(config, make_task)


def train(config: LanguageRun) -> None:
  """Trains to the end, or says that this has been done."""
  workdir = config.run.workdir
  if result.is_finished(workdir, SPLITS):
    return
  outputs.make_workdir(workdir)
  corpus = language_task.load_corpus(config.data)
  fingerprint = language_task.check_same_text(config, corpus)
  language_task.check_same_tokens(config.run.init_from, corpus)
  if jax.process_index() == 0:
    outputs.write_json(workdir / outputs.TOKENIZER, corpus.tokenizer.to_dict())
  task = language_task.make_task(config, corpus)
  record = {
    "task": task.name,
    "command": flags.command_line(COMMAND, workdir, config.flags),
    "flags": config.flags,
    "model": language_task.model_config(config, corpus).to_dict(),
    "data": fingerprint,
    "prompt": corpus.valid[:PROMPT_TOKENS].tolist(),
    "versions": result.versions(),
  }
  loop.train(task, config.run, config.optim, record)


def evaluate(config: LanguageRun) -> None:
  """Evaluates on whole splits, prints that and writes it to `eval_PROTOCOL.json`."""
  corpus = language_task.load_corpus(config.data)
  language_task.check_same_text(config, corpus)
  task = language_task.make_task(config, corpus)
  inference.evaluate(task, config.run, f"eval_{task.protocol}")


if __name__ == "__main__":
  cli.run(main, can_share=True)
