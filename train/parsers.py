"""Parsers of flag values: each says what it expects in words that fit behind the flag's name."""

import math
from collections.abc import Sequence
from typing import Any

from absl import flags

TEXT = flags.ArgumentParser()
TEXTS = flags.ListParser()  # with commas between; a text in quotes may have commas itself


class Integer(flags.ArgumentParser):
  """An integer in a range."""

  def __init__(self, minimum: int, maximum: int | None = None):
    self.minimum, self.maximum = minimum, maximum
    upper = "" if maximum is None else f" and at most {maximum}"
    self.syntactic_help = f"an integer of at least {minimum}{upper}"

  def parse(self, argument: Any) -> int:
    """Parses `argument`, or raises ValueError saying what is expected."""
    try:
      value = int(str(argument).replace("_", ""))
    except ValueError:
      raise ValueError(f"expected {self.syntactic_help}") from None
    if value < self.minimum or (self.maximum is not None and value > self.maximum):
      raise ValueError(f"expected {self.syntactic_help}")
    return value


class Number(flags.ArgumentParser):
  """A finite number between two bounds.

  Args:
    low: lower bound, itself allowed unless `open_low`.
    high: upper bound, itself not allowed.
    open_low: whether `low` itself is not allowed.
  """

  def __init__(self, low: float = -math.inf, high: float = math.inf, open_low: bool = False):
    self.low, self.high, self.open_low = low, high, open_low
    bounds = []
    if low > -math.inf:
      bounds.append(f"above {low:g}" if open_low else f"of at least {low:g}")
    if high < math.inf:
      bounds.append(f"below {high:g}")
    self.syntactic_help = " ".join(["a finite number", " and ".join(bounds)]).strip()

  def parse(self, argument: Any) -> float:
    """Parses `argument`, or raises ValueError saying what is expected."""
    try:
      value = float(argument)
    except ValueError:
      raise ValueError(f"expected {self.syntactic_help}") from None
    too_low = value <= self.low if self.open_low else value < self.low
    if not math.isfinite(value) or too_low or value >= self.high:
      raise ValueError(f"expected {self.syntactic_help}")
    return value


class Choice(flags.ArgumentParser):
  """One of some names."""

  def __init__(self, names: Sequence[str]):
    self.names = tuple(names)
    self.syntactic_help = "one of " + ", ".join(self.names)

  def parse(self, argument: Any) -> str:
    """Returns `argument`, or raises ValueError saying what is expected."""
    if argument not in self.names:
      raise ValueError(f"expected {self.syntactic_help}")
    return argument


class Boolean(flags.ArgumentParser):
  """True or false, as a value."""

  syntactic_help = "true or false"

  def parse(self, argument: Any) -> bool:
    """Parses `argument`, or raises ValueError saying what is expected."""
    words = {"false": False, "true": True}
    if str(argument).lower() not in words:
      raise ValueError(f"expected {self.syntactic_help}")
    return words[str(argument).lower()]


class WordOr(flags.ArgumentParser):
  """A word with a meaning of its own, or what another parser reads."""

  def __init__(self, word: str, parser: flags.ArgumentParser):
    self.word, self.parser = word, parser
    self.syntactic_help = f"{word}, or {parser.syntactic_help}"

  def parse(self, argument: Any) -> Any:
    """Parses `argument`, or raises ValueError saying what is expected."""
    try:
      return argument if argument == self.word else self.parser.parse(argument)
    except ValueError:
      raise ValueError(f"expected {self.syntactic_help}") from None


class Several(flags.ArgumentParser):
  """One or more values that another parser reads, with commas between."""

  def __init__(self, parser: flags.ArgumentParser):
    self.parser = parser
    self.syntactic_help = f"with commas between, {parser.syntactic_help}"

  def parse(self, argument: Any) -> tuple[Any, ...]:
    """Parses `argument`, or raises ValueError saying what is expected."""
    parts = argument if isinstance(argument, (tuple, list)) else argument.split(",")
    try:
      values = tuple(self.parser.parse(part) for part in parts)
    except ValueError:
      raise ValueError(f"expected {self.syntactic_help}") from None
    if len(set(values)) < len(values):
      raise ValueError("expected each value once")
    return values


