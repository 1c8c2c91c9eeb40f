"""The one training loop, for every task.

A run is a sequence of steps with a settlement after those where something is due: a log line,
an evaluation, a checkpoint. `Progress` says what has been settled, so a run that stops anywhere
between two steps, also during an evaluation, resumes exactly there.
"""

import dataclasses
import shlex
import signal
import time
from typing import Any

import jax
from flax import nnx

from train import outputs, processes, result
from train.assembly import assemble
from train.checkpoint import Checkpoints
from train.config import OptimConfig, RunConfig
from train.errors import Interrupted, RunError
from train.evaluate import make_evaluate
from train.inference import draw_figures, read_params, whole
from train.interrupts import Interrupts
from train.plots import plot_gates, plot_losses
from train.profiling import Profile
from train.progress import Progress
from train.runlog import RunLog, Terminal
from train.sharding import batch_sharding, put_local_batch
from train.state import TrainState
from train.task import WARNING, Task


def train(
  task: Task, run: RunConfig, optim: OptimConfig, record: dict[str, Any]
) -> dict[str, Any] | None:
  """Trains a task to its end, resuming what the workdir already holds.

  Args:
    task: what is trained.
    run: how the run proceeds.
    optim: the optimizer.
    record: content of `config.json`: everything needed to run it again.

  Returns:
    The result, as in `result.json`; None if the run stopped before its end as `stop_at` asks.

  Raises:
    Interrupted: on SIGTERM or Ctrl-C, after saving.
    RunError: if the workdir, a checkpoint or the data does not fit, if another process trains in
      the workdir, if that takes no more, or if too many steps were not finite.
  """
  outputs.check_places(run.workdir)
  outputs.make_workdir(run.workdir)
  processes.peers().check_shared(run.workdir)
  result.forget_peak_memory()
  with outputs.held(run.workdir), outputs.written(run.workdir), Interrupts() as interrupts:
    return _Loop(task, run, optim, interrupts).run_to_end(record)


