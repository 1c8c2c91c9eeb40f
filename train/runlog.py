"""Where the numbers of a run go: metrics.jsonl, TensorBoard and the terminal."""

import json
import sys
import time
from pathlib import Path
from typing import Any

from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.summary import scalar, text
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
    self._events = _Events(workdir / outputs.TENSORBOARD, step + 1 if records else None)

  def write(self, record: dict[str, Any]) -> None:
    """Appends a record; it has a "step" and otherwise numbers, or lines of text."""
    self._file.write(json.dumps(outputs.finite(record)) + "\n")
    self._file.flush()
    self._events.write(record)

  def close(self) -> None:
    """Writes out what is buffered."""
    self._file.close()
    self._events.close()


class _Events:
  """TensorBoard's file of a process.

  Written by the caller itself: the thread of tensorboardX's own `SummaryWriter` dies of a full
  disk, and whoever goes on writing then waits for ever.

  Args:
    folder: where it and those of earlier processes lie.
    purge_step: TensorBoard forgets what earlier files have of this step and later ones.
  """

  def __init__(self, folder: Path, purge_step: int | None):
    folder.mkdir(parents=True, exist_ok=True)
    # The time in the name does not tell it from others, as a clock may have been set back.
    number = sum(1 for _ in folder.iterdir())
    self._writer = EventsWriter(str(folder / "events"), f".{number}")
    if purge_step is not None:
      self._add(step=purge_step, session_log=SessionLog(status=SessionLog.START))

  def write(self, record: dict[str, Any]) -> None:
    for name, value in record.items():
      if name != "step" and value is not None:
        made = text(name, value) if isinstance(value, str) else scalar(name, value)
        self._add(step=record["step"], summary=made)
    self._writer.flush()

  def close(self) -> None:
    self._writer.close()

  def _add(self, **content: Any) -> None:
    self._writer.write_event(Event(wall_time=time.time(), **content))


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
