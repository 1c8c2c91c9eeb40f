"""What devices tell one another while memories run, by the compiled programs."""

import json
import math
import re

EIGHT = "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"

# Counts what devices tell each other in the loops over chunks, forwards and backwards.
COUNT = """
import json, re
import jax, jax.numpy as jnp, numpy as np
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec
from tmem import MemoryConfig, TensorMemory
from tmem.dynamics import DYNAMICS

CALLS = r" (all-gather|all-reduce|all-to-all|collective-permute)(?:-start)?\\("
mesh = jax.make_mesh((8,), ("data",))
rows, everywhere = (NamedSharding(mesh, PartitionSpec(*axis)) for axis in (("data",), ()))
found = {}
for name, dynamics in DYNAMICS.items():
  for update in ("dense", "window") if dynamics.windowed_scan else ("dense",):
    config = MemoryConfig(
      dynamics=name, update=update, window=(2, 2), grid=(4, 5), channels=8, chunk_size=2
    )
    graph, params = nnx.split(TensorMemory(config, 16, rngs=nnx.Rngs(0)))

    def run(params, x):
      memory = nnx.merge(graph, params)
      return jnp.sum(jnp.square(memory(x, memory.init_state(len(x)))[0]))

    def inside(function):
      step = jax.jit(function, in_shardings=(everywhere, rows))
      text = step.lower(params, jnp.ones((8, 24, 16))).compile().as_text()
      loops = [part for part in re.split(r"\\n(?=\\S)", text) if not part.startswith("ENTRY")]
      return [call for part in loops for call in re.findall(CALLS, part)]

    found[f"{name} {update}"] = inside(run), inside(jax.grad(run))
print(json.dumps(found))
"""


def test_devices_are_silent_while_the_memory_runs(start, tmp_path):
  """Rows of a batch have nothing to tell each other: gradients of the gates are all there is."""
  (tmp_path / "count_collectives.py").write_text(COUNT)
  process = start("count_collectives", XLA_FLAGS=EIGHT, PYTHONPATH=str(tmp_path))
  out, err = process.communicate(timeout=240)
  assert process.returncode == 0, err
  found = json.loads(out.splitlines()[-1])
  assert len(found) == 7
  for name, (forwards, backwards) in found.items():
    assert forwards == [], name
    assert backwards in ([], ["all-reduce"]), name


# What a device holds of a state whose channels are split, and what is gathered of it.
GATHERED = """
import json, math, re
import jax, jax.numpy as jnp
from flax import nnx
from tmem import MemoryConfig, TensorMemory
from tmem.dynamics import DYNAMICS
from train.collectives import collectives
from train.sharding import batch_sharding, make_mesh, on_mesh, replicated

mesh = make_mesh((2, 2, 2), 8)
found = {}
for name, dynamics in DYNAMICS.items():
  for update in ("dense", "window") if dynamics.windowed_scan else ("dense",):
    config = MemoryConfig(
      dynamics=name, update=update, window=(2, 2), grid=(4, 5), channels=16, chunk_size=2
    )
    graph, params = nnx.split(TensorMemory(config, 32, rngs=nnx.Rngs(0)))

    def run(params, x):
      memory = nnx.merge(graph, params)
      y, state = memory(x, memory.init_state(len(x)))
      return jnp.sum(jnp.square(y)), state

    def both(params, x):
      (_, state), grads = jax.value_and_grad(run, has_aux=True)(params, x)
      return grads, state

    step = jax.jit(on_mesh(mesh, both), in_shardings=(replicated(mesh), batch_sharding(mesh)))
    compiled = step.lower(params, jnp.ones((8, 24, 32))).compile()
    hidden = compiled.output_shardings[1].hidden
    found[f"{name} {update}"] = {
      "share": hidden.shard_shape((8, 4, 5, 16)),
      "calls": [
        [one.kind, one.axes, one.shape, one.count]
        for one in collectives(compiled.as_text(), dict(mesh.shape))
      ],
    }
print(json.dumps(found))
"""


def cells_in(shape):
  """How many vectors of 16 channels an array has, or pairs of such (h, and what is written)."""
  *rest, last = map(int, re.findall(r"\d+", shape.partition("[")[2]))
  if last != 16:
    return set()
  return {math.prod(rest), math.prod(rest[:-1])} if rest[-1:] == [2] else {math.prod(rest)}


def test_no_device_gathers_the_state_of_a_memory_whose_channels_are_split(start, tmp_path):
  (tmp_path / "gathered.py").write_text(GATHERED)
  process = start("gathered", XLA_FLAGS=EIGHT, PYTHONPATH=str(tmp_path))
  out, err = process.communicate(timeout=400)
  assert process.returncode == 0, err
  found = json.loads(out.splitlines()[-1])
  assert len(found) == 7
  for name, one in found.items():
    assert one["share"] == [2, 4, 5, 8], name
    gathers = [shape for kind, _, shape, _ in one["calls"] if kind == "all-gather"]
    # The 20 cells of two rows, or windows of four, with all 16 channels.
    assert not set().union(*map(cells_in, gathers)) & {2 * 20, 2 * 4}, name
    # Gradients of what all rows share are summed once, not in every step.
    steps = [call for call in one["calls"] if call[3] >= 12]
    assert all(axes == ["model"] for _, axes, *_ in steps), name
    sums = [shape for kind, *_, shape, _ in one["calls"] if kind == "all-reduce"]
    if name.startswith(("convlstm", "flow")):  # the pointwise mix: four gates of every cell
      assert any(re.match(r"f32\[2,(4,5|2,2),4,16\]", shape) for shape in sums), name