class _Loop:
  """One process's share of a run."""

  def __init__(self, task: Task, run: RunConfig, optim: OptimConfig, interrupts: Interrupts):
    self.since = time.monotonic()
    self.task, self.run, self.interrupts = task, run, interrupts
    self.is_main = jax.process_index() == 0
    self.mesh, self.setup, self.train_step = assemble(task.build, task.loss_fn, run, optim)
    processes.check_share(batch_sharding(self.mesh), run.batch_size)
    self.evaluate = make_evaluate(self.setup.graphdef, task.eval_loss_fn, self.mesh)
    self.checkpoints = Checkpoints(run.workdir / outputs.CHECKPOINTS, run.keep)
    self.batches = task.train_batches()
    self.state, self.progress = self._restore()
    self.saved = (self.progress.step, self.progress.settled)
    self.unread = None  # metrics of the newest step, read only when the next one is under way
    self.compiled = set()  # shapes of batches that a step has been made with
    self.profile = Profile(run.profile if self.is_main else None, run.workdir / outputs.PROFILE)

  def run_to_end(self, record: dict[str, Any]) -> dict[str, Any] | None:
    """Trains until the run ends or is asked to stop."""
    if self.is_main and outputs.read_json(self.run.workdir / outputs.CONFIG) != record:
      outputs.write_json(self.run.workdir / outputs.CONFIG, record)
    self.log = RunLog(self.run.workdir, self.progress.step) if self.is_main else None
    self.terminal = Terminal(self.progress.step, self.run.steps, self.task.item)
    if self.progress.step:
      self.terminal.say(f"Resuming {self.run.workdir} at step {self.progress.step}.")
    try:
      self._settle()
      while not self._is_over():
        self._advance()
        self._settle()
      return self._finish()
    finally:
      self.profile.close()
      self.terminal.close()
      if self.log:
        self.log.close()

  def _restore(self):
    restored = self.checkpoints.restore(self.setup.abstract)
    if restored is None:
      return self._start(), Progress()
    state, saved = restored
    progress = Progress(**saved)
    self.batches.set_state(progress.iterator)
    return state, progress

  def _start(self) -> TrainState:
    """The state before the first step."""
    state, source = self.setup.init(), self.run.init_from
    if source is None:
      return state
    params, step = read_params(self.setup.abstract.params, source, "init_from")
    print(f"Starting from {source}, step {step}.", flush=True)
    return state._replace(params=params)

  def _is_over(self) -> bool:
    progress, run = self.progress, self.run
    if progress.skipped > run.max_skipped_steps:
      self._save()
      raise RunError(
        f"stopped at step {progress.step}: {progress.skipped} steps had a loss or gradient that is"
        f" not finite, more than the {run.max_skipped_steps} allowed; try a lower --learning_rate"
        " in another --workdir"
      )
    if self.interrupts.pending():
      self._stop()
    return progress.step >= run.steps or self._is_stalled() or self._is_stop_step()

  def _is_stalled(self) -> bool:
    return 0 < self.run.patience <= self.progress.bad_evals

  def _is_stop_step(self) -> bool:
    return 0 < self.run.stop_at <= self.progress.step

  def _advance(self) -> None:
    """Makes one step; its metrics are read when the next one is under way."""
    began = time.monotonic()
    batch = next(self.batches)
    waited = time.monotonic() - began if self._is_idle() else 0.0
    batch = put_local_batch(batch, self.mesh)
    number = self.progress.step + 1
    self.state, metrics = self.profile.step(number, self.train_step, self.state, batch)
    self._read_metrics()
    self.unread = metrics
    self.progress.step += 1
    shapes = frozenset((name, rows.shape) for name, rows in batch.items())
    if shapes in self.compiled:
      self.progress.train_seconds += time.monotonic() - began
      self.progress.data_seconds += waited
      self.progress.train_items += self.task.count_items(batch)
    self.compiled.add(shapes)

  def _is_idle(self) -> bool:
    """Whether the devices have nothing to do: the newest step has ended."""
    return self.unread is None or all(value.is_ready() for value in self.unread.values())

  def _read_metrics(self) -> None:
    if self.unread is None:
      return
    metrics = {name: value.item() for name, value in jax.device_get(self.unread).items()}
    self.unread = None
    self.progress.skipped = metrics["skipped"]
    self.progress.record_step(metrics["loss"], metrics["grad_norm"], metrics["lr"])
    self.terminal.step(self.progress.window[-1][0], self.progress.items_per_second())

  def _wait_for_step(self) -> None:
    """Reads the metrics of the newest step; waiting for it counts as training."""
    began = time.monotonic()
    self._read_metrics()
    self.progress.train_seconds += time.monotonic() - began

  def _settle(self) -> None:
    """Does what is due at this step, unless it has been done or the run is asked to stop."""
    progress, run = self.progress, self.run
    last = progress.step == run.steps
    eval_due = last or progress.step % run.eval_every == 0
    save_due = last or progress.step % run.checkpoint_every == 0
    log_due = eval_due or progress.step % run.log_every == 0
    if progress.settled == progress.step or not (log_due or save_due):
      return
    self._wait_for_step()
    evaluation, watched = {}, {}
    if eval_due:
      evaluation = self._evaluate(self.state.params, self.task.splits[0], run.eval_tokens)
      watched = self.task.watch(nnx.merge(self.setup.graphdef, self.state.params))
    if evaluation is None:
      return
    if log_due:
      self._log(evaluation, watched)
    improved = bool(evaluation) and progress.record_evaluation(evaluation)
    progress.settled = progress.step
    if improved:
      self._export(self.state.params)
    if improved or save_due or self._is_stalled():
      self._save()

  def _evaluate(self, params: Any, split: str, limit: int = 0) -> dict[str, float] | None:
    batches = self.task.eval_batches(split, limit)
    means = self.evaluate(params, batches, self.interrupts.pending)
    return None if means is None else self.task.metrics(means, split)

  def _log(self, evaluation: dict[str, float], watched: dict[str, Any]) -> None:
    split = self.task.splits[0]
    record = {
      "step": self.progress.step,
      **self.progress.close_window(),
      f"{self.task.item}_per_second": self.progress.items_per_second(),
      "data_wait": self.progress.data_wait(),
      **watched,
      **{f"{split}_{name}": value for name, value in evaluation.items()},
    }
    shown = {name: evaluation[name] for name in self.task.shown if name in evaluation}
    self.terminal.record(record, shown)
    if WARNING in record:
      self.terminal.say(f"warning: {record[WARNING]}")
    if self.log:
      self.log.write(record)

  def _save(self) -> None:
    self._wait_for_step()
    if self.saved == (self.progress.step, self.progress.settled):
      return
    now = time.monotonic()
    self.progress.wall_seconds += now - self.since
    self.since = now
    self.progress.iterator = self.batches.get_state()
    self.checkpoints.save(self.state, dataclasses.asdict(self.progress))
    self.saved = (self.progress.step, self.progress.settled)

  def _export(self, params: Any) -> None:
    if self.task.export is None:
      return
    params = whole(params)
    if self.is_main:
      model = nnx.merge(self.setup.graphdef, params)
      self.task.export(self.run.workdir / outputs.MODEL, model)

  def _stop(self) -> None:
    """Saves and ends the process as the signal asks."""
    self._save()
    self._plot()
    name = signal.Signals(self.interrupts.signum).name
    raise Interrupted(f"{name}: {self._how_to_continue()}", self.interrupts.signum)

  def _how_to_continue(self) -> str:
    command = f"python -m train.{self.task.name} --workdir={shlex.quote(str(self.run.workdir))}"
    if not self.progress.step:
      return f"stopped before the first step, nothing to save; to start again: {command}"
    return f"saved at step {self.progress.step} of {self.run.steps}; to continue: {command}"

  def _plot(self) -> None:
    if self.is_main:
      workdir = self.run.workdir
      records = outputs.read_json_lines(workdir / outputs.METRICS)
      plot_losses({workdir.name: records}, workdir / outputs.PLOTS / "loss.png")
      plot_gates(records, workdir / outputs.PLOTS / "gates.png")

  def _finish(self) -> dict[str, Any] | None:
    progress, run = self.progress, self.run
    if progress.step < run.steps and not self._is_stalled():
      self._save()
      self._plot()
      self.terminal.say(self._how_to_continue())
      return None
    params, best_step = self._best_params()
    metrics = {}
    for split in self.task.splits:
      known = split == self.task.splits[0] and not run.eval_tokens and progress.best_metrics
      measured = progress.best_metrics if known else self._evaluate(params, split)
      if measured is None:
        self._stop()
      metrics |= {f"{split}_{name}": value for name, value in measured.items()}
    return self._write_result(params, best_step, metrics)

  def _best_params(self) -> tuple[Any, int]:
    progress = self.progress
    if progress.best_step in (None, progress.step):
      self._export(self.state.params)
      return self.state.params, progress.step
    return self.checkpoints.restore_params(self.setup.abstract.params)

  def _write_result(self, params: Any, best_step: int, metrics: dict[str, float]) -> dict[str, Any]:
    content = result.make(
      self.task,
      self.run,
      self.progress,
      params=params,
      best_step=best_step,
      facts=self.task.describe(nnx.merge(self.setup.graphdef, params)),
      metrics=metrics,
      wall_seconds=self.progress.wall_seconds + time.monotonic() - self.since,
    )
    self._plot()
    if self.is_main:
      outputs.write_json(self.run.workdir / outputs.RESULT, content)
    draw_figures(self.task, self.run.workdir, self.setup.graphdef, params)
    self.terminal.say(result.summary(content, self.task.splits))
    self.terminal.say(f"  written to {self.run.workdir}")
    return outputs.finite(content)
