"""What devices tell one another in a step, read from its compiled program."""

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

_BYTES = {"pred": 1, "bf16": 2, "f16": 2, "f32": 4, "f64": 8, "s8": 1, "u8": 1}
_BYTES |= {f"{sign}{bits}": bits // 8 for sign in "su" for bits in (16, 32, 64)}
_KINDS = ("all-gather", "all-reduce", "all-to-all", "collective-permute", "reduce-scatter")
_CALL = re.compile(rf"= (?P<type>.+?) (?P<kind>{'|'.join(_KINDS)})(?P<start>-start)?\(")
_ARRAY = re.compile(r"(\w+)\[([\d,]*)\]")
_COMPUTATION = re.compile(r"^(ENTRY )?%(\S+) \(.*\{$")
_CALLED = re.compile(r"(?:body|condition|calls|to_apply|\w+_computation)=%([\w.-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')


class Collective(NamedTuple):
  """Messages of one kind and size.

  Attributes:
    kind: "all-reduce", "all-gather", …
    axes: the mesh axes whose devices take part; empty if the program does not say.
    devices: how many take part.
    shape: of the result on a device, as in "f32[8,128]"; of several, the first and how many more.
    size: bytes of the result on a device.
    count: how often in a step.
    scope: what it is for, as the program names it.
  """

  kind: str
  axes: tuple[str, ...]
  devices: int
  shape: str
  size: int
  count: int
  scope: str

  @property
  def sent(self) -> int:
    """Bytes that a device sends in a step, if messages go around a ring."""
    others = self.devices - 1
    share = {
      "all-reduce": 2 * others / self.devices,
      "reduce-scatter": others,
      "collective-permute": 1,
    }.get(self.kind, others / self.devices)
    return round(self.count * self.size * share)


def collectives(program: str, mesh: dict[str, int]) -> list[Collective]:
  """Reads the collectives of a compiled program.

  Args:
    program: text of its HLO, as `compiled.as_text()`.
    mesh: devices of each axis, in the order of the device numbers, the last axis fastest.

  Returns:
    One for each kind, shape, axes and scope, with counts: in a loop as often as it runs, where the
    program says how often; all branches of a condition count.
  """
  found: dict[Collective, int] = {}
  computations, entry = _computations(program)

  def visit(name: str, times: int) -> None:
    for line in computations.get(name, ()):
      call = _CALL.search(line)
      if call:
        one = _collective(call, line, mesh)
        found[one] = found.get(one, 0) + times
      trips = _TRIPS.search(line) if " while(" in line else None
      inner = times * int(trips[1]) if trips else times
      branches = _BRANCHES.search(line)
      listed = re.findall(r"%([\w.-]+)", branches[1]) if branches else []
      for called in (*_CALLED.findall(line), *listed):
        visit(called, inner)

  visit(entry, 1)
  return [one._replace(count=count) for one, count in found.items()]


def _computations(program: str) -> tuple[dict[str, list[str]], str]:
  """Lines of each computation, and the name of the first to run."""
  found, entry, lines = {}, "", None
  for line in program.splitlines():
    header = _COMPUTATION.match(line)
    if header:
      lines = found.setdefault(header[2], [])
      entry = header[2] if header[1] else entry
    elif lines is not None:
      lines.append(line)
  return found, entry


def _collective(call: re.Match, line: str, mesh: dict[str, int]) -> Collective:
  kind = call["kind"]
  arrays = _ARRAY.findall(call["type"])
  if call["start"] and kind in ("all-gather", "collective-permute"):
    arrays = arrays[len(arrays) // 2 :]  # such a one names its operands, too
  sizes = [_BYTES.get(dtype, 4) * math.prod(_numbers(shape)) for dtype, shape in arrays]
  group = _first_group(line)
  scope = re.search(r'op_name="([^"]*)"', line)
  return Collective(
    kind,
    _axes(group, mesh),
    len(group) or math.prod(mesh.values()),
    _arrays_text(arrays),
    sum(sizes),
    1,
    scope[1] if scope else "",
  )


def _arrays_text(arrays: Sequence[tuple[str, str]]) -> str:
  """Types and shapes of arrays; of many, the first and how many more."""
  texts = [f"{dtype}[{shape}]" for dtype, shape in arrays]
  return texts[0] + (f" and {len(texts) - 1} more" if len(texts) > 1 else "")


def _numbers(text: str) -> list[int]:
  return [int(number) for number in re.findall(r"\d+", text)]


def _iota(text: str) -> np.ndarray:
  """Device numbers from a notation like "[2,4]T(1,0)", or "[8]": a transposed range."""
  dims, _, order = text.partition("T")
  numbers = np.arange(math.prod(_numbers(dims))).reshape(_numbers(dims))
  return numbers.transpose(_numbers(order)) if order else numbers


def _first_group(line: str) -> list[int]:
  """Numbers of the devices that take part together, of the first group; empty if unknown."""
  listed = re.search(r"(?:replica_groups|source_target_pairs)=\{(\{[\d,{}]+\})\}", line)
  if listed:  # a device may send to itself, too
    groups = map(_numbers, re.findall(r"\{([\d,]+)\}", listed[1]))
    return next((group for group in groups if len(set(group)) > 1), [])
  tiled = re.search(r"replica_groups=\[(\d+),(\d+)\]<=(\[[\d,]+\](?:T\([\d,]+\))?)", line)
  if tiled:
    return _iota(tiled[3]).reshape(int(tiled[1]), int(tiled[2]))[0].tolist()
  named = re.search(
    r"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\(([^ ]*)\))? \{([^}]*)\}", line
  )
  if named is None:
    return []
  sizes = {name: int(size) for name, size in re.findall(r"'(\w+)'=(\d+)", named[1])}
  ids = _iota(named[2] or str([math.prod(sizes.values())])).reshape(tuple(sizes.values()))
  members = re.findall(r"'(\w+)'", named[3])
  return ids[tuple(slice(None) if name in members else 0 for name in sizes)].reshape(-1).tolist()


def _axes(group: list[int], mesh: dict[str, int]) -> tuple[str, ...]:
  """The axes of the mesh along which the devices of a group differ."""
  if not group:
    return ()
  places = np.unravel_index(group, tuple(mesh.values()))
  return tuple(axis for axis, at in zip(mesh, places, strict=True) if len(set(at.tolist())) > 1)
