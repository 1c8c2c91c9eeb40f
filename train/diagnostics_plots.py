"""The pictures of the diagnostic report."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Circle

from train.plots import save

# By name of a line: difficulty -> accuracies of the seeds.
Lines = Mapping[str, Mapping[int, Sequence[float]]]


def plot_accuracy(
  panels: Mapping[str, Lines], path: Path, *, xlabel: str, chance: float, log: bool = False
) -> None:
  """Draws accuracy against difficulty: means of the seeds as lines, their range as a band.

  Args:
    panels: lines by title of their panel.
    path: the PNG file.
    xlabel: what the difficulty is.
    chance: accuracy of guessing, in [0, 1].
    log: whether the difficulty has a logarithmic axis.
  """
  figure = Figure(figsize=(4.2 * len(panels), 3.6), layout="constrained")
  all_axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
  for axes, (title, lines) in zip(all_axes, panels.items(), strict=True):
    for number, (name, points) in enumerate(lines.items()):
      xs = sorted(points)
      mean, low, high = (
        [100 * reduce(points[x]) for x in xs] for reduce in (np.mean, np.min, np.max)
      )
      axes.plot(xs, mean, color=f"C{number}", marker="o", markersize=3.5, label=name)
      axes.fill_between(xs, low, high, color=f"C{number}", alpha=0.2, linewidth=0)
    axes.axhline(100 * chance, color="grey", linestyle=":", linewidth=1)
    axes.set(title=title, xlabel=xlabel, ylim=(0, 103))
    if log:
      axes.set_xscale("log", base=2)
    axes.grid(alpha=0.3)
  all_axes[0].set_ylabel("accuracy (%)")
  all_axes[0].legend(fontsize=8)
  save(figure, path)


def plot_gates(runs: Mapping[str, Sequence[Mapping[str, Any]]], path: Path) -> None:
  """Draws sigmoid(γ) of every block over training.

  Args:
    runs: records of `metrics.jsonl` by name of the run.
    path: the PNG file.
  """
  figure = Figure(figsize=(6, 3.6), layout="constrained")
  axes = figure.subplots()
  for number, (name, records) in enumerate(runs.items()):
    gates = sorted({key for record in records for key in record if key.startswith("valid_gate_")})
    for style, gate in zip(("-", "--", ":", "-."), gates, strict=False):
      points = [(r["step"], r[gate]) for r in records if r.get(gate) is not None]
      label = f"{name}, {gate.removeprefix('valid_gate_').replace('_', ' ')}"
      axes.plot(*zip(*points, strict=True), color=f"C{number}", linestyle=style, label=label)
  axes.set(xlabel="step", ylabel="fusion gate sigmoid(γ)")
  axes.grid(alpha=0.3)
  if runs:
    axes.legend(fontsize=7)
  save(figure, path)


def plot_places(
  grid: Sequence[int], written: np.ndarray, spread: np.ndarray, read: np.ndarray, path: Path
) -> None:
  """Draws where one example writes and reads on the grid, seen along each axis.

  Args:
    grid: cells per axis; the lines cross at their centres.
    written: [writes, axes], coordinates of the writes, last grid axis first.
    spread: [writes], their standard deviations, drawn as the radius of a circle.
    read: [queries, axes], coordinates of the reads.
    path: the PNG file.
  """
  names, sizes = "xyzw"[: len(grid)], grid[::-1]
  pairs = [(a, b) for a in range(len(grid)) for b in range(a + 1, len(grid))][:3] or [(0, 0)]
  figure = Figure(figsize=(3.2 * len(pairs), 3.4), layout="constrained")
  for axes, (a, b) in zip(figure.subplots(1, len(pairs), squeeze=False)[0], pairs, strict=True):
    for at, radius in zip(written, spread, strict=True):
      axes.add_patch(Circle((at[a], at[b]), radius, color="C0", alpha=0.06))
    axes.scatter(written[:, a], written[:, b], color="C0", s=14, label="write")
    axes.scatter(read[:, a], read[:, b], color="C1", marker="x", label="read")
    axes.set_xticks(np.linspace(-1, 1, sizes[a]), labels=[])
    axes.set_yticks(np.linspace(-1, 1, sizes[b]), labels=[])
    axes.set(xlabel=names[a], ylabel=names[b], xlim=(-1.1, 1.1), ylim=(-1.1, 1.1))
    axes.set_aspect("equal")
    axes.grid(alpha=0.4)
  figure.axes[0].legend(fontsize=7)
  save(figure, path)
