"""The report of the diagnostic suite: tables of accuracies, and what pictures show better."""

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from data.synthetic import LongRecall, SyntheticTask, eval_batches
from tmem import interop
from tmem.places import memory_places
from train import flags, outputs
from train.cells import VALID
from train.diagnostics_flags import COMMAND
from train.diagnostics_plots import plot_accuracy, plot_gates, plot_places
from train.diagnostics_presets import LONGER
from train.report import write_report
from train.sweep import Outcome
from train.tables import markdown_table, mean_and_range


def _is_far(task: SyntheticTask) -> bool:
  return isinstance(task, LongRecall)


PAPER = "paper"  # the preset
HEADLINE = ("base", "slots", "tensor")
# By experiment, the pictures of accuracy: the difficulty of a test, or None if it is not of them.
CURVES: Mapping[str, Mapping[str, Callable[[Any], int | None]]] = {
  "coordinate_binding": {"writes": lambda task: task.writes},
  "map_building": {"observations": lambda task: task.observations},
  "occlusion": {"hidden frames": lambda task: task.hidden},
  "long_recall": {
    "distance": lambda task: task.writes + task.distractors if _is_far(task) else None,
    "writes at once": lambda task: None if _is_far(task) else task.writes,
  },
}


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
  shown = []
  for experiment in dict.fromkeys(outcome.cell.experiment for outcome in outcomes):
    own = [outcome for outcome in outcomes if outcome.cell.experiment == experiment]
    done = [outcome for outcome in own if outcome.result is not None]
    table = _table(done) if done else "No cell has a result."
    commands = _commands(experiment, workdir, record["flags"])
    sections[experiment] = [*commands, _sizes(own), table, *_margins(done)]
    shown.append(f"{experiment}\n{table}")
    sections[experiment] += _pictures(experiment, done, workdir / outputs.PLOTS)
  failed = {f"{o.cell.experiment} {o.cell.name}": o.error for o in outcomes if o.error is not None}
  if failed:
    rows = [[name, error.replace("|", "/")] for name, error in failed.items()]
    sections["Failed"] = [markdown_table(["cell", "error"], rows)]
  data = {
    **record,
    "cells": {
      f"{o.cell.experiment}/{o.cell.name}": o.result for o in outcomes if o.result is not None
    },
    "failed": failed,
  }
  write_report(workdir, "Diagnostics", sections, data)
  return "\n\n".join([*shown, f"written to {workdir / 'report.md'}"])


def _commands(experiment: str, workdir: Path, given: Mapping[str, Any]) -> list[str]:
  """How to run the experiment alone, and how at the published sizes."""

  def command(name: str, **changes: Any) -> str:
    line = flags.command_line(
      COMMAND, Path(f"{workdir}-{name}"), {**given, "task": experiment, **changes}
    )
    return f"```\n{line}\n```"

  # Sizes that were asked for here are not those of the paper, nor of what is longer.
  sizes = {name: None for name in given if name not in ("methods", "attention_window", "seeds")}
  lines = [command(experiment)]
  if given.get("preset") != PAPER:
    published = command(f"{experiment}-{PAPER}", **{**sizes, "task": experiment, "preset": PAPER})
    lines += ["At the sizes and settings of the paper, which takes a GPU or days:", published]
  for name, what, changes, goes_on in LONGER.get(experiment, ()):
    if given.get("preset") != "cpu" or (goes_on and not _has_cells(given, changes)):
      continue
    # What goes on has the sizes of what it starts from.
    start = {"init_from": str(workdir)} if goes_on else {**sizes, "preset": "cpu"}
    lines += [what, command(f"{experiment}-{name}", **{**start, "task": experiment, **changes})]
  return lines


def _has_cells(given: Mapping[str, Any], changes: Mapping[str, Any]) -> bool:
  """Whether a suite with the flags `given` has trained what a run with `changes` starts from."""
  return all(
    given.get(name) is None or set(changes[name]) <= set(given[name])
    for name in ("methods", "attention_window")
  )


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
    f"Memory in every {outcomes[0].cell.model.memory_every_n_layers}. block: {memory.dynamics}"
    f" dynamics, {memory.update} update, grid {memory.grid} of {memory.channels} channels,"
    f" {memory.read_heads} read heads, chunks of {memory.chunk_size},"
    f" forget bias {memory.forget_bias:g}, sigma scale {memory.sigma_scale:g}, least sigma"
    f" {memory.sigma_min or 0:g}, read query {memory.read_query}, where the variant does not say"
    f" otherwise; {slots.count} slots. {outcomes[0].cell.optim.warmup_steps} steps of warm-up."
    f" Coordinate heads learn at"
    f" {outcomes[0].cell.optim.coordinate_lr_factor:g} of the rate, with a penalty on axes of"
    f" weight {outcomes[0].cell.axes_weight:g}."
  )
  return "\n\n".join(dict.fromkeys(lines))


def _facts(task: Any) -> str:
  return ", ".join(f"{name} {value}" for name, value in vars(task).items())


