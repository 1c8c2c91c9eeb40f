"""Turns one kind of fatal error of native code into a line and an exit status.

jax kills a process whose coordinator has gone: it writes its stack to the terminal and aborts. That
cannot be caught, so it is intercepted: native code writes to a pipe in place of the terminal, and
the signal of the abort has a handler. Other fatal errors look and end as they always do.
"""

import contextlib
import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable

_HANDLER = ctypes.CFUNCTYPE(None, ctypes.c_int)
_SECONDS = 2.0  # from an abort until the thread has certainly read what was written before it


class NativeErrors:
  """Intercepts a fatal error, until `close`.

  Args:
    marker: part of the line with which native code announces the error.
    on_error: ends the process in place of the abort.
  """

  def __init__(self, marker: str, on_error: Callable[[], None]):
    self._marker, self._on_error = marker.encode(), on_error
    self._announced = threading.Event()
    self._terminal = os.dup(2)
    self._python = sys.stderr
    sys.stderr = os.fdopen(os.dup(2), "w", buffering=1, errors="backslashreplace")
    reader, writer = os.pipe()
    os.dup2(writer, 2)
    os.close(writer)
    self._thread = threading.Thread(target=self._forward, args=(reader,), daemon=True)
    self._thread.start()
    self._handler = _HANDLER(self._on_abort)  # kept: native code will call it
    _set_handler(self._handler)

  def close(self) -> None:
    """Leaves everything as it was."""
    _set_handler(_HANDLER(signal.SIG_DFL))
    sys.stderr, ours = self._python, sys.stderr
    ours.close()
    os.dup2(self._terminal, 2)  # the last writer of the pipe
    self._thread.join()
    os.close(self._terminal)

  def _forward(self, reader: int) -> None:
    with os.fdopen(reader, "rb", buffering=0) as pipe:
      while text := pipe.read(1 << 16):
        if self._marker in text:
          self._announced.set()
        if not self._announced.is_set():
          with contextlib.suppress(OSError):  # the terminal may be gone
            os.write(self._terminal, text)

  def _on_abort(self, signum: int) -> None:
    if self._announced.wait(_SECONDS):
      self._on_error()  # does not return; if this one does, the abort goes on


def _set_handler(handler: Callable[[int], None]) -> None:
  # Python's own handlers run in the main thread some time later, and an abort does not wait.
  ctypes.CDLL(None).signal(signal.SIGABRT, handler)
