"""How every command ends: one clear line and an exit status, no stack trace without --debug."""

import logging
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence

import absl.logging
import jax

from data.errors import DatasetError
from train import processes
from train.errors import Interrupted, RunError, ToldElsewhere

_DETERMINISTIC = "--xla_gpu_deterministic_ops"
# What says itself what is wrong; anything else may come from another process that has ended.
_KNOWN = (RunError, DatasetError, KeyboardInterrupt, OSError)


def prepare() -> None:
  """Silences the libraries' notes and makes accelerators compute the same thing every time."""
  absl.logging.set_verbosity(absl.logging.ERROR)
  for name in ("jax", "orbax", "flax"):
    logging.getLogger(name).setLevel(logging.ERROR)
  # Where a checkpoint has a hundred arrays and the disk is full, it has a hundred traces to show.
  logging.getLogger("asyncio").setLevel(logging.CRITICAL)
  warnings.filterwarnings("ignore", category=DeprecationWarning)
  os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"  # of C++: fatal errors; jax raises the others
  xla_flags = os.environ.get("XLA_FLAGS", "")
  if _DETERMINISTIC not in xla_flags:  # exact resume needs it; the CPU always is
    os.environ["XLA_FLAGS"] = f"{xla_flags} {_DETERMINISTIC}=true".strip()


def run(main: Callable[[Sequence[str]], None], can_share: bool = False) -> None:
  """Runs a command and exits: 0, 1 for errors, 2 for bad flags, 128 + number for signals.

  Args:
    main: takes the command line, program name first.
    can_share: whether several processes can run it together, see `train.processes`.
  """
  prepare()
  is_debug = any(flag in ("--debug", "--debug=true", "-debug") for flag in sys.argv[1:])
  try:
    processes.join(can_share)
    main(sys.argv)
    processes.leave()
  except BrokenPipeError:  # whoever read our output has gone, as `head` does
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if (endings := processes.peers().endings) is not None:
      endings.fail(1, f"error: nobody reads what process {jax.process_index()} says", True)
    sys.exit(1)
  except (Exception, KeyboardInterrupt) as error:
    if is_debug:
      traceback.print_exc()
    status, message = describe(error)
    label = "" if status > 128 else "error: "
    _end(status, f"{label}{' '.join(message.split())}", error)
  sys.exit(0)


def _end(status: int, line: str, error: BaseException) -> None:
  """Ends this process, and those that run with it; one of them says why."""
  endings = processes.peers().endings
  if endings is not None and isinstance(error, Interrupted) and endings.is_stopping:
    is_first = jax.process_index() == 0  # all have saved and stop here
    processes.leave()
  elif endings is not None:
    endings.fail(status, line, isinstance(error, _KNOWN))
  else:
    is_first = not isinstance(error, ToldElsewhere)
  if is_first:
    print(line, file=sys.stderr, flush=True)
  sys.exit(status)


def describe(error: BaseException) -> tuple[int, str]:
  """What an error means to the user.

  Args:
    error: what ended the command.

  Returns:
    (exit status, message).
  """
  if isinstance(error, RunError):
    return error.exit_status, str(error)
  if isinstance(error, DatasetError):  # found while training: data that have been damaged since
    return 1, str(error)
  if isinstance(error, KeyboardInterrupt):
    return 130, "interrupted"
  if isinstance(error, OSError):
    return 1, f"{error.filename}: {error.strerror}" if error.filename else str(error)
  first_line = (str(error).strip().splitlines() or [""])[0][:300]
  return 1, f"{type(error).__name__}: {first_line} (--debug shows where it comes from)"
