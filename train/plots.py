"""Loss curves as pictures."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from train.report_columns import Curve
from train.task import GATE

matplotlib.use("Agg")


def plot_losses(runs: Mapping[str, Sequence[Mapping[str, Any]]], path: Path) -> None:
  """Draws training loss (thin) and validation loss (points) of runs into one picture.

  Args:
    runs: records of `metrics.jsonl` by name of the run.
    path: the PNG file; written atomically.
  """
  figure = Figure(figsize=(7, 4.2), layout="constrained")
  axes = figure.subplots()
  for number, (name, records) in enumerate(runs.items()):
    color = f"C{number % 10}"
    axes.plot(*_curve(records, "loss"), color=color, alpha=0.4, linewidth=1)
    steps, losses = _curve(records, "valid_loss")
    axes.plot(steps, losses, color=color, marker="o", markersize=3.5, label=name)
  axes.set(xlabel="step", ylabel="loss", title="training (thin), validation (dots)")
  measured = [loss for records in runs.values() for loss in _curve(records, "valid_loss")[1]]
  if len(measured) > 1:  # the first steps would leave no room for what tells runs apart
    low, high = min(measured), max(measured)
    axes.set_ylim(low - 0.2 * (high - low), high + 0.4 * (high - low))
  axes.grid(alpha=0.3)
  if runs:
    axes.legend()
  save(figure, path)


def plot_gates(records: Sequence[Mapping[str, Any]], path: Path) -> None:
  """Draws the fusion gates of a run over its steps; nothing of a model without memory.

  Args:
    records: of `metrics.jsonl`.
    path: the PNG file; written atomically.
  """
  names = sorted({name for record in records for name in record if name.startswith(GATE)})
  if not names:
    return
  figure = Figure(figsize=(7, 3.6), layout="constrained")
  axes = figure.subplots()
  for name in names:
    axes.plot(*_curve(records, name), marker="o", markersize=3, label=name.removeprefix(GATE))
  axes.set(xlabel="step", ylabel="sigmoid(γ)", title="how far the memory is let through")
  axes.grid(alpha=0.3)
  axes.legend()
  save(figure, path)


def plot_curves(
  groups: Mapping[str, Sequence[Mapping[str, Any]]], curves: Sequence[Curve], path: Path
) -> None:
  """Draws metrics against what makes tests harder: means over seeds, and their range.

  Args:
    groups: results of runs that differ by their seed alone, by name.
    curves: what is drawn, side by side.
    path: the PNG file; written atomically.
  """
  figure = Figure(figsize=(4.2 * len(curves), 3.6), layout="constrained")
  panels = figure.subplots(1, len(curves), squeeze=False)[0]
  for axes, curve in zip(panels, curves, strict=True):
    for number, (name, found) in enumerate(groups.items()):
      measured = [
        (x, [curve.factor * one[key] for one in found if one.get(key) is not None])
        for x, key in curve.points
      ]
      measured = [(x, values) for x, values in measured if values]
      xs = [x for x, _ in measured]
      means = [sum(values) / len(values) for _, values in measured]
      low, high = ([f(values) for _, values in measured] for f in (min, max))
      axes.plot(xs, means, marker="o", color=f"C{number % 10}", label=name)
      axes.fill_between(xs, low, high, color=f"C{number % 10}", alpha=0.2, linewidth=0)
    axes.set(xlabel=curve.against, ylabel=curve.label)
    axes.grid(alpha=0.3)
  panels[0].legend()
  save(figure, path)


def plot_speeds(runs: Mapping[str, Mapping[str, Any]], contexts: Sequence[int], path: Path) -> None:
  """Draws tokens written per second, and bytes kept, against the length of the context.

  Args:
    runs: results by name of the run, with what `train.speed` measured.
    contexts: the lengths.
    path: the PNG file; written atomically.
  """
  figure = Figure(figsize=(9, 3.6), layout="constrained")
  speed, memory = figure.subplots(1, 2)
  timed = {
    name: found
    for name, found in runs.items()
    if f"decode_tokens_per_second_{contexts[0]}" in found
  }
  for name, found in timed.items():
    rates = [found[f"decode_tokens_per_second_{context}"] for context in contexts]
    speed.plot(contexts, rates, marker="o", label=name)
    memory.plot(contexts, [found["state_bytes"]] * len(contexts), marker="o", label=name)
  for axes, label in ((speed, "tokens/s written"), (memory, "bytes kept")):
    axes.set(xscale="log", xlabel="tokens of context", ylabel=label)
    axes.grid(alpha=0.3)
  memory.set_yscale("log")
  speed.set_ylim(bottom=0)
  speed.legend()
  save(figure, path)


def save(figure: Figure, path: Path) -> None:
  """Writes a figure as a PNG file, atomically."""
  buffer = io.BytesIO()
  figure.savefig(buffer, format="png", dpi=120)
  path.parent.mkdir(parents=True, exist_ok=True)
  temporary = path.with_name(f".{path.name}")
  temporary.write_bytes(buffer.getvalue())
  temporary.replace(path)


def _curve(records: Sequence[Mapping[str, Any]], name: str) -> tuple[list[int], list[float]]:
  points = [(r["step"], r[name]) for r in records if r.get(name) is not None]
  return [step for step, _ in points], [value for _, value in points]
