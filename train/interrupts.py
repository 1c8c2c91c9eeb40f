"""SIGTERM and Ctrl-C as a question the loop asks between steps.

Of several processes each may get the signal, and all stop at the same step: they have to ask
equally often.
"""

import signal
from types import TracebackType

from train import processes


class Interrupts:
  """While active, the first signal is remembered; a second Ctrl-C ends the process at once.

  One that has led to no error by the end takes its usual effect then: none is lost.

  Attributes:
    signum: the signal that came, or None.
  """

  SIGNALS = (signal.SIGINT, signal.SIGTERM)

  def __init__(self):
    self.signum: int | None = None
    self._previous = {}
    self._has_asked = False  # the other processes

  def __enter__(self) -> "Interrupts":
    self._previous = {number: signal.signal(number, self._remember) for number in self.SIGNALS}
    return self

  def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None):
    for number, handler in self._previous.items():
      signal.signal(number, handler)
    # Of several processes that have made their last step together none may miss at the end.
    if self.signum is not None and error is None and processes.peers().endings is None:
      signal.raise_signal(self.signum)

  def pending(self) -> bool:
    """Whether the run has been asked to stop."""
    endings = processes.peers().endings
    if endings is None:
      return self.signum is not None
    if self.signum is not None and not self._has_asked:
      self._has_asked = True
      endings.ask_to_stop(self.signum)
    signum = endings.stopping()
    self.signum = self.signum if signum is None else signum
    return signum is not None

  def _remember(self, signum, frame):
    if self.signum is not None and signum == signal.SIGINT:
      raise KeyboardInterrupt
    self.signum = signum
