"""Trains a causal language model, evaluates it, or lets it write.

  python -m train.language --workdir=runs/memory --preset=quickstart
  python -m train.language --workdir=runs/memory --mode=eval
  python -m train.language --workdir=runs/memory --mode=score --input=book.txt
  python -m train.language --workdir=runs/memory --mode=generate --prompt="import "

The same command again resumes a run that was stopped. A flag overrides the preset.
"""

from collections.abc import Sequence
from typing import Any

from train import cli, flags, inference, language_task, loop, outputs, result, scoring, writing
from train.config import LanguageRun
from train.evaluate import make_evaluate
from train.language_flags import COMMAND
from train.sharding import make_mesh

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
    modes[config.mode](config)


def train(config: LanguageRun) -> None:
  """Trains to the end, or says that this has been done."""
  workdir = config.run.workdir
  finished = result.read(workdir)
  if finished is not None:
    print(f"{workdir} is finished; nothing to do.\n{result.summary(finished, SPLITS)}")
    return
  outputs.make_workdir(workdir)
  corpus = language_task.load_corpus(config.data)
  fingerprint = language_task.check_same_text(config, corpus)
  language_task.check_same_tokens(config.run.init_from, corpus)
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
  """Evaluates on whole splits, prints that and writes it to the workdir.

  The best checkpoint's figures go to `eval_PROTOCOL.json`; those of one that was named have its
  step behind the protocol.
  """
  corpus = language_task.load_corpus(config.data)
  language_task.check_same_text(config, corpus)
  task = language_task.make_task(config, corpus)
  mesh = make_mesh(config.run.mesh, config.run.batch_size)
  graphdef, params, step = inference.restore_trained(task.build, config.run, mesh)
  run_split = make_evaluate(graphdef, task.eval_loss_fn, mesh)
  measured: dict[str, Any] = {"step": step, "protocol": task.protocol}
  print(f"protocol: {task.protocol}")
  for split in task.splits:
    metrics = task.metrics(run_split(params, task.eval_batches(split, 0)), split)
    measured |= {f"{split}_{name}": value for name, value in metrics.items()}
    print("\n".join(f"{split} {line}" for line in result.lines(metrics)))
  is_named = config.run.checkpoint not in (None, config.run.workdir)
  name = f"eval_{task.protocol}_{step:08d}.json" if is_named else f"eval_{task.protocol}.json"
  outputs.write_json(config.run.workdir / name, measured)


if __name__ == "__main__":
  cli.run(main)
