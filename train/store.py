"""The key-value store that jax's coordination service keeps for the processes of a run."""

import json
import time
from typing import Any

import jax

_PIECE_SECONDS = 1.0  # a wait is made of pieces, so that signals get a hearing in between
_PREFIX = "tmem/"


class CoordinatorLostError(Exception):
  """The process that keeps the store has ended or cannot be reached."""


class Store:
  """JSON values by key, seen by all processes; a key is set once.

  Args:
    client: jax's client of the coordination service.
    index: which process this is.
    count: number of processes.
  """

  def __init__(self, client: Any, index: int, count: int):
    self._client = client
    self.index, self.count = index, count

  def claim(self, key: str, value: Any) -> bool:
    """Sets a value unless another process has; returns whether it is this one's.

    Raises:
      CoordinatorLostError: if the store is gone.
    """
    try:
      self._client.key_value_set(_PREFIX + key, json.dumps(value))
    except jax.errors.JaxRuntimeError as error:
      if "ALREADY_EXISTS" in str(error):
        return False
      raise CoordinatorLostError(str(error)) from error
    return True

  def wait(self, key: str, seconds: float = float("inf")) -> Any:
    """Waits for a value.

    Args:
      key: its key.
      seconds: how long.

    Returns:
      The value; None if it was not there in time.

    Raises:
      CoordinatorLostError: if the store is gone.
    """
    deadline = time.monotonic() + seconds
    while True:
      left = min(_PIECE_SECONDS, max(deadline - time.monotonic(), 0.001))
      try:
        return json.loads(self._client.blocking_key_value_get(_PREFIX + key, int(1000 * left) + 1))
      except jax.errors.JaxRuntimeError as error:
        if "DEADLINE_EXCEEDED" not in str(error):
          raise CoordinatorLostError(str(error)) from error
      if time.monotonic() >= deadline:
        return None

  def living(self) -> set[int]:
    """The processes that give signs of life; returns when all of them have asked.

    Raises:
      CoordinatorLostError: if the store is gone.
    """
    try:
      return set(self._client.get_live_nodes(list(range(self.count))))
    except jax.errors.JaxRuntimeError as error:
      raise CoordinatorLostError(str(error)) from error
