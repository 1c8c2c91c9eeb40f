"""The memory written down a second time, token by token in numpy: what the tests compare with."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tmem import MemoryState, StepInputs, memory_scan
from tmem.dynamics import DYNAMICS


def _sigmoid(x):
  return 1.0 / (1.0 + np.exp(-x))


def hat_weights(coordinate, size):
  """Weights of the cells of one axis in a linear read: hats around the clamped position."""
  position = np.clip((coordinate + 1.0) / 2.0 * (size - 1), 0.0, size - 1.0)
  return np.maximum(0.0, 1.0 - np.abs(position - np.arange(size)))


def sample(volume, coords):
  """Multilinear read of [*grid, channels] at (x, y, z)."""
  for coordinate in coords[::-1]:  # the first axis left belongs to the last coordinate left
    volume = np.tensordot(hat_weights(coordinate, volume.shape[0]), volume, axes=1)
  return volume


def gaussian(content, coords, spread, grid):
  """[*grid, channels]: the write volume, from the positions of all cells at once."""
  axes = [np.linspace(-1.0, 1.0, n) if n > 1 else np.array([-1.0]) for n in grid]
  positions = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1)
  distance = np.sum((positions - coords[::-1]) ** 2, axis=-1)
  return np.exp(-distance / (2.0 * spread**2 + 1e-6))[..., None] * content


def convolve(volume, kernel, bias):
  """Depthwise convolutions of [*grid, channels], one axis after another."""
  for axis, (taps, shift) in enumerate(zip(kernel, bias, strict=True)):
    result = np.zeros_like(volume) + shift
    lines, out = np.moveaxis(volume, axis, 0), np.moveaxis(result, axis, 0)
    for cell in range(len(lines)):
      for tap, neighbour in enumerate((cell - 1, cell, cell + 1)):
        if 0 <= neighbour < len(lines):
          out[cell] += taps[tap] * lines[neighbour]
    volume = result
  return volume


def convlstm_gates(params, hidden, content, coords, spread):
  """[*grid, 4C] before the nonlinearities, from what is written and what is held."""
  depthwise, depthwise_bias, pointwise, pointwise_bias = params
  written = gaussian(content, coords, spread, hidden.shape[:-1])
  mixed = convolve(np.concatenate([written, hidden], -1), depthwise, depthwise_bias)
  return mixed @ pointwise + pointwise_bias


def parallel_gates(params, hidden, content, coords, spread):
  """The same from what is written alone."""
  depthwise, depthwise_bias, pointwise, pointwise_bias = params
  written = gaussian(content, coords, spread, hidden.shape[:-1])
  return convolve(written, depthwise, depthwise_bias) @ pointwise + pointwise_bias


def selective_gates(params, hidden, content, coords, spread):
  """One vector under the Gaussian, and a bias everywhere."""
  mix, bias = params
  return gaussian(content @ mix, coords, spread, hidden.shape[:-1]) + bias


GATES = {
  "convlstm": convlstm_gates,
  "parallel": parallel_gates,
  "selective": selective_gates,
}


def update(params, hidden, cell, content, coords, spread, dynamics="convlstm"):
  """One write into one row's state: the new (hidden, cell)."""
  gates = GATES[dynamics](params, hidden, content, coords, spread)
  i, f, o, g = np.split(gates, 4, axis=-1)
  cell = _sigmoid(f) * cell + _sigmoid(i) * np.tanh(g)
  return _sigmoid(o) * np.tanh(cell), cell


