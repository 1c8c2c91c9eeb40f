"""The memory's configuration: a frozen dataclass that validates itself."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

READ_QUERIES = ("first", "token")
TAILS = ("commit", "hold")
IMPLEMENTATIONS = ("fast", "plain")
DYNAMICS = ("convlstm", "parallel", "selective", "flow")
UPDATES = ("dense", "window")
WRITES = ("gaussian", "nearest")
COORDINATE_HEADS = ("shared", "separate")


@dataclasses.dataclass(frozen=True)
class MemoryConfig:
  """Sizes and rules of one Tensor Memory. The defaults are our recommendation.

  Attributes:
    channels: features per voxel (C), >= 1.
    grid: cells per axis, one to four axes of at least one cell; (D, H, W) as published.
    chunk_size: tokens per memory step (K), >= 1.
    sigma_scale: factor on the predicted spread, > 0, in coordinate units.
    sigma_min: lower bound of the spread, or None (as published). Half of what two cells are apart,
      1 / (n - 1) for n on an axis, keeps a write from falling between cells, where it changes
      nothing and has no gradient.
    sigma_max: upper bound of the spread, or None.
    read_query: "first": the chunk's first token reads for all of them (as published);
      "token": each token reads for itself.
    dynamics: what the gates see. "convlstm": a convolution over what is written and what is held
      (as published); "parallel": over what is written alone; "selective": one vector per chunk
      under the Gaussian of its write. These two are linear in the cell and run in parallel over
      time. "flow": as published, but what is held first moves by a learned displacement per
      cell of at most a cell.
    update: which cells a write changes. "dense": all (as published); "window": those around its
      place, so that all others keep their contents exactly and a step costs what the window
      costs, whatever the grid.
    window: cells per axis of the window; an axis with fewer cells is taken whole.
    read_heads: places that a query reads, each with its own coordinate.
    write_heads: places that a chunk writes, one after another, each with its own coordinate,
      spread and content; the gates are the same for all. Each head is a step of the memory.
    write: "gaussian" spreads the content around its coordinate (as published); "nearest" puts it
      into the nearest cell alone, which leaves the write's coordinate without a gradient.
    coordinate_heads: "shared": one head finds the place of reads and writes (as published);
      "separate": each has its own.
    depthwise: whether the gates see a cell's neighbours (as published) or the cell alone;
      "selective" dynamics never do.
    forget_bias: start value of the forget gate's bias. The published 0 halves what is stored
      at every step; 3 keeps 95 % of it.
    tail: what a ragged last chunk does: "commit" zero-pads and writes it (as published),
      "hold" keeps its tokens in the state until the chunk is full, so that feeding a stream in
      pieces equals one pass.
    implementation: "fast" (hand-written backward pass) or "plain" (autodiff, the reference,
      and the one for forward-mode derivatives).
    remat: how much the backward pass recomputes. False keeps the state of every step, n >= 1
      keeps one state every n steps and recomputes between them, True chooses n ≈ √steps.
    dtype: compute type of projections and of the gate product.
    param_dtype: type of the parameters.
    state_dtype: type of the recurrent state; at least float32, whatever `dtype` is.

  Raises:
    ValueError: naming the field, what came and what is right.
  """

  channels: int = 128
  grid: tuple[int, ...] = (2, 2, 2)
  chunk_size: int = 1
  sigma_scale: float = 1.0
  sigma_min: float | None = None
  sigma_max: float | None = None
  read_query: str = "first"
  dynamics: str = "selective"
  update: str = "dense"
  window: tuple[int, ...] = (4, 4, 4)
  read_heads: int = 4
  write_heads: int = 1
  write: str = "gaussian"
  coordinate_heads: str = "shared"
  depthwise: bool = True
  forget_bias: float = 3.0
  tail: str = "commit"
  implementation: str = "fast"
  remat: bool | int = False
  dtype: Any = jnp.float32
  param_dtype: Any = jnp.float32
  state_dtype: Any = jnp.float32

  def __post_init__(self):
    check_int("channels", self.channels)
    object.__setattr__(self, "grid", checked_sizes("grid", self.grid))
    check_finite("sigma_scale", self.sigma_scale, above=0.0)
    check_finite("forget_bias", self.forget_bias)
    for name in ("sigma_min", "sigma_max"):
      if getattr(self, name) is not None:
        check_finite(name, getattr(self, name), above=0.0)
    if None not in (self.sigma_min, self.sigma_max) and self.sigma_min > self.sigma_max:
      raise ValueError(f"sigma_min: {self.sigma_min} is above sigma_max {self.sigma_max}")
    check_choice("read_query", self.read_query, READ_QUERIES)
    check_int("read_heads", self.read_heads)
    check_int("write_heads", self.write_heads)
    check_choice("dynamics", self.dynamics, DYNAMICS)
    check_choice("update", self.update, UPDATES)
    object.__setattr__(self, "window", checked_sizes("window", self.window))
    if self.update == "window":
      check_window(self.window, len(self.grid))
      if self.dynamics == "flow":
        raise ValueError(
          "update: 'window' leaves cells as they are, dynamics 'flow' moves them all"
        )
    check_choice("write", self.write, WRITES)
    check_choice("coordinate_heads", self.coordinate_heads, COORDINATE_HEADS)
    check_choice("depthwise", self.depthwise, (True, False))
    check_choice("implementation", self.implementation, IMPLEMENTATIONS)
    if not isinstance(self.remat, bool):
      check_int("remat", self.remat)
    check_stream_fields(self)

  @classmethod
  def published(cls, **changes) -> "MemoryConfig":
    """The paper's settings (arXiv 2605.27686, language).

    Those are the gates of a ConvLSTM, C=32, 8×8×8, K=16, one read head, forget bias 0.

    Args:
      **changes: fields that shall differ.

    Raises:
      ValueError: as the class.
    """
    sizes = {"channels": 32, "grid": (8, 8, 8), "chunk_size": 16}
    rules = {"dynamics": "convlstm", "read_heads": 1, "forget_bias": 0.0}
    return cls(**{**sizes, **rules, "read_query": "first", "tail": "commit", **changes})

  @property
  def cells(self) -> int:
    """Number of voxels."""
    return math.prod(self.grid)

  def to_dict(self) -> dict[str, Any]:
    """The fields as JSON values; `from_dict` is the inverse."""
    return to_json_dict(self)

  @classmethod
  def from_dict(cls, fields: Mapping[str, Any]) -> "MemoryConfig":
    """Rebuilds a configuration from `to_dict`; raises ValueError on unknown names."""
    return cls(**known_fields(cls, fields))


def check_stream_fields(config: Any) -> None:
  """Checks and normalises what the configuration of every memory has: chunks, tail and types."""
  check_int("chunk_size", config.chunk_size)
  check_choice("tail", config.tail, TAILS)
  for name in ("dtype", "param_dtype", "state_dtype"):
    object.__setattr__(config, name, checked_float_dtype(name, getattr(config, name)))
  if config.state_dtype.itemsize < 4:
    raise ValueError(
      f"state_dtype: {config.state_dtype} loses what is stored step by step; use float32"
      " (compute may be bfloat16: set dtype)"
    )
  if config.state_dtype.itemsize < config.dtype.itemsize:
    raise ValueError(
      f"state_dtype: {config.state_dtype} is narrower than the compute type {config.dtype}; use"
      f" {config.dtype} for both"
    )


def check_int(name: str, value: Any, minimum: int = 1) -> None:
  """Raises ValueError unless `value` is an integer of at least `minimum`."""
  is_int = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
  if not is_int or value < minimum:
    raise ValueError(f"{name}: got {value!r}, expected an integer of at least {minimum}")


def check_finite(name: str, value: Any, above: float = -math.inf) -> None:
  """Raises ValueError unless `value` is a finite number greater than `above`."""
  is_number = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
  if not is_number or not math.isfinite(value) or value <= above:
    bound = "" if above == -math.inf else f" above {above:g}"
    raise ValueError(f"{name}: got {value!r}, expected a finite number{bound}")


def check_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
  """Raises ValueError unless `value` is one of `choices`."""
  if value not in choices:
    raise ValueError(f"{name}: got {value!r}, expected one of {', '.join(map(repr, choices))}")


def check_kind(name: str, value: Any, kind: type) -> None:
  """Raises ValueError unless `value` is a `kind`."""
  if not isinstance(value, kind):
    raise ValueError(f"{name}: got {value!r}, expected a {kind.__name__}")


def checked_float_dtype(name: str, value: Any) -> np.dtype:
  """`value` as a floating dtype, or ValueError."""
  try:
    dtype = None if value is None else jnp.dtype(value)  # numpy takes None for float64
  except TypeError:
    dtype = None
  if dtype is None or not jnp.issubdtype(dtype, jnp.floating):
    raise ValueError(f"{name}: got {value!r}, expected a floating type such as float32")
  if dtype != jax.dtypes.canonicalize_dtype(dtype):
    raise ValueError(f"{name}: {dtype} needs jax.config.update('jax_enable_x64', True)")
  return dtype


def at_least_float32(dtype: Any) -> np.dtype:
  """`dtype`, or float32 if it is narrower: for sums and statistics."""
  dtype = np.dtype(dtype)
  return dtype if dtype.itemsize >= 4 else np.dtype(np.float32)


def to_json_dict(config: Any) -> dict[str, Any]:
  """The fields of a configuration dataclass as JSON values, nested configurations included."""

  def plain(value):
    if dataclasses.is_dataclass(value):
      return to_json_dict(value)
    if isinstance(value, np.dtype):
      return value.name
    if isinstance(value, np.generic):
      return value.item()
    return list(value) if isinstance(value, tuple) else value

  return {f.name: plain(getattr(config, f.name)) for f in dataclasses.fields(config)}


def known_fields(cls: type, fields: Mapping[str, Any]) -> dict[str, Any]:
  """`fields` as a dict; raises ValueError if `cls` has no field of one of the names."""
  names = {f.name for f in dataclasses.fields(cls)}
  for name in fields:
    if name not in names:
      raise ValueError(f"{cls.__name__} has no field {name!r}; it has {', '.join(sorted(names))}")
  return dict(fields)


def checked_sizes(name: str, value: Any) -> tuple[int, ...]:
  """`value` as cells per axis, or ValueError."""
  expected = "expected one to four integers of at least 1, as in (8, 8, 8)"
  if isinstance(value, (str, bytes)) or not hasattr(value, "__getitem__"):
    raise ValueError(f"{name}: got {value!r}, {expected}")
  sizes = tuple(value)
  is_size = [isinstance(n, (int, np.integer)) and not isinstance(n, bool) and n > 0 for n in sizes]
  if not 1 <= len(sizes) <= 4 or not all(is_size):
    raise ValueError(f"{name}: got {value!r}, {expected}")
  if math.prod(int(n) for n in sizes) > np.iinfo(np.int32).max:
    raise ValueError(f"{name}: {sizes} are more cells than 32 bits can count")
  return tuple(int(n) for n in sizes)


def check_window(window: tuple[int, ...], axes: int) -> None:
  """Raises ValueError unless a window has as many axes as its grid."""
  if len(window) != axes:
    raise ValueError(f"window: {window} has {len(window)} axes, but the grid has {axes}")
