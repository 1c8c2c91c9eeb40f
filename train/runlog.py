"""Where the numbers of a run go: metrics.jsonl, TensorBoard and the terminal."""

import json
import sys
import time
from pathlib import Path
from typing import Any

from tensorboardX import SummaryWriter
from tqdm import tqdm

from train import outputs


class RunLog:
  """Writes one record per log step to `metrics.jsonl` and to TensorBoard.

  Records after the step that a run resumes from are dropped: they will come again.

  Args:
    workdir: folder of the run.
    step: step the run starts or resumes from.
  """

  def __init__(self, workdir: Path, step: int):
    path = workdir / outputs.METRICS
    records = outputs.read_json_lines(path)
    outputs.write_json_lines(path, [r for r in records if r.get("step", 0) <= step])
    self._file = path.open("a", encoding="utf-8")
    self._writer = SummaryWriter(
      logdir=str(workdir / outputs.TENSORBOARD), purge_step=step + 1 if records else None
    )

  def write(self, record: dict[str, Any]) -> None:
    """Appends a record; it has a "step" and otherwise numbers, or lines of text."""
    self._file.write(json.dumps(outputs.finite(record)) + "\n")
    self._file.flush()
    for name, value in record.items():
      if isinstance(value, str):
        self._writer.add_text(name, value, record["step"])
      elif name != "step" and value is not None:
        self._writer.add_scalar(name, value, record["step"])

  def close(self) -> None:
    """Writes out what is buffered."""
    self._file.close()
    self._writer.close()


class Terminal:
  """A progress bar with loss, rate and time left; plain lines where there is no terminal.

  Args:
    step: step the run starts or resumes from.
    steps: steps in all.
    item: what the rate counts.
  """

  def __init__(self, step: int, steps: int, item: str):
    self.steps, self.item = steps, item
    self._first_step, self._began = step, time.monotonic()
    self._bar = (
      tqdm(total=steps, initial=step, unit="step", dynamic_ncols=True)
      if sys.stderr.isatty()
      else None
    )

  def step(self, loss: float | None, items_per_second: float | None) -> None:
    """Advances the bar by one step."""
    if self._bar is not None:
      self._bar.set_postfix_str(", ".join(self._numbers(loss, items_per_second)), refresh=False)
      self._bar.update()

  def record(self, record: dict[str, Any], evaluation: dict[str, float]) -> None:
    """Shows a record of the log; beside a bar only what the bar does not show."""
    numbers = [f"validation {name.replace('_', ' ')} {v:.4f}" for name, v in evaluation.items()]
    if self._bar is None:
      rate = record[f"{self.item}_per_second"]
      numbers = [*self._numbers(record["loss"], rate), *numbers, *self._left(record["step"])]
    if numbers:
      self.say("  ".join([f"step {record['step']}/{self.steps}", *numbers]))

  def say(self, message: str) -> None:
    """Prints a line, above the bar if there is one."""
    if self._bar is None:
      print(message, flush=True)
    else:
      self._bar.write(message)

  def close(self) -> None:
    """Leaves the terminal as it was."""
    if self._bar is not None:
      self._bar.close()

  def _numbers(self, loss: float | None, items_per_second: float | None) -> list[str]:
    numbers = ["loss not finite" if loss is None else f"loss {loss:.4f}"]
    return numbers + ([f"{items_per_second:,.0f} {self.item}/s"] if items_per_second else [])

  def _left(self, step: int) -> list[str]:
    done = step - self._first_step
    if not done or step >= self.steps:
      return []
    seconds = int((time.monotonic() - self._began) / done * (self.steps - step))
    return [f"{seconds // 60}:{seconds % 60:02d} left"]
