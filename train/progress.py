"""Where a run is: saved with every checkpoint, so that a resumed run continues exactly."""

import dataclasses
import math
from typing import Any


@dataclasses.dataclass
class Progress:
  """Counters and unfinished business of a run. All fields are JSON values.

  Attributes:
    step: steps made.
    settled: last step whose log line, evaluation and checkpoint are done.
    skipped: steps that were not finite.
    best_loss: lowest validation loss, or None before the first evaluation.
    best_step: its step.
    best_metrics: all metrics of that evaluation.
    bad_evals: evaluations since.
    window: [loss, grad_norm, lr] of the steps since the last log line.
    train_seconds: time spent in steps, without compiling, evaluating and saving.
    data_seconds: of that, time spent waiting for batches while the devices had nothing to do.
    train_items: items (tokens) trained on in that time.
    wall_seconds: time spent in all, over all processes.
    iterator: position in the data.
  """

  step: int = 0
  settled: int = 0
  skipped: int = 0
  best_loss: float | None = None
  best_step: int | None = None
  best_metrics: dict[str, float] | None = None
  bad_evals: int = 0
  window: list[list[float | None]] = dataclasses.field(default_factory=list)
  train_seconds: float = 0.0
  data_seconds: float = 0.0
  train_items: int = 0
  wall_seconds: float = 0.0
  iterator: Any = None

  def record_step(self, loss: float, grad_norm: float, lr: float) -> None:
    """Remembers a step for the next log line; what is not finite counts as nothing."""
    values = (loss, grad_norm, lr)
    self.window.append([value if math.isfinite(value) else None for value in values])

  def close_window(self) -> dict[str, float | None]:
    """Means over the steps since the last log line; the learning rate is that of the last."""
    losses, norms, rates = zip(*self.window, strict=True) if self.window else ((), (), ())
    self.window = []
    return {
      "loss": _mean(losses),
      "grad_norm": _mean(norms),
      "lr": rates[-1] if rates else None,
      "skipped": self.skipped,
    }

  def record_evaluation(self, metrics: dict[str, float]) -> bool:
    """Notes an evaluation on the validation split; returns whether it is the best so far."""
    loss = metrics["loss"]
    if not math.isfinite(loss) or (self.best_loss is not None and loss >= self.best_loss):
      self.bad_evals += 1
      return False
    self.best_loss, self.best_step, self.bad_evals = loss, self.step, 0
    self.best_metrics = dict(metrics)
    return True

  def items_per_second(self) -> float | None:
    """Training throughput, or None before anything was measured."""
    return self.train_items / self.train_seconds if self.train_seconds else None

  def data_wait(self) -> float | None:
    """Share of the training time in which devices waited for batches; None before any."""
    return self.data_seconds / self.train_seconds if self.train_seconds else None


def _mean(values) -> float | None:
  values = [value for value in values if value is not None]
  return math.fsum(values) / len(values) if values else None
