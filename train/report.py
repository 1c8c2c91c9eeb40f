"""Compares runs: a table, another one in which seeds are taken together, and their loss curves.

python -m train.report --workdirs=runs/memory,runs/baseline --output=runs --speed
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tmem import interop
from tmem.models import LanguageModel
from train import cli, flag_table, flags, outputs, result, speed
from train.command import Command, Flag
from train.errors import RunError
from train.groups import by_seed, format_groups
from train.parsers import TEXT, TEXTS
from train.pictures import draw_rows, side_by_side
from train.plots import plot_curves, plot_losses, plot_speeds
from train.report_columns import BY_TASK, LANGUAGE, Columns
from train.tables import text_table

# Added with --speed.
SPEEDS = (
  ("prefill/s", "prefill_tokens_per_second", "{:,.0f}"),
  *(
    (f"decode/s at {context:,}", f"decode_tokens_per_second_{context}", "{:,.0f}")
    for context in speed.CONTEXTS
  ),
)


def build(values: dict[str, Any]) -> tuple[list[Path], Path | None, bool]:
  """(Folders of the runs, folder to write to or None, whether to time them) from the flags."""
  output = values["output"]
  workdirs = list(dict.fromkeys(Path(workdir) for workdir in values["workdirs"]))
  return workdirs, Path(output) if output else None, values["speed"]


COMMAND = Command(
  name="report",
  groups={
    "Runs": {
      "workdirs": Flag(
        TEXTS,
        None,
        "Folders of the runs. Required.",
        "folders of runs, as in --workdirs=runs/a,runs/b",
      ),
      "output": Flag(TEXT, None, "Folder for report.md and its figures."),
    }
  },
  build=build,
  switches={
    "speed": "Time each model here, as it reads a prompt and writes, at several contexts.",
    **flag_table.SWITCHES,
  },
)


def main(argv: Sequence[str]) -> None:
  """Prints the comparison and writes `report.md` with its figures.

  Args:
    argv: the command line, program name first.
  """
  parsed = flags.parse(COMMAND, argv, __doc__)
  if parsed is None:
    return
  workdirs, folder, timed = parsed
  results = read_results(workdirs)
  if timed:
    results = {
      name: found | measured_speed(workdir)
      for workdir, (name, found) in zip(workdirs, results.items(), strict=True)
    }
  table = format_table(results)
  seeds = by_seed(workdirs, results)
  groups = format_groups(seeds, columns_of(results).seeds)
  print(f"{table}\n\n{groups}")
  if folder is not None:
    outputs.make_workdir(folder, "output")
    pictures = _draw(dict(zip(results, workdirs, strict=True)), results, seeds, timed, folder)
    shown = "\n\n".join(f"![]({picture})" for picture in pictures)
    tables = "\n\n".join(f"```\n{text}\n```" for text in (table, groups))
    outputs.write_text(folder / "report.md", f"# Runs\n\n{tables}\n\n{shown}\n")
    print(f"\nwritten to {folder}: report.md, {', '.join(pictures)}")


def _draw(
  workdirs: Mapping[str, Path],
  results: Mapping[str, Mapping[str, Any]],
  seeds: Mapping[str, Sequence[Mapping[str, Any]]],
  timed: bool,
  folder: Path,
) -> list[str]:
  """Draws the comparison into a folder; names of the pictures."""
  curves = {
    name: outputs.read_json_lines(workdir / outputs.METRICS) for name, workdir in workdirs.items()
  }
  plot_losses(curves, folder / "losses.png")
  pictures, columns = ["losses.png"], columns_of(results)
  if columns.curves:
    plot_curves(seeds, columns.curves, folder / "curves.png")
    pictures.append("curves.png")
  if columns.pictures is not None:
    plots = {name: workdirs[name] / outputs.PLOTS for name in seeds}
    if rows := side_by_side(plots, columns.pictures):
      draw_rows(rows, folder / "pictures.png")
      pictures.append("pictures.png")
  if timed:
    plot_speeds(results, speed.CONTEXTS, folder / "speed.png")
    pictures.append("speed.png")
  return pictures


def read_results(workdirs: Sequence[Path]) -> dict[str, dict[str, Any]]:
  """Reads the results of runs.

  Args:
    workdirs: folders of finished runs.

  Returns:
    Content of `result.json` by name of the run.

  Raises:
    RunError: if one of them has no result or a broken one, or they are of several tasks.
  """
  results = {}
  for name, workdir in zip(_names(workdirs), workdirs, strict=True):
    found = result.read(workdir)
    if found is None:
      raise RunError(f"--workdirs: {workdir} has no {outputs.RESULT}; is the run finished?")
    try:
      format_table({name: found})
    except (AttributeError, TypeError, ValueError) as error:
      raise result.broken(workdir, str(error)) from error
    results[name] = found
  columns_of(results)
  return results


def columns_of(results: Mapping[str, Mapping[str, Any]]) -> Columns:
  """What is shown of runs; raises RunError if they are of several tasks."""
  tasks = list(dict.fromkeys(found.get("task") for found in results.values()))
  if len(tasks) > 1:
    raise RunError(f"--workdirs: runs of {' and '.join(map(str, tasks))}; compare them apart")
  return BY_TASK.get(tasks[0], LANGUAGE)


def measured_speed(workdir: Path) -> dict[str, Any]:
  """What `train.speed` measures of a run's model, nothing of one that cannot stream.

  Raises:
    RunError: if there is no model of language.
  """
  try:
    model = interop.load_model(workdir / outputs.MODEL)
  except (FileNotFoundError, ValueError) as error:
    raise RunError(f"--speed: {error}") from error
  if not isinstance(model, LanguageModel):
    raise RunError(f"--speed: the model in {workdir} is none of language")
  return speed.measure(model) if model.causal else {}


def format_table(results: Mapping[str, Mapping[str, Any]]) -> str:
  """A table of runs; below it their fusion gates, and a warning if losses cannot be compared.

  Args:
    results: content of `result.json` by name of the run.

  Returns:
    Lines of text.
  """
  timed = any(SPEEDS[0][1] in found for found in results.values())
  shown = columns_of(results)
  columns = (*shown.runs, *SPEEDS) if timed else shown.runs
  rows = [["run", *(heading for heading, _, _ in columns)]]
  for name, found in results.items():
    cells = [(found.get(key), form) for _, key, form in columns]
    rows.append([name, *("-" if value is None else form.format(value) for value, form in cells)])
  lines = [text_table(rows, left=1 + shown.left)]
  for name, found in results.items():
    if found.get("init_from"):
      lines.append(f"{name} started from the parameters of {found['init_from']}")
    gates = found.get("fusion_gates") or {}
    if gates:
      opened = ", ".join(f"{block} {value:.3f}" for block, value in gates.items())
      lines.append(f"fusion gates of {name}: {opened}")
  return "\n".join(lines + _warnings(results))


def write_report(
  folder: Path, title: str, sections: Mapping[str, Sequence[str]], data: Mapping[str, Any]
) -> None:
  """Writes `report.md` and `report.json`.

  Args:
    folder: where to.
    title: of the report.
    sections: by heading, paragraphs in Markdown.
    data: the numbers behind it, as JSON values.
  """
  parts = [f"# {title}"]
  for heading, paragraphs in sections.items():
    parts += [f"## {heading}", *paragraphs]
  outputs.write_text(folder / "report.md", "\n\n".join(parts) + "\n")
  outputs.write_json(folder / "report.json", dict(data))


def _warnings(results: Mapping[str, Mapping[str, Any]]) -> list[str]:
  """What must not be compared, in at most one line."""
  values = {
    key: list(dict.fromkeys(found[key] for found in results.values() if found.get(key)))
    for key in ("dataset", "tokenizer", "vocabulary", "protocol")
  }
  if len(values["dataset"]) > 1:
    return [f"warning: different datasets ({', '.join(values['dataset'])}): compare no losses"]
  if len(values["tokenizer"]) > 1:
    return [
      f"warning: different tokenizers ({', '.join(values['tokenizer'])}): nats and perplexity are"
      " per token, compare only bits/byte"
    ]
  if len(values["vocabulary"]) > 1:
    return ["warning: standard and reference vocabularies: another scale, compare no losses"]
  if len({found["eval_streams"] for found in results.values() if found.get("eval_streams")}) > 1:
    return [
      "warning: different numbers of streams (--batch_size): each begins with nothing; compare what"
      " --mode=eval with one --batch_size writes to eval_stream.json"
    ]
  if len(values["protocol"]) > 1:
    return [
      "warning: different protocols (windows, stream): tokens were given different contexts;"
      " measure all with --mode=eval --protocol=stream"
    ]
  return []


def _names(workdirs: Sequence[Path]) -> list[str]:
  """Short names, or whole paths where short ones are the same."""
  short = [workdir.absolute().name for workdir in workdirs]
  return short if len(set(short)) == len(short) else [str(workdir) for workdir in workdirs]


if __name__ == "__main__":
  cli.run(main)
