"""How every command ends: one clear line and an exit status, no stack trace without --debug."""

import logging
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence

import absl.logging

from data.errors import DatasetError
from train.errors import RunError

_DETERMINISTIC = "--xla_gpu_deterministic_ops"


def prepare() -> None:
  """Silences the libraries' notes and makes accelerators compute the same thing every time."""
  absl.logging.set_verbosity(absl.logging.ERROR)
  for name in ("jax", "orbax", "flax"):
    logging.getLogger(name).setLevel(logging.ERROR)
  # Where a checkpoint has a hundred arrays and the disk is full, it has a hundred traces to show.
  logging.getLogger("asyncio").setLevel(logging.CRITICAL)
  warnings.filterwarnings("ignore", category=DeprecationWarning)
  xla_flags = os.environ.get("XLA_FLAGS", "")
  if _DETERMINISTIC not in xla_flags:  # exact resume needs it; the CPU always is
    os.environ["XLA_FLAGS"] = f"{xla_flags} {_DETERMINISTIC}=true".strip()


def run(main: Callable[[Sequence[str]], None]) -> None:
  """Runs a command and exits: 0, 1 for errors, 2 for bad flags, 128 + number for signals.

  Args:
    main: takes the command line, program name first.
  """
  prepare()
  is_debug = any(flag in ("--debug", "--debug=true", "-debug") for flag in sys.argv[1:])
  try:
    main(sys.argv)
  except BrokenPipeError:  # whoever read our output has gone, as `head` does
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(1)
  except (Exception, KeyboardInterrupt) as error:
    if is_debug:
      traceback.print_exc()
    status, message = describe(error)
    label = "" if status > 128 else "error: "
    print(f"{label}{' '.join(message.split())}", file=sys.stderr, flush=True)
    sys.exit(status)
  sys.exit(0)


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
