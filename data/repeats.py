"""Where a token was seen before: nowhere, near, or far back."""

import numpy as np

REPEATS = ("first", "near", "far")


def previous_distances(tokens: np.ndarray) -> np.ndarray:
  """How far back each token's id was seen last.

  Args:
    tokens: [N] integers.

  Returns:
    [N] int32, at least 1; 0 where the id has not been seen before.
  """
  order = np.argsort(tokens, kind="stable")
  same = tokens[order[1:]] == tokens[order[:-1]]
  distances = np.zeros(tokens.size, np.int32)
  distances[order[1:]] = np.where(same, order[1:] - order[:-1], 0)
  return distances


def document_starts(borders: np.ndarray | None, size: int) -> np.ndarray:
  """Where the document of each token starts: [size] integers, 0 if there are no borders."""
  if borders is None:
    return np.zeros(size, np.int64)
  return np.maximum.accumulate(np.where(borders, np.arange(size), 0))


def kinds(distances: np.ndarray, context: np.ndarray, reach: int) -> np.ndarray:
  """Which repeats are near, and which far.

  Args:
    distances: [...] of targets, from `previous_distances`.
    context: [...] how many tokens a model has seen before each of them.
    reach: largest distance that is near: what a windowed attention sees.

  Returns:
    [...] int32, index into `REPEATS`; what lies before the context counts as not seen.
  """
  first, near, far = range(len(REPEATS))
  seen = (distances > 0) & (distances <= context)
  return np.where(seen, np.where(distances <= reach, near, far), first).astype(np.int32)
