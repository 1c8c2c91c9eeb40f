"""Rows of pictures, and those of several runs under one another."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from train.plots import save

Rows = Mapping[str, np.ndarray]  # what they show: [pictures, height, width, 3] uint8
SHARED = ("original", "masked")
TOLD = "reconstruction"


def draw_rows(rows: Rows, path: Path) -> None:
  """Draws rows of pictures under one another.

  Args:
    rows: as many pictures in each.
    path: the PNG file; written atomically.
  """
  columns = max(map(len, rows.values()))
  figure = Figure(figsize=(1.6 * columns, 1.65 * len(rows)), layout="constrained")
  panels = figure.subplots(len(rows), columns, squeeze=False)
  for axes, (name, pictures) in zip(panels, rows.items(), strict=True):
    axes[0].set_ylabel(name)
    for place, picture in zip(axes, pictures, strict=True):
      place.imshow(picture)
      place.set(xticks=[], yticks=[])
  save(figure, path)


def write_rows(rows: Rows, path: Path) -> None:
  """Writes the pixels of rows into an `.npz` file, atomically, for `side_by_side`."""
  path.parent.mkdir(parents=True, exist_ok=True)
  temporary = path.with_name(f".{path.name}")
  np.savez_compressed(temporary, **rows)
  temporary.replace(path)


def _read_rows(path: Path) -> dict[str, np.ndarray] | None:
  """What `write_rows` has written; None: there is nothing, or it is damaged."""
  try:
    with np.load(path) as file:
      return {name: file[name] for name in (*SHARED, TOLD)}
  except Exception:  # numpy, zipfile and zlib each have errors of their own for what is damaged
    return None


def side_by_side(folders: Mapping[str, Path], name: str) -> dict[str, np.ndarray]:
  """What several runs make of the same pictures.

  Args:
    folders: plots of each run, by its name.
    name: of a file in them, from `write_rows`.

  Returns:
    Rows: the original and the masked pictures of the first run that has any, and of every run that
    was shown the same its own; nothing of fewer than two.
  """
  found = {run: _read_rows(folder / name) for run, folder in folders.items()}
  found = {run: rows for run, rows in found.items() if rows is not None}
  first = next(iter(found.values()), {})
  alike = {
    run: rows[TOLD]
    for run, rows in found.items()
    if all(np.array_equal(rows[kind], first[kind]) for kind in SHARED)
  }
  return {kind: first[kind] for kind in SHARED} | alike if len(alike) > 1 else {}
