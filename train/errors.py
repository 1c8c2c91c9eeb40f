"""Errors that end a command with one clear line."""


class RunError(Exception):
  """Something outside the code is wrong (a file, a checkpoint, the data): exit status 1."""

  exit_status = 1


class FlagError(RunError):
  """A flag is wrong: exit status 2."""

  exit_status = 2


class Interrupted(RunError):  # noqa: N818 (it is not a mistake of anyone)
  """The run was asked to stop and has saved itself: exit status 128 + signal number."""

  def __init__(self, message: str, signum: int):
    super().__init__(message)
    self.exit_status = 128 + signum


class ToldElsewhere(RunError):  # noqa: N818 (it names no mistake)
  """Another process of the run says what is wrong; this one ends without a word."""
