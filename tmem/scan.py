"""Chunks through `jax.lax.scan`: choice of the implementation and of what is recomputed."""

import functools
import math

import jax
import jax.numpy as jnp

from tmem.cell import Gates, MemoryState, StepInputs, check_inputs, memory_step
from tmem.config import check_window
from tmem.dynamics import dynamics_of, fast_scan
from tmem.scopes import RECURRENCE
from tmem.typing import Grid


def plain_scan(
  params: Gates, state: MemoryState, inputs: StepInputs, window: Grid | None = None
) -> tuple[MemoryState, jax.Array]:
  """`memory_step` scanned over chunks; autodiff differentiates it. The reference for tests."""
  step = functools.partial(memory_step, params, window=window)
  with jax.named_scope(RECURRENCE):
    return jax.lax.scan(step, state, inputs)


SCANS = {"plain": plain_scan, "fast": fast_scan}


def memory_scan(
  params: Gates,
  state: MemoryState,
  inputs: StepInputs,
  *,
  window: Grid | None = None,
  implementation: str = "fast",
  remat: bool | int = False,
) -> tuple[MemoryState, jax.Array]:
  """Runs the memory over a sequence of chunks.

  Args:
    params: parameters of the gates, closed over, never scanned; their type says which dynamics.
    state: the state before the first chunk.
    inputs: `StepInputs` whose arrays have a leading axis of chunks.
    window: cells per axis around each write that are updated; an axis with fewer cells is taken
      whole. None: all cells.
    implementation: "fast" or "plain"; the same numbers from either. Forward-mode derivatives
      (`jax.jvp`, `jax.hessian`) need "plain": the fast one has only its own backward pass.
    remat: False keeps the state of every step for the backward pass; n >= 1 keeps one every n
      steps and recomputes the others; True chooses n ≈ √chunks.

  Returns:
    `(state, reads)`: the state after the last chunk, and what each chunk read before its own
    write, [chunks, batch, reads, channels].

  Raises:
    ValueError: if `implementation` is unknown, `remat` is negative, or shapes disagree; names
      the argument.

  Reference: arXiv 2605.27686, recurrent update over chunks.
  """
  if implementation not in SCANS:
    raise ValueError(f"implementation: got {implementation!r}, expected one of {sorted(SCANS)}")
  if remat < 0:
    raise ValueError(f"remat: got {remat}, expected a bool or a number of steps of at least 1")
  if inputs.content.ndim != 3:
    raise ValueError(
      f"inputs.content: got shape {inputs.content.shape}, expected [chunks, batch, channels]"
    )
  chunks = inputs.content.shape[0]
  check_inputs(params, state, inputs, chunks)
  if window is not None:
    check_window(window, len(state.hidden.shape) - 2)
    if dynamics_of(params).windowed_scan is None:
      raise ValueError(f"window: {type(params).__name__} change all cells; use None")
  if not chunks:  # nothing to be fast about
    return plain_scan(params, state, inputs, window)
  scan = functools.partial(SCANS[implementation], params, window=window)
  length = math.isqrt(chunks) if remat is True else int(remat)
  if not 0 < length < chunks:
    return scan(state, inputs)

  whole = chunks - chunks % length
  split = jax.tree.map(lambda a: a[:whole].reshape(-1, length, *a.shape[1:]), inputs)
  state, reads = jax.lax.scan(jax.checkpoint(scan), state, split)
  reads = reads.reshape(whole, *reads.shape[2:])
  if whole == chunks:
    return state, reads
  state, rest = jax.checkpoint(scan)(state, jax.tree.map(lambda a: a[whole:], inputs))
  return state, jnp.concatenate([reads, rest])