def _table(done: Sequence[Outcome]) -> str:
  """Accuracy in percent of every group of seeds in every test; the ceiling is the last row."""
  groups = _groups(done)
  every = [result for results in groups.values() for result in results]
  accuracies = {}
  for result in every:
    for test, ceiling in result["ceilings"].items():
      for kind, best in (("accuracy", ceiling), ("observed_accuracy", 1.0)):
        if test != VALID and f"{test}_{kind}" in result:
          accuracies[f"{test}_{kind}"] = best
  headings = [
    *("variant", "window", "method", "causal", "params", "state bytes"),
    *accuracies,
    "gate",
    "gate moved",
  ]
  rows = [
    [
      *key,
      str(results[0]["causal"]),
      f"{results[0]['params']:,}",
      f"{results[0]['state_bytes']:,}",
      *(_percent([r[name] for r in results if name in r]) for name in accuracies),
      *_gates(results),
    ]
    for key, results in groups.items()
  ]
  best = (_percent([ceiling]) for ceiling in accuracies.values())
  rows.append(["", "", "best possible", "", "", "", *best, "", ""])
  return markdown_table([heading.replace("_", " ") for heading in headings], rows)


def _groups(done: Sequence[Outcome]) -> dict[tuple[str, str, str], list[dict[str, Any]]]:
  """Results of the seeds by variant, window and method."""
  groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
  for outcome in done:
    cell = outcome.cell
    groups.setdefault((cell.variant, str(cell.window), cell.method), []).append(outcome.result)
  return groups


def _margins(done: Sequence[Outcome]) -> list[str]:
  """By how many points Tensor Memory is ahead of the better of the others, attention closed."""
  groups, lines = _groups(done), []
  for (variant, window, method), results in groups.items():
    rivals = [groups.get((variant, window, other)) for other in HEADLINE if other != method]
    if method != "tensor" or window == "full" or None in rivals:
      continue
    for test in results[0]["ceilings"]:
      name = f"{test}_accuracy"
      if test != VALID:
        best = max(np.mean([r[name] for r in rival]) for rival in rivals)
        ahead = 100 * (np.mean([r[name] for r in results]) - best)
        lines.append(f"{variant} {test}".strip().replace("_", " ") + f" {ahead:+.1f}")
  if not lines:
    return []
  return [f"Tensor Memory over the better of base and slots, in points: {', '.join(lines)}."]


def _percent(values: Sequence[float]) -> str:
  """Mean and range in percent; nothing where there is no value."""
  return mean_and_range([100 * value for value in values], digits=1)


def _gates(results: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
  """Mean of the fusion gates, and the farthest that any is from its start."""
  values = [gate for result in results for gate in result["fusion_gates"].values()]
  if not values:
    return "", ""
  start = results[0]["gate_start"]
  return f"{np.mean(values):.3f}", f"{max(abs(gate - start) for gate in values):.3f}"


def _pictures(experiment: str, done: Sequence[Outcome], plots: Path) -> list[str]:
  """Draws what an experiment has to show; the paragraphs that show it, or say why they do not."""
  draw: dict[str, Callable[[Path], None]] = {}
  for xlabel, difficulty in CURVES.get(experiment, {}).items():
    panels = _panels(done, difficulty)
    if panels:
      draw[f"{experiment}_{xlabel.replace(' ', '_')}"] = functools.partial(
        plot_accuracy,
        panels,
        xlabel=xlabel,
        chance=1 / done[0].cell.model.classes,
        log=experiment == "long_recall",
      )
  firsts = [o for o in done if o.cell.method == "tensor" and o.cell.seed == 0]
  if experiment in ("coordinate_binding", "no_harm") and firsts:
    records = {
      f"{o.cell.variant} window {o.cell.window}".strip(): outputs.read_json_lines(
        o.folder / outputs.METRICS
      )
      for o in firsts[:4]
    }
    draw[f"{experiment}_gates"] = functools.partial(plot_gates, records)
  if experiment == "coordinate_binding" and firsts:
    draw["places"] = functools.partial(_draw_places, firsts[-1])
  paragraphs = []
  for name, draw_to in draw.items():
    try:
      draw_to(plots / f"{name}.png")
      paragraphs.append(f"![](plots/{name}.png)")
    except Exception as error:  # a picture is not worth the report
      paragraphs.append(f"No picture {name}: {type(error).__name__}: {error}")
  return paragraphs


def _panels(done: Sequence[Outcome], difficulty: Callable[[Any], int | None]) -> dict[str, Any]:
  """Accuracies by panel (a window), line (method and variant) and difficulty."""
  panels: dict[str, dict[str, dict[int, list[float]]]] = {}
  for outcome in done:
    cell = outcome.cell
    noise = getattr(cell.training.stages[-1][0], "noise", None)
    for test, task in cell.tests.items():
      point = difficulty(task)
      if test != VALID and point is not None and getattr(task, "noise", None) == noise:
        panel = panels.setdefault(f"attention sees {cell.window}", {})
        line = panel.setdefault(f"{cell.method} {_line_of(cell.variant)}".strip(), {})
        line.setdefault(point, []).append(outcome.result[f"{test}_accuracy"])
  return panels


def _line_of(variant: str) -> str:
  """A variant without the test that it was trained for: such variants make one line."""
  parts = [part for part in variant.split("-") if not any(c.isdigit() for c in part) or "x" in part]
  return " ".join(parts).replace("_", " ")


def _draw_places(outcome: Outcome, path: Path) -> None:
  """Draws where the last memory of a trained model writes and reads for one example."""
  model = interop.load_model(outcome.folder / outputs.MODEL)
  task = outcome.cell.training.stages[-1][0]
  inputs = next(iter(eval_batches(task, 1, 1, outcome.cell.seed)))["inputs"]
  places = list(memory_places(model, inputs).values())[-1]
  chunk_size = model.memory.config.chunk_size
  written = slice(-(-task.writes // chunk_size))
  plot_places(
    model.memory.config.grid,
    np.asarray(places.write_at[0, written]),
    np.asarray(places.spread[0, written]),
    np.asarray(places.read_at[0, task.writes // chunk_size :, 0]),
    path,
  )
