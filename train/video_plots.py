"""Which classes of videos are taken for which."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from train import outputs
from train.plots import save
from train.tables import text_table


def draw_confusion(
  classes: Sequence[str], labels: Sequence[int], told: Sequence[int], folder: Path
) -> None:
  """Writes `confusion.png` and `classes.txt`, a line for each class.

  Args:
    classes: names, by label.
    labels: of the clips.
    told: what was told of each.
    folder: where to.
  """
  counts = np.zeros((len(classes), len(classes)), int)
  np.add.at(counts, (np.asarray(labels, int), np.asarray(told, int)), 1)
  clips = counts.sum(axis=1)
  shares = counts / np.maximum(clips, 1)[:, None]
  edge = min(4 + 0.25 * len(classes), 20)
  figure = Figure(figsize=(edge + 1, edge), layout="constrained")
  axes = figure.subplots()
  picture = axes.imshow(100 * shares, cmap="viridis", vmin=0, vmax=100)
  axes.set(xlabel="told", ylabel="class", xticks=range(len(classes)), yticks=range(len(classes)))
  axes.set_xticklabels(classes, rotation=90, fontsize=7)
  axes.set_yticklabels(classes, fontsize=7)
  figure.colorbar(picture, label="percent of a class's clips")
  save(figure, folder / "confusion.png")
  rows = [["class", "most often taken for", "clips", "right"]]
  for label, name in enumerate(classes):
    wrong = np.where(np.arange(len(classes)) == label, 0, counts[label])
    other = f"{classes[int(wrong.argmax())]} ({wrong.max()})" if wrong.any() else "-"
    right = f"{100 * shares[label, label]:.1f} %" if clips[label] else "-"
    rows.append([name, other, str(clips[label]), right])
  outputs.write_text(folder / "classes.txt", text_table(rows, left=2) + "\n")
