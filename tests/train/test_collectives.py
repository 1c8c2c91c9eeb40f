"""What devices tell one another while memories run, by the compiled programs."""

import json
import math
import re

import pytest

EIGHT = "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"

# Compiles every kind of memory, forwards and backwards, for eight devices, and prints what they
# tell each other: where rows alone are split and the mesh is not named, as in a user's own
# training, and where channels are split too, as here.
PROGRAM = """
import json
import jax, jax.numpy as jnp
from flax import nnx
from tmem import MemoryConfig, TensorMemory
from tmem.dynamics import DYNAMICS
from train.collectives import collectives
from train.sharding import batch_sharding, make_mesh, on_mesh, replicated

bare, mesh = make_mesh((8, 1, 1), 8), make_mesh((2, 2, 2), 8)

def compiled(function, mesh, params):
  step = jax.jit(function, in_shardings=(replicated(mesh), batch_sharding(mesh)))
  step = step.lower(params, jnp.ones((8, 24, 32))).compile()
  calls = collectives(step.as_text(), dict(mesh.shape))
  return step, [[one.kind, one.axes, one.shape, one.count] for one in calls]

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

    both = jax.value_and_grad(run, has_aux=True)
    step, calls = compiled(on_mesh(mesh, both), mesh, params)
    hidden = step.output_shardings[0][1].hidden
    found[f"{name} {update}"] = {
      "forwards": compiled(run, bare, params)[1],
      "backwards": compiled(both, bare, params)[1],
      "share": hidden.shard_shape((8, 4, 5, 16)),
      "calls": calls,
    }
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found(start, tmp_path_factory):
  folder = tmp_path_factory.mktemp("program")
  (folder / "memories_on_devices.py").write_text(PROGRAM)
  process = start("memories_on_devices", XLA_FLAGS=EIGHT, PYTHONPATH=str(folder))
  out, err = process.communicate(timeout=400)
  assert process.returncode == 0, err
  found = json.loads(out.splitlines()[-1])
  assert len(found) == 7
  return found


def in_loops(calls):
  return [kind for kind, *_, count in calls if count > 1]


def test_devices_are_silent_while_the_memory_runs(found):
  """Rows of a batch have nothing to tell each other: gradients of the gates are all there is."""
  for name, one in found.items():
    assert in_loops(one["forwards"]) == [], name
    assert in_loops(one["backwards"]) in ([], ["all-reduce"]), name
  assert in_loops(found["convlstm dense"]["backwards"]) == ["all-reduce"]


def cells_in(shape):
  """How many vectors of 16 channels an array has, or pairs of such (h, and what is written)."""
  *rest, last = map(int, re.findall(r"\d+", shape.partition("[")[2]))
  if last != 16:
    return set()
  return {math.prod(rest), math.prod(rest[:-1])} if rest[-1:] == [2] else {math.prod(rest)}


def test_no_device_gathers_the_state_of_a_memory_whose_channels_are_split(found):
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
