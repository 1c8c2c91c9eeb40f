"""Names under which the parts of a memory stand in traces and in compiled programs."""

import functools
from collections.abc import Callable

import jax

MEMORY = "memory"  # all of a call, projections included
READ = "memory_read"  # where to read, and reading
WRITE = "memory_write"  # where and what to write, and the volume that is written
GATES = "memory_gates"  # the gates before their nonlinearities
RECURRENCE = "memory_recurrence"  # what the gates make of the state, and all of a scan over chunks
BACKWARD = "memory_backward"  # around those again, in a backward pass written by hand
SCOPES = (MEMORY, READ, WRITE, GATES, RECURRENCE, BACKWARD)


def scoped(name: str) -> Callable[[Callable], Callable]:
  """A decorator: everything that a function computes bears the name.

  Args:
    name: one of `SCOPES`.
  """

  def decorate(function: Callable) -> Callable:
    @functools.wraps(function)
    def call(*args, **kwargs):
      with jax.named_scope(name):
        return function(*args, **kwargs)

    return call

  return decorate
