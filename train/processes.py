"""A run of several processes: how each finds the others.

Environment variables say it, the same ones for every launcher. Either all of the first three are
set, or the fourth, or none: then there is one process.

  TMEM_COORDINATOR=HOST:PORT  where process 0 listens; all processes have to reach it
  TMEM_PROCESS_COUNT=N        number of processes
  TMEM_PROCESS_INDEX=I        which of them this is, from 0 to N - 1
  TMEM_CLUSTER=auto           jax finds all of that out: on TPU pod slices, under Slurm, Open MPI or
                              mpirun, and in GKE JobSets

  TMEM_CONNECT_SECONDS=300    how long to wait for the others at the start
  TMEM_LOST_SECONDS=30        how long a process may be silent before it counts as lost

A process that is lost ends the others within TMEM_LOST_SECONDS and some ten seconds.

All processes run the same command, with the same --workdir on a file system that they share.
Process 0 alone writes there, but for the arrays of checkpoints, and alone prints. `train.language`,
`train.image` and `train.video` run so, with --mode=train and --mode=eval.
"""

import logging
import os
import signal
import sys
from collections.abc import Mapping
from typing import Any

import jax
from jax.sharding import NamedSharding

from train import rendezvous, result
from train.endings import Endings
from train.errors import FlagError, Interrupted, RunError
from train.peers import Peers
from train.rendezvous import Place
from train.store import Store

_CONTRACT = ("TMEM_COORDINATOR", "TMEM_PROCESS_COUNT", "TMEM_PROCESS_INDEX")
_CLUSTER = "TMEM_CLUSTER"

_peers = Peers()


def peers() -> Peers:
  """The processes of this run."""
  return _peers


def place(environment: Mapping[str, str]) -> Place | None:
  """Reads the contract.

  Args:
    environment: environment variables.

  Returns:
    Where this process meets the others; None if it is the only one.

  Raises:
    FlagError: naming the variable that is wrong or missing.
  """
  given = {name: environment[name] for name in _CONTRACT if environment.get(name)}
  cluster = environment.get(_CLUSTER)
  if cluster and given:
    raise FlagError(f"{_CLUSTER}: set, and so is {next(iter(given))}; set one of them")
  if cluster:
    return _detected(cluster, _seconds(environment, "TMEM_CONNECT_SECONDS", 300))
  if not given:
    return None
  for name in _CONTRACT:
    if name not in given:
      raise FlagError(f"{name}: missing, but {next(iter(given))} is set; set {_all_of(_CONTRACT)}")
  count = _integer(given, "TMEM_PROCESS_COUNT", 1)
  index = _integer(given, "TMEM_PROCESS_INDEX", 0)
  if index >= count:
    raise FlagError(
      f"TMEM_PROCESS_INDEX={index}: expected 0 to {count - 1} (TMEM_PROCESS_COUNT={count})"
    )
  seconds = _seconds(environment, "TMEM_CONNECT_SECONDS", 300)
  address = given["TMEM_COORDINATOR"]
  return _placed(address, count, index, seconds, f"TMEM_COORDINATOR={address}")


def join(can_share: bool) -> None:
  """Connects this process with the others that its environment names, if it does.

  Nothing may have touched a device before.

  Args:
    can_share: whether the command can be run by several processes.

  Raises:
    FlagError: if the environment is wrong, or the command is for one process.
    RunError: if processes are missing or cannot be reached.
  """
  global _peers
  found = place(os.environ)
  if found is None or found.count == 1:
    return
  if not can_share:
    raise FlagError(f"TMEM_PROCESS_COUNT={found.count}: this command runs in one process")
  lost_seconds = _seconds(os.environ, "TMEM_LOST_SECONDS", 30)
  rendezvous.meet(found)
  client = _connect(found, lost_seconds)
  signal.signal(signal.SIGTERM, _stop)
  _take_terminal(found.index == 0)
  store = Store(client, found.index, found.count)
  _peers = Peers(store, Endings(store, found.name, lost_seconds))
  _peers.check_same_code(result.versions())


def leave() -> None:
  """Disconnects from the others, when all of them have come to this."""
  global _peers
  if _peers.endings is not None:
    _peers.endings.leave()
    jax.distributed.shutdown()
    _peers = Peers()


def refuse_many(what: str) -> None:
  """Raises FlagError if there are several processes, for what is done by one."""
  if _peers.endings is not None:
    raise FlagError(f"{what}: is done by one process; run it without {_all_of(_CONTRACT)}")


