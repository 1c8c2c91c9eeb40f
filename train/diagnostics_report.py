"""The report of the diagnostic suite: tables of accuracies, and what pictures show better."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from data.synthetic import eval_batches
from tmem import interop
from tmem.places import memory_places
from train import flags, outputs
from train.cell_task import VALID
from train.diagnostics_flags import COMMAND
from train.diagnostics_plots import plot_accuracy, plot_gates, plot_places
from train.report import markdown_table, write_report
from train.sweep import Outcome

# What a number in the name of a test is, by experiment, for the pictures.
DIFFICULTY = {
  "coordinate_binding": "writes",
  "map_building": "observations",
  "occlusion": "hidden",
  "long_recall": "distance",
}
CHANCE = {"coordinate_binding": 1 / 32, "map_building": 0.5, "occlusion": 0.25}


def write(workdir: Path, record: Mapping[str, Any], outcomes: Sequence[Outcome]) -> str:
  """Writes `report.md`, `report.json` and the pictures.

  Args:
    workdir: folder of the suite.
    record: content of its `config.json`.
    outcomes: what became of the cells.

  Returns:
    What the terminal shows: the tables, and where the report lies.
  """
  sections: dict[str, list[str]] = {}
  for experiment in dict.fromkeys(outcome.cell.experiment for outcome in outcomes):
    own = [outcome for outcome in outcomes if outcome.cell.experiment == experiment]
    stored = {**record["flags"], "task": experiment}
    sections[experiment] = [
      f"```\n{flags.command_line(COMMAND, workdir, stored)}\n```",
      _sizes(own),
      _table(own),
      *_pictures(experiment, own, workdir / outputs.PLOTS),
    ]
  shown = [f"{name}\n{paragraphs[2]}" for name, paragraphs in sections.items()]
  failed = {f"{o.cell.experiment} {o.cell.name}": o.error for o in outcomes if o.error is not None}
  if failed:
    sections["Failed"] = [markdown_table(["cell", "error"], [list(row) for row in failed.items()])]
  data = {
    **record,
    "cells": {
      f"{o.cell.experiment}/{o.cell.name}": o.result for o in outcomes if o.result is not None
    },
    "failed": failed,
  }
  write_report(workdir, "Diagnostics", sections, data)
  return "\n\n".join([*shown, f"written to {workdir / 'report.md'}"])


def _sizes(outcomes: Sequence[Outcome]) -> str:
  """What was trained, in a line for each set of sizes."""
  lines = []
  for outcome in outcomes:
    cell, model = outcome.cell, outcome.cell.model
    stages = ", then ".join(
      f"{steps} steps of {_facts(task)}" for task, steps in cell.training.stages
    )
    lines.append(
      f"{model.features} features, {model.num_layers} blocks, {model.num_heads} heads, batch"
      f" {cell.batch_size}, learning rate {cell.optim.learning_rate:g}, {cell.eval_samples} samples"
      f" a test; trained with {stages}."
    )
  memory, slots = outcomes[0].cell.model.memory, outcomes[0].cell.model.slots
  lines.append(
    f"Memory in every {outcomes[0].cell.model.memory_every_n_layers}. block: grid {memory.grid} of"
    f" {memory.channels} channels, chunks of {memory.chunk_size}, forget bias"
    f" {memory.forget_bias:g}, sigma scale {memory.sigma_scale:g}, where the variant does not say"
    f" otherwise; {slots.count} slots."
  )
  return "\n\n".join(dict.fromkeys(lines))


def _facts(task: Any) -> str:
  return ", ".join(f"{name} {value}" for name, value in vars(task).items())


def _table(outcomes: Sequence[Outcome]) -> str:
  """Accuracy in percent of every group of seeds in every test; the ceiling is the last row."""
  groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
  for outcome in outcomes:
    if outcome.result is not None:
      cell = outcome.cell
      groups.setdefault((cell.variant, str(cell.window), cell.method), []).append(outcome.result)
  if not groups:
    return "No cell has a result."
  first = next(iter(groups.values()))[0]
  tests = [name for name in first["ceilings"] if name != VALID]
  accuracies = {f"{test}_accuracy": first["ceilings"][test] for test in tests}
  accuracies |= {f"{test}_observed_accuracy": 1.0 for test in tests}
  accuracies = {name: ceiling for name, ceiling in accuracies.items() if name in first}
  gates = sorted({g for results in groups.values() for r in results for g in r["fusion_gates"]})
  headings = ["variant", "window", "method", "params", *accuracies, *(f"gate {g}" for g in gates)]
  rows = [
    [
      *key,
      f"{results[0]['params']:,}",
      *(_percent([r[name] for r in results]) for name in accuracies),
      *(_gate(results, gate) for gate in gates),
    ]
    for key, results in groups.items()
  ]
  best = ["", "", "best possible", "", *(_percent([c]) for c in accuracies.values())]
  rows.append(best + [""] * len(gates))
  return markdown_table([heading.replace("_", " ") for heading in headings], rows)


def _percent(values: Sequence[float]) -> str:
  """Mean and range in percent."""
  mean = f"{100 * np.mean(values):.1f}"
  if len(values) == 1:
    return mean
  return f"{mean} ({100 * min(values):.1f}–{100 * max(values):.1f})"


def _gate(results: Sequence[Mapping[str, Any]], gate: str) -> str:
  values = [r["fusion_gates"][gate] for r in results if gate in r["fusion_gates"]]
  return f"{np.mean(values):.3f}" if values else ""


def _pictures(experiment: str, outcomes: Sequence[Outcome], plots: Path) -> list[str]:
  """Draws what an experiment has to show; the paragraphs that show it."""
  done = [outcome for outcome in outcomes if outcome.result is not None]
  names = []
  if experiment in DIFFICULTY:
    names.append(f"{experiment}.png")
    plot_accuracy(
      _lines(done, DIFFICULTY[experiment]),
      plots / names[-1],
      xlabel=DIFFICULTY[experiment],
      chance=CHANCE.get(experiment, 1 / 32),
      log=experiment == "long_recall",
    )
  if experiment == "long_recall":
    names.append("capacity.png")
    plot_accuracy(
      _lines(done, "writes"), plots / names[-1], xlabel="writes", chance=1 / 32, log=True
    )
  remembering = [o for o in done if o.cell.method == "tensor" and o.cell.seed == 0]
  if experiment in ("coordinate_binding", "no_harm") and remembering:
    names.append(f"{experiment}_gates.png")
    records = {
      f"window {o.cell.window}": outputs.read_json_lines(o.folder / outputs.METRICS)
      for o in remembering
    }
    plot_gates(records, plots / names[-1])
  if experiment == "coordinate_binding" and remembering:
    names.append("places.png")
    _draw_places(remembering[-1], plots / names[-1])
  return [f"![](plots/{name})" for name in names]


def _lines(outcomes: Sequence[Outcome], difficulty: str) -> dict[str, Any]:
  """Accuracies by panel (variant and window), line (method or variant) and difficulty."""
  panels: dict[str, dict[str, dict[int, list[float]]]] = {}
  for outcome in outcomes:
    cell = outcome.cell
    by_variant = cell.experiment == "long_recall"
    panel = f"attention sees {cell.window}" + (
      f", {cell.variant}" if cell.variant and not by_variant else ""
    )
    line = panels.setdefault(panel, {}).setdefault(cell.variant if by_variant else cell.method, {})
    for test, task in cell.tests.items():
      if test.startswith(difficulty) and getattr(task, "noise", 0.05) == 0.05:
        point = int(test.split("_")[1])
        line.setdefault(point, []).append(outcome.result[f"{test}_accuracy"])
  return panels


def _draw_places(outcome: Outcome, path: Path) -> None:
  """Draws where the last memory of a trained model writes and reads for one example."""
  model = interop.load_model(outcome.folder / outputs.MODEL)
  task = outcome.cell.training.stages[-1][0]
  inputs = next(iter(eval_batches(task, 1, 1, outcome.cell.seed)))["inputs"]
  places = list(memory_places(model, inputs).values())[-1]
  chunk_size = model.memory.config.chunk_size
  plot_places(
    np.asarray(places.write_at[0, : -(-task.writes // chunk_size)]),
    np.asarray(places.read_at[0, task.writes // chunk_size :, 0]),
    np.asarray(inputs[0, : task.writes, :3]),
    path,
  )