class Stages(flags.ArgumentParser):
  """Stages of a curriculum, as in 5:200,10:400."""

  syntactic_help = "difficulty:steps with commas between, as in 5:200,10:400"

  def parse(self, argument: Any) -> tuple[tuple[int, int], ...]:
    """Parses `argument`, or raises ValueError saying what is expected."""
    if isinstance(argument, tuple):
      return argument
    try:
      pairs = tuple(tuple(int(n) for n in part.split(":")) for part in argument.split(","))
    except ValueError:
      pairs = ()
    if not pairs or any(len(pair) != 2 or pair[0] < 0 or pair[1] < 1 for pair in pairs):
      raise ValueError(f"expected {self.syntactic_help}, with at least 1 step each")
    return pairs


class Grid(flags.ArgumentParser):
  """Cells per axis, as in 8,8,8."""

  syntactic_help = "cells per axis, as in 4,4,4"

  def parse(self, argument: Any) -> tuple[int, ...]:
    """Parses `argument`, or raises ValueError saying what is expected."""
    if isinstance(argument, tuple):
      return argument
    try:
      sizes = tuple(int(size) for size in argument.split(","))
    except ValueError:
      sizes = ()
    if not 1 <= len(sizes) <= 4 or min(sizes) < 1:
      raise ValueError("expected one to four integers of at least 1, as in 4,4,4")
    return sizes


class MeshSizes(flags.ArgumentParser):
  """Sizes of the mesh axes, kept as text; `mesh_sizes` reads it."""

  syntactic_help = "devices per axis, -1 for all that remain, as in data:-1,fsdp:1,model:1"

  def parse(self, argument: Any) -> str:
    """Returns `argument`, or raises ValueError saying what is expected."""
    mesh_sizes(argument)
    return argument


def mesh_sizes(text: str) -> tuple[int, ...]:
  """Reads sizes of the mesh axes.

  Args:
    text: as in "data:2,fsdp:4"; an axis that is not named has one device.

  Returns:
    Devices on the axes data, fsdp and model; -1 on at most one of them.

  Raises:
    ValueError: if that is not what `text` says.
  """
  sizes = {"data": 1, "fsdp": 1, "model": 1}
  try:
    for part in text.split(","):
      axis, size = part.split(":")
      sizes[axis.strip()] = int(size)
  except ValueError:
    raise ValueError(f"expected {MeshSizes.syntactic_help}") from None
  counts = tuple(sizes.values())
  if len(counts) > 3:
    raise ValueError("expected the axes data, fsdp and model, as in data:-1,fsdp:1,model:1")
  if any(count < 1 and count != -1 for count in counts) or counts.count(-1) > 1:
    raise ValueError("expected sizes of at least 1, or -1 on one axis")
  return counts


class Remat(flags.ArgumentParser):
  """How much the backward pass recomputes: false, true, or a number of steps."""

  syntactic_help = "false, true, or a number of memory steps of at least 1"

  def parse(self, argument: Any) -> bool | int:
    """Parses `argument`, or raises ValueError saying what is expected."""
    words = {"false": False, "true": True}
    text = str(argument).lower()
    if text in words:
      return words[text]
    if text.isdigit() and int(text) > 0:
      return int(text)
    raise ValueError(f"expected {self.syntactic_help}")


class Steps(flags.ArgumentParser):
  """First and last of some steps, as in 20:25."""

  syntactic_help = "first and last step, as in 20:25"

  def parse(self, argument: Any) -> tuple[int, int]:
    """Parses `argument`, or raises ValueError saying what is expected."""
    if isinstance(argument, tuple):
      return argument
    try:
      first, last = (int(step) for step in argument.split(":"))
    except ValueError:
      first, last = 0, 0
    if not 1 <= first <= last:
      raise ValueError(f"expected {self.syntactic_help}, the first step being 1")
    return first, last
