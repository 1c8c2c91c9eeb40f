"""Tables of text."""

from collections.abc import Sequence

import numpy as np


def text_table(rows: Sequence[Sequence[str]], left: int) -> str:
  """A table for the terminal.

  Args:
    rows: texts, as many in each row; the headings first.
    left: columns that are flush left; the others are flush right.

  Returns:
    Lines of text.
  """
  widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
  lines = (
    "  ".join(
      cell.ljust(width) if column < left else cell.rjust(width)
      for column, (cell, width) in enumerate(zip(row, widths, strict=True))
    )
    for row in rows
  )
  return "\n".join(line.rstrip() for line in lines)


def markdown_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
  """A table as Markdown has it.

  Args:
    headings: of the columns.
    rows: texts, as many in each row as there are headings.

  Returns:
    Lines of text.
  """
  lines = [headings, ["---"] * len(headings), *rows]
  return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def mean_and_range(values: Sequence[float], digits: int) -> str:
  """The mean, and of several values the least and the most; nothing where there is no value."""
  if not values:
    return ""
  mean = f"{np.mean(values):.{digits}f}"
  if len(values) == 1:
    return mean
  return f"{mean} ({min(values):.{digits}f}–{max(values):.{digits}f})"