def check_share(sharding: NamedSharding, rows: int) -> None:
  """Checks that every process has its own equal share of a batch.

  Args:
    sharding: of the rows of a batch.
    rows: how many there are.

  Raises:
    FlagError: if a process has no device, or its rows are not its own.
  """
  count = jax.process_count()
  own = {device.process_index for device in sharding.mesh.devices.flat}
  if len(own) < count:
    raise FlagError(f"--mesh: uses devices of {len(own)} of {count} processes; use them all")
  shape = (rows,)
  spans = {
    index[0].indices(rows)[:2] for index in sharding.addressable_devices_indices_map(shape).values()
  }
  if sum(stop - start for start, stop in spans) * count != rows:
    raise FlagError(
      "--mesh: several processes would need the same rows of a batch; let data and fsdp"
      f" together be a multiple of the {count} processes"
    )


def _placed(address: str, count: int, index: int, seconds: float, name: str) -> Place:
  host, _, port = address.rpartition(":")
  if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
    raise FlagError(f"{name}: expected HOST:PORT, the port from 1 to 65535")
  return Place(host.strip("[]"), int(port), count, index, seconds, name)


def _detected(cluster: str, seconds: float) -> Place:
  """What jax finds out about the cluster this process is in."""
  if cluster != "auto":
    raise FlagError(f"{_CLUSTER}={cluster}: expected auto, or {_all_of(_CONTRACT)} instead")
  # Not public, but what `jax.distributed.initialize` does; it would not say what it has found.
  from jax._src.clusters import ClusterEnv

  try:
    address, count, index, devices = ClusterEnv.auto_detect_unset_distributed_params(
      None, None, None, None, None, int(seconds)
    )
  except Exception as error:  # whatever a half-set environment makes of it
    raise RunError(f"{_CLUSTER}=auto: {error}") from error
  if address is None or count is None or index is None:
    raise FlagError(
      f"{_CLUSTER}=auto: jax finds no cluster that this process is in; set {_all_of(_CONTRACT)}"
    )
  if devices is not None:
    os.environ.setdefault("JAX_LOCAL_DEVICE_IDS", ",".join(map(str, devices)))
  return _placed(address, count, index, seconds, f"{_CLUSTER}=auto ({address})")


def _connect(found: Place, lost_seconds: float) -> Any:
  """Connects through jax; returns its client of the coordination service."""
  jax.config.update("jax_cpu_collectives_implementation", "gloo")
  # Without it jax kills all processes, with a dump of its stack, as soon as one is lost.
  jax.config.update("jax_enable_recoverability", True)
  # It would take SIGTERM, and know no other signal.
  jax.config.update("jax_enable_preemption_service", False)
  host = f"[{found.host}]" if ":" in found.host else found.host
  bound = rendezvous.bind_address(found)
  bound = f"[{bound}]" if ":" in bound else bound
  jax.distributed.initialize(
    f"{host}:{found.port}",
    found.count,
    found.index,
    cluster_detection_method="deactivate",
    initialization_timeout=max(30, int(found.seconds)),
    heartbeat_timeout_seconds=max(1, round(lost_seconds)),
    coordinator_bind_address=f"{bound}:{found.port}",
  )
  from jax._src.distributed import global_state  # jax has no public way to its key-value store

  return global_state.client


def _take_terminal(is_first: bool) -> None:
  """What is printed is printed by process 0; errors by the process that has them."""
  if not is_first:
    logging.disable(logging.WARNING)
  target = os.dup(1) if is_first else os.open(os.devnull, os.O_WRONLY)
  sys.stdout.flush()
  sys.stdout = os.fdopen(target, "w", buffering=1, encoding="utf-8", errors="replace")
  # What libraries write past Python, as Gloo does whenever devices get connected.
  nothing = os.open(os.devnull, os.O_WRONLY)
  os.dup2(nothing, 1)
  os.close(nothing)


def _stop(signum, frame):
  raise Interrupted(f"{signal.Signals(signum).name}: stopped before the first step", signum)


def _integer(given: Mapping[str, str], name: str, least: int) -> int:
  text = given[name]
  if not text.isdecimal() or int(text) < least:
    raise FlagError(f"{name}={text}: expected an integer of at least {least}")
  return int(text)


def _seconds(environment: Mapping[str, str], name: str, default: float) -> float:
  text = environment.get(name) or str(default)
  try:
    seconds = float(text)
  except ValueError:
    seconds = 0.0
  if not 1 <= seconds < 1e6:
    raise FlagError(f"{name}={text}: expected seconds, at least 1")
  return seconds


def _all_of(names: tuple[str, ...]) -> str:
  return f"{', '.join(names[:-1])} and {names[-1]}"
