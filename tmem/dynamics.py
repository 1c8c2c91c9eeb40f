"""The dynamics by name: who owns the gates' parameters, and the fast scan that understands them."""

from collections.abc import Callable
from typing import NamedTuple

import jax
from flax import nnx

from tmem.cell import Gates, MemoryState, StepInputs
from tmem.convlstm import GateConv, GateParams
from tmem.diagonal import diagonal_scan
from tmem.flow import FlowConv, FlowParams, flow_scan
from tmem.fused import fused_scan
from tmem.parallel import ParallelConv, ParallelParams
from tmem.selective import SelectiveGates, SelectiveParams
from tmem.typing import Grid
from tmem.windowed import windowed_scan
from tmem.windowed_selective import windowed_selective_scan

Scanned = tuple[MemoryState, jax.Array]


class Dynamics(NamedTuple):
  """One way in which a write changes the state.

  Attributes:
    module: owner of the parameters, made as `module(config, rngs=rngs)`; its `params()` are of
      the class `params`.
    params: class of the parameters, see `tmem.cell.Gates`.
    fast_scan: same contract as `tmem.scan.plain_scan`, updating all cells.
    windowed_scan: the same, updating a window of so many cells per axis; None: it cannot.
  """

  module: type[nnx.Module]
  params: type
  fast_scan: Callable[[Gates, MemoryState, StepInputs], Scanned]
  windowed_scan: Callable[[Gates, MemoryState, StepInputs, Grid], Scanned] | None


# By the names of `tmem.config.DYNAMICS`.
DYNAMICS = {
  "convlstm": Dynamics(GateConv, GateParams, fused_scan, windowed_scan),
  "parallel": Dynamics(ParallelConv, ParallelParams, diagonal_scan, windowed_scan),
  "selective": Dynamics(SelectiveGates, SelectiveParams, diagonal_scan, windowed_selective_scan),
  "flow": Dynamics(FlowConv, FlowParams, flow_scan, None),
}


def dynamics_of(params: Gates) -> Dynamics:
  """The dynamics whose parameters these are; raises ValueError if there is none."""
  for dynamics in DYNAMICS.values():
    if isinstance(params, dynamics.params):
      return dynamics
  raise ValueError(f"params: got a {type(params).__name__}, expected parameters of a dynamics")


def fast_scan(
  params: Gates, state: MemoryState, inputs: StepInputs, window: Grid | None = None
) -> tuple[MemoryState, jax.Array]:
  """The fast scan of the dynamics whose parameters these are; contract as `plain_scan`."""
  own = dynamics_of(params)
  if window is None:
    return own.fast_scan(params, state, inputs)
  return own.windowed_scan(params, state, inputs, window)
