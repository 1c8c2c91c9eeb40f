"""How the processes of a run end: together, for one reason, which one of them says.

Three threads of every process wait for what ends it: a process that has failed and says so, one
that was asked to stop, and one that gives no sign of life any more.
"""

import contextlib
import os
import sys
import threading
from typing import Any

from train.native_errors import NativeErrors
from train.store import CoordinatorLostError, Store

PERIOD_SECONDS = 2.0  # between two looks at who is there
PARTING_SECONDS = 5.0  # how long the process that keeps the store outlives its own failure
_OVER = {"over": True}
_FATAL = "JAX distributed service detected fatal errors"  # how jax says that process 0 has gone
_KEPT = "what has been saved is whole, the same command goes on from there"


class Endings:
  """One process's part in ending together.

  Args:
    store: what all processes see.
    where: what process 0 is reached at, as the message has it.
    lost_seconds: how long a process may be silent before it counts as lost.
  """

  def __init__(self, store: Store, where: str, lost_seconds: float):
    self._store, self._where, self._lost_seconds = store, where, lost_seconds
    self._lock = threading.Lock()
    self._checks = 0  # how often this process has asked whether to stop
    self._stop_check: int | None = None  # the check at which all stop
    self._signum: int | None = None
    self._leaving = threading.Event()
    self._last_words = threading.Lock()
    self._native_errors = NativeErrors(_FATAL, self._mourn_coordinator)
    targets = (self._await_end, self._await_stop, self._await_death)
    self._threads = [threading.Thread(target=self._guard, args=(t,), daemon=True) for t in targets]
    for thread in self._threads:
      thread.start()

  def ask_to_stop(self, signum: int) -> None:
    """Asks all processes to stop, as the signal that came to this one wants."""
    self._store.claim("stop", {"signum": signum})

  def stopping(self) -> int | None:
    """Whether to stop here: all processes stop at the same one of these calls, and none waits.

    Returns:
      The signal that one of the processes got, or None.
    """
    with self._lock:
      self._checks += 1
      reached = self._stop_check is not None and self._checks >= self._stop_check
      return self._signum if reached else None

  @property
  def is_stopping(self) -> bool:
    """Whether all have agreed to stop."""
    return self._stop_check is not None

  def fail(self, status: int, message: str, is_cause: bool) -> None:
    """Ends all processes because of an error in this one; does not return.

    Args:
      status: exit status.
      message: said by the first process that fails, and by no other.
      is_cause: whether the error says what is wrong; else it may be that another process has ended,
        which takes a while to be known.
    """
    if not is_cause:
      self._leaving.wait(self._lost_seconds + 3 * PERIOD_SECONDS)
    try:
      self._end({"status": status, "process": self._store.index}, message)
    except CoordinatorLostError:
      self._mourn_coordinator()

  def leave(self) -> None:
    """Ends the threads, when all processes have come to this call; process 0 comes back last."""
    store = self._store
    store.claim(f"done/{store.index}", True)
    if store.index == 0:
      for index in range(store.count):
        store.wait(f"done/{index}")
      store.claim("end", _OVER)
      store.claim("stop", _OVER)
    *others, last = self._threads
    for thread in others:
      thread.join()
    self._leaving.set()
    last.join()
    while store.index == 0 and len(store.living()) > 1:  # until the others have disconnected
      pass
    self._native_errors.close()

  def _guard(self, target: Any) -> None:
    try:
      target()
    except CoordinatorLostError:
      if not self._leaving.is_set():
        self._mourn_coordinator()

  def _await_end(self) -> None:
    end = self._store.wait("end")
    if end != _OVER and end["process"] != self._store.index:
      self._depart(end["status"])

  def _await_stop(self) -> None:
    store, request = self._store, self._store.wait("stop")
    if request == _OVER:
      return
    # The lock keeps this process from passing the check that is being agreed upon. No thread here
    # waits for another process's main thread, which may be waiting for ours.
    with self._lock:
      store.claim(f"stopping/{store.index}", self._checks)
      if store.index == 0:
        checks = [store.wait(f"stopping/{index}") for index in range(store.count)]
        store.claim("stop_check", max(checks) + 1)
      self._signum = request["signum"]
      self._stop_check = store.wait("stop_check")

  def _await_death(self) -> None:
    while not self._leaving.wait(PERIOD_SECONDS):
      lost = set(range(self._store.count)) - self._store.living()
      if lost:
        names = ", ".join(map(str, sorted(lost)))
        self._end(
          {"status": 1, "process": self._store.index},
          f"error: process {names} of {self._store.count} has ended without a word, or cannot be"
          f" reached any more; {_KEPT}",
        )
        return

  def _end(self, end: dict[str, Any], message: str) -> None:
    """Ends this process; says why if it is the first that ends."""
    if self._store.claim("end", end):
      _say(message)
    else:
      end = self._store.wait("end")
    if end != _OVER:
      self._depart(end["status"])

  def _depart(self, status: int) -> None:
    self._last_words.acquire()  # that the store goes, too, is nothing to be said any more
    store = self._store
    try:
      if store.index:
        store.claim(f"gone/{store.index}", True)
      else:  # the store goes with process 0, and jax kills those who miss it
        for index in range(1, store.count):
          store.wait(f"gone/{index}", PARTING_SECONDS / (store.count - 1))
    except CoordinatorLostError:
      pass
    _exit(status)

  def _mourn_coordinator(self) -> None:
    self._last_words.acquire()  # several threads, and jax, notice it
    _say(
      f"error: process 0 of {self._store.count} ({self._where}) has ended without a word, or cannot"
      f" be reached any more; {_KEPT}"
    )
    _exit(1)


def _say(message: str) -> None:
  with _without_readers():
    print(message, file=sys.stderr, flush=True)


def _exit(status: int) -> None:
  # Not `sys.exit`: the main thread may wait for a process that will never answer.
  try:
    for stream in (sys.stdout, sys.stderr):
      with _without_readers():
        stream.flush()
  finally:
    os._exit(status)


def _without_readers() -> contextlib.AbstractContextManager[None]:
  """Lets pass that nobody reads our output any more: what ends a process must not fail for it."""
  return contextlib.suppress(OSError, ValueError)
