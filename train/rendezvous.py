"""Where the processes of a run meet before jax connects them.

jax ends a process without an error that could be caught if another one is missing, has another idea
of their number, or cannot be reached. So they meet here first, at the same address: process 0 waits
for the others, and says who is missing or what does not fit.
"""

import contextlib
import json
import os
import socket
import time
from typing import Any, NamedTuple

from train.errors import RunError, ToldElsewhere

_PARTING_SECONDS = 10.0  # how much longer others wait, so that process 0 is the one to speak
_PATIENCE_SECONDS = 5.0  # for one message
_RETRY_SECONDS = 0.2


class Place(NamedTuple):
  """Where to meet.

  Attributes:
    host: name or number of the machine of process 0.
    port: where it listens.
    count: number of processes.
    index: which of them this is.
    seconds: how long to wait for the others.
    name: of host and port, for messages.
  """

  host: str
  port: int
  count: int
  index: int
  seconds: float
  name: str


def meet(place: Place) -> None:
  """Returns when all processes are there.

  Args:
    place: where to meet.

  Raises:
    RunError: saying which process cannot be reached, is missing, or is not one of these.
    ToldElsewhere: if process 0 says it.
  """
  (_attend if place.index else _host)(place)


def bind_address(place: Place) -> str:
  """What process 0 listens at: nothing but this machine, if that is where the others look."""
  is_local = place.host in ("localhost", "::1") or place.host.startswith("127.")
  if is_local:
    return place.host
  return "::" if socket.has_dualstack_ipv6() else "0.0.0.0"


def _host(place: Place) -> None:
  deadline = time.monotonic() + place.seconds
  guests: dict[int, socket.socket] = {}
  with contextlib.ExitStack() as stack:
    server = stack.enter_context(_listen(place))
    try:
      while len(guests) < place.count - 1:
        guest = _next_guest(server, place, guests, deadline)
        stack.enter_context(guest)
    except RunError as error:
      _tell(guests, {"error": str(error)})
      raise
    _tell(guests, {"all": True})


def _listen(place: Place) -> socket.socket:
  address = bind_address(place)
  family = socket.AF_INET6 if ":" in address else socket.AF_INET
  try:
    return socket.create_server(
      (address, place.port), family=family, dualstack_ipv6=address == "::", backlog=place.count
    )
  except OSError as error:
    raise RunError(
      f"{place.name}: process 0 cannot listen there ({os.strerror(error.errno)}); give its"
      " machine's address and a free port"
    ) from error


def _next_guest(
  server: socket.socket, place: Place, guests: dict[int, socket.socket], deadline: float
) -> socket.socket:
  """Takes in the next process; raises RunError if it does not fit, or none comes in time."""
  while True:
    server.settimeout(max(deadline - time.monotonic(), 0.001))
    try:
      guest, _ = server.accept()
    except TimeoutError:
      missing = sorted(set(range(1, place.count)) - guests.keys())
      raise RunError(
        f"{place.name}: after {place.seconds:g} seconds (TMEM_CONNECT_SECONDS)"
        f" {len(missing)} of {place.count} processes are missing: {', '.join(map(str, missing))}"
      ) from None
    hello = _read(guest, _PATIENCE_SECONDS)
    if hello is None:  # no process of ours
      guest.close()
      continue
    index, count = hello.get("index"), hello.get("count")
    known = guests.get(index)
    problem = None
    if count != place.count:
      problem = f"TMEM_PROCESS_COUNT: process 0 has {place.count}, process {index} has {count}"
    elif known is not None and _is_open(known):
      problem = f"TMEM_PROCESS_INDEX={index}: two processes have it; each needs its own"
    guests[index if problem is None else -1] = guest
    if problem:
      raise RunError(problem)
    return guest


def _attend(place: Place) -> None:
  began = time.monotonic()
  while True:
    try:
      with socket.create_connection((place.host, place.port), timeout=_PATIENCE_SECONDS) as server:
        _write(server, {"index": place.index, "count": place.count})
        left = began + place.seconds + _PARTING_SECONDS - time.monotonic()
        answer = _read(server, max(left, _PATIENCE_SECONDS))
    except OSError as error:
      problem = error.strerror or str(error)
    else:
      if answer and "error" in answer:
        raise ToldElsewhere(answer["error"])
      if answer:
        return
      problem = "what listens there does not answer"
    if time.monotonic() - began > place.seconds:
      raise RunError(
        f"{place.name}: process {place.index} cannot reach process 0 there after"
        f" {place.seconds:g} seconds (TMEM_CONNECT_SECONDS): {problem}"
      )
    time.sleep(_RETRY_SECONDS)


def _tell(guests: dict[int, socket.socket], message: dict[str, Any]) -> None:
  for guest in guests.values():
    with contextlib.suppress(OSError):
      _write(guest, message)
  for guest in guests.values():  # they close first: the port is free at once
    with contextlib.suppress(OSError):
      guest.settimeout(_PATIENCE_SECONDS)
      guest.recv(1)


def _write(peer: socket.socket, message: dict[str, Any]) -> None:
  peer.sendall(json.dumps({"tmem": 1, **message}).encode() + b"\n")


def _read(peer: socket.socket, seconds: float) -> dict[str, Any] | None:
  """A message; None if there comes none, or no such."""
  peer.settimeout(seconds)
  try:
    with peer.makefile("rb") as file:
      message = json.loads(file.readline(4096))
  except (OSError, ValueError):
    return None
  return message if isinstance(message, dict) and message.get("tmem") == 1 else None


def _is_open(peer: socket.socket) -> bool:
  """Whether the other end has not hung up."""
  peer.settimeout(0.0)
  try:
    return peer.recv(1) != b""
  except BlockingIOError:
    return True
  except OSError:
    return False
