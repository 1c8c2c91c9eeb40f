"""A trace of some training steps, for Perfetto and XProf."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from train.trace_names import name_operations


class Profile:
  """Traces some steps of this process.

  Args:
    steps: first and last of them, counted from 1; None: no steps.
    folder: where the trace goes: `plugins/profile/TIME/` in it has `perfetto_trace.json.gz` and,
      for XProf, `*.xplane.pb`.
  """

  def __init__(self, steps: tuple[int, int] | None, folder: Path):
    self._steps, self._folder, self._runs = steps or (0, 0), folder, False

  def step(self, number: int, function: Callable[..., Any], *args: Any) -> Any:
    """Calls a function that makes a step.

    Args:
      number: of the step.
      function: what makes it.
      *args: its arguments.

    Returns:
      What it returns; after the last step that is traced, once that has been computed.
    """
    first, last = self._steps
    if not first <= number <= last:
      return function(*args)
    if not self._runs:
      options = jax.profiler.ProfileOptions()
      options.python_tracer_level = 0  # hundreds of thousands of calls that hide the steps
      jax.profiler.start_trace(
        str(self._folder), create_perfetto_trace=True, profiler_options=options
      )
      self._runs = True
    with jax.profiler.StepTraceAnnotation("train", step_num=number):
      made = function(*args)
    if number == last:
      jax.block_until_ready(made)
      self.close()
    return made

  def close(self) -> None:
    """Writes what has been traced, of a run that ends before the last of the steps."""
    if self._runs:
      self._runs = False
      jax.profiler.stop_trace()
      name_operations(self._folder)
