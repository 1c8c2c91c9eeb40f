"""Says in a Perfetto trace which part of the model an operation belongs to.

A trace names operations as the compiler does ("fusion.12"). What they were in the program stands in
the compiled programs, which the profiler keeps beside the trace, in `*.xplane.pb`. That is a
protocol buffer (`xplane.proto` of TSL, `hlo.proto` of XLA), of which so little is needed that it is
read here as what it is on the wire: numbered fields.
"""

import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path

from tmem.scopes import SCOPES

# Numbers of fields on the way from an XSpace to an HloModuleProto: planes, event_metadata, its
# value, stats, bytes_value, hlo_module.
_TO_MODULE = (1, 4, 2, 5, 6, 1)
_MODULE_NAME, _COMPUTATIONS, _INSTRUCTIONS = 1, 3, 2
_NAME, _METADATA, _OP_NAME = 1, 7, 2
_SCOPE = re.compile(rf"\b({'|'.join(sorted(SCOPES, key=len, reverse=True))})\b")


def name_operations(folder: Path) -> None:
  """Adds to each operation of the traces below a folder where in the program it comes from.

  An operation of the memory bears its scopes in its name, behind "backward" if it is of a backward
  pass; every one has its full name as the argument "op_name".

  Args:
    folder: as `jax.profiler.stop_trace` leaves it.
  """
  for path in folder.rglob("perfetto_trace.json.gz"):
    names: dict[tuple[str, str], str] = {}
    for space in path.parent.glob("*.xplane.pb"):
      names |= operation_names(space.read_bytes())
    with gzip.open(path, "rt", encoding="utf-8") as file:
      trace = json.load(file)
    for event in trace["traceEvents"]:
      arguments = event.get("args", {})
      own = names.get((arguments.get("hlo_module"), arguments.get("hlo_op")))
      if own:
        arguments["op_name"] = own
        event["name"] = _label(own, arguments["hlo_op"])
    with gzip.open(path, "wt", encoding="utf-8") as file:
      json.dump(trace, file)


def operation_names(space: bytes) -> dict[tuple[str, str], str]:
  """What the operations of compiled programs are in the program that was written.

  Args:
    space: content of an `*.xplane.pb`.

  Returns:
    Names with their scopes, by the names of the module and of the operation.
  """
  found = {}
  for module in _at(space, *_TO_MODULE):
    name = _text(module, _MODULE_NAME)
    for instruction in _at(module, _COMPUTATIONS, _INSTRUCTIONS):
      for own in _at(instruction, _METADATA, _OP_NAME):
        found[name, _text(instruction, _NAME)] = own.decode("utf-8", "replace")
  return found


def _label(op_name: str, operation: str) -> str:
  scopes = list(dict.fromkeys(_SCOPE.findall(op_name)))
  if not scopes:
    return operation
  direction = ["backward"] if "transpose(" in op_name else []
  return f"{'/'.join([*direction, *scopes])} {operation}"


def _at(message: bytes, *path: int) -> Iterator[bytes]:
  """The fields of bytes that a path of field numbers leads to."""
  for number, value in _fields(message):
    if number == path[0]:
      if len(path) == 1:
        yield value
      else:
        yield from _at(value, *path[1:])


def _text(message: bytes, number: int) -> str:
  return next(_at(message, number), b"").decode("utf-8", "replace")


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
  """Number and content of every field of bytes; ends where the message is none."""
  at = 0
  while at < len(message):
    tag, at = _varint(message, at)
    kind = tag & 7
    if kind == 0:
      _, at = _varint(message, at)
    elif kind in (1, 5):
      at += 8 if kind == 1 else 4
    elif kind == 2:
      size, at = _varint(message, at)
      yield tag >> 3, message[at : at + size]
      at += size
    else:
      return


def _varint(message: bytes, at: int) -> tuple[int, int]:
  """The number that begins at a place, and the place behind it."""
  value = shift = 0
  while at < len(message):
    byte = message[at]
    value, shift, at = value | (byte & 127) << shift, shift + 7, at + 1
    if byte < 128:
      break
  return value, at