class Oracle:
  """Reads and writes of a `TensorMemory`, one row and one chunk at a time, in float64."""

  def __init__(self, memory):
    self.config = memory.config
    arrays = jax.tree.map(lambda a: np.asarray(a, np.float64), nnx.to_pure_dict(nnx.state(memory)))
    gates = arrays.pop("gates")
    names = ("mix", "bias")
    if "pointwise" in gates:
      names = ("depthwise", "depthwise_bias", "pointwise", "pointwise_bias")
      axes, width = len(self.config.grid), len(gates["pointwise"])
      gates.setdefault("depthwise", np.zeros((axes, 3, width)) + np.array([[0], [1], [0]]))
      gates.setdefault("depthwise_bias", np.zeros((axes, width)))
    else:
      gates["bias"] = np.append(gates["bias"], np.zeros(self.config.channels))  # none for g
    self.gates = [gates[name] for name in names]
    self.linear = {k: lambda x, v=v: x @ v["kernel"] + v["bias"] for k, v in arrays.items()}

  def coords(self, query, head="coordinate"):
    """Of every head that there is: [heads, axes]."""
    return np.tanh(self.linear[head](query)).reshape(-1, len(self.config.grid))

  def writes(self, summary):
    """Content, coordinate and spread of the write of each head."""
    heads = self.config.write_heads
    contents = self.linear["content"](summary).reshape(heads, -1)
    return zip(contents, *self.written_at(summary), strict=True)

  def written_at(self, summary):
    """Coordinates and spreads; the nearest cell is a Gaussian of no width at all."""
    coords = self.coords(summary)[: self.config.write_heads]
    if self.config.write == "gaussian":
      return coords, self.spread(summary)
    axes = [np.linspace(-1.0, 1.0, n) for n in self.config.grid[::-1]]
    nearest = [
      [a[np.argmin(np.abs(a - c))] for a, c in zip(axes, place, strict=True)] for place in coords
    ]
    return np.array(nearest), np.zeros(len(coords))

  def written_cells(self, place):
    """[*grid, 1] bool: the cells that a write at a place changes."""
    own = np.ones((1,), bool)
    sizes = self.config.window if self.config.update == "window" else self.config.grid
    for size, cells, at in zip(sizes, self.config.grid, place[::-1], strict=True):
      size = min(size, cells)
      start = np.clip(np.round((at + 1) / 2 * (cells - 1) - (size - 1) / 2), 0, cells - size)
      index = np.arange(cells)
      own = own[..., None] & (index >= start) & (index < start + size)
    return own[0][..., None]

  def spread(self, summary):
    config, raw = self.config, self.linear["spread"](summary)
    spread = config.sigma_scale * (np.logaddexp(0.0, raw) + 1e-4)
    low = -np.inf if config.sigma_min is None else config.sigma_min
    return np.clip(spread, low, np.inf if config.sigma_max is None else config.sigma_max)

  def run(self, x, mask=None, hidden=None, cell=None):
    """y [tokens, features], hidden and cell after [tokens, features], the tail committed."""
    config, size = self.config, self.config.chunk_size
    length, features = x.shape
    read_head = "read_coordinate" if config.coordinate_heads == "separate" else "coordinate"
    mask = np.ones(length, bool) if mask is None else mask
    x = np.where(mask[:, None], np.asarray(x, np.float64), 0.0)
    empty = np.zeros((*config.grid, config.channels))
    hidden, cell = (empty if a is None else np.asarray(a, np.float64) for a in (hidden, cell))
    y = np.zeros((length, features))
    for start in range(0, length, size):
      positions = [t for t in range(start, min(start + size, length)) if mask[t]]
      if not positions:
        continue
      for t in positions:
        query = t if config.read_query == "token" else positions[0]
        places = self.coords(x[query], read_head)[: config.read_heads]
        y[t] = self.linear["output"](np.concatenate([sample(hidden, place) for place in places]))
      chunk = np.zeros((size, features))
      chunk[: min(size, length - start)] = x[start : start + size]
      w = self.linear["summary"](chunk.reshape(-1))
      for write in self.writes(w):
        after = update(self.gates, hidden, cell, *write, config.dynamics)
        own = self.written_cells(write[1])
        hidden, cell = (np.where(own, n, o) for n, o in zip(after, (hidden, cell), strict=True))
    return y, hidden, cell


def _random_case(
  name, grid, chunks, masked=False, cleared=False, batch=2, channels=2, dtype=np.float64
):
  rng = np.random.default_rng(chunks)
  kind, axes = DYNAMICS[name].params, len(grid)
  sizes = kind(*kind._fields).shapes(axes, channels)
  params = kind(**{field: 0.7 * rng.normal(size=sizes[field]) for field in kind._fields})
  state = MemoryState(*np.tanh(rng.normal(size=(2, batch, *grid, channels))))
  inputs = StepInputs(
    read_at=rng.uniform(-1.1, 1.1, size=(chunks, batch, 2, axes)),
    write_at=rng.uniform(-1, 1, size=(chunks, batch, axes)),
    content=rng.normal(size=(chunks, batch, channels)),
    spread=rng.uniform(0.2, 1.5, size=(chunks, batch)),
    write=rng.uniform(size=(chunks, batch)) < 0.5 if masked else None,
    clear=rng.uniform(size=(chunks, batch)) < 0.3 if cleared else None,
  )
  case = params, state, inputs
  return jax.tree.map(lambda a: a if a.dtype == bool else a.astype(dtype), case)


def _results(case, **settings):
  """State, reads, and all gradients of one random sum of them."""

  def run(params, state, floats, rows):
    state, reads = memory_scan(params, state, StepInputs(*floats, *rows), **settings)
    total = sum(
      jnp.sum(a * jnp.cos(jnp.arange(a.size, dtype=a.dtype).reshape(a.shape)))
      for a in (state.hidden, state.cell, reads)
    )
    return total, (state, reads)

  params, state, inputs = case
  call = jax.jit(jax.value_and_grad(run, argnums=(0, 1, 2), has_aux=True))
  return call(params, state, tuple(inputs)[:4], tuple(inputs)[4:])


@pytest.fixture(scope="session")
def random_case():
  """(params, state, inputs) of named dynamics; inputs have a leading axis of chunks."""
  return _random_case


@pytest.fixture(scope="session")
def results():
  """((sum, (state, reads)), gradients) of `memory_scan` over such a case."""
  return _results


@pytest.fixture(scope="session")
def reference():
  """The formulas of this file by name."""
  return {
    "sample": sample,
    "gaussian": gaussian,
    "convolve": convolve,
    "update": update,
    "Oracle": Oracle,
  }


@pytest.fixture(scope="session")
def randomised():
  """Builds a module with random numbers in all its parameters: none is zero, none an identity.

  Made in numpy, since every random number that JAX makes outside of a program compiles one.
  """

  def build(make, scale=0.4):
    rng = np.random.default_rng(0)
    graphdef, params = nnx.split(nnx.eval_shape(make))
    filled = jax.tree.map(
      lambda a: jnp.asarray((scale * rng.normal(size=a.shape)).astype(a.dtype)), params
    )
    return nnx.merge(graphdef, filled)

  return build


@pytest.fixture(scope="session")
def compiled():
  """Compiles a call of a module."""

  def compile_call(module, **settings):
    graphdef, params = nnx.split(module)
    call = jax.jit(lambda params, *args: nnx.merge(graphdef, params)(*args, **settings))
    return lambda *args: call(params, *args)

  return compile_call
