import json

import jax
import numpy as np
import pytest
from flax import nnx
from jax.sharding import PartitionSpec

from tmem.models import LanguageConfig, LanguageModel
from train.config import OptimConfig
from train.errors import FlagError
from train.optim import make_optimizer
from train.sharding import (
  batch_sharding,
  make_mesh,
  put_global_batch,
  put_local_batch,
  tree_shardings,
)

EIGHT = "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"
# Trains the tiny model for a few steps on a mesh and prints what came out.
PROGRAM = """
import dataclasses, json, sys
import jax, numpy as np
from train import flags, language_task
from train.assembly import assemble
from train.language_flags import COMMAND
from train.evaluate import make_evaluate
from train.parsers import mesh_sizes
from train.sharding import put_local_batch

def run(mesh_text, arguments):
  config = flags.parse(COMMAND, ["language", *arguments])
  task = language_task.make_task(config, language_task.load_corpus(config.data))
  run = dataclasses.replace(config.run, mesh=mesh_sizes(mesh_text))
  mesh, setup, step = assemble(task.build, task.loss_fn, run, config.optim)
  state, batches, losses = setup.init(), task.train_batches(), []
  for _ in range(3):
    state, metrics = step(state, put_local_batch(next(batches), mesh))
    losses.append(float(metrics["loss"]))
  evaluate = make_evaluate(setup.graphdef, task.eval_loss_fn, mesh)
  leaves = jax.tree.leaves((state.params, state.opt_state))
  return {
    "devices": len(mesh.devices.flat),
    "split": sum(not leaf.sharding.is_fully_replicated for leaf in leaves),
    "bytes": sum(leaf.addressable_shards[0].data.nbytes for leaf in leaves),
    "compiled": step.func._cache_size(),
    "losses": losses,
    "valid": evaluate(state.params, task.eval_batches("valid", 100))["loss"],
    "sums": [float(np.abs(np.asarray(leaf)).sum()) for leaf in leaves],
  }

meshes = sys.argv[1].split(";")
print(json.dumps({mesh: run(mesh, sys.argv[2:]) for mesh in meshes}))
"""


def test_one_device_is_a_mesh_of_one():
  mesh = make_mesh((-1, 1, 1), jax.device_count())
  assert dict(mesh.shape) == {"data": jax.device_count(), "fsdp": 1, "model": 1}


@pytest.mark.parametrize(
  ("sizes", "message"),
  [
    ((3, 1, 1), r"--mesh=data:3,fsdp:1,model:1: 3 does not divide the \d+ devices there are"),
    ((-1, 7, 1), r"--mesh=data:-1,fsdp:7,model:1: 7 does not divide the \d+ devices"),
    ((-1, 1, 7), r"--mesh=data:-1,fsdp:1,model:7: 7 does not divide the \d+ devices"),
  ],
)
def test_a_mesh_that_does_not_divide_the_devices_is_refused(sizes, message):
  with pytest.raises(FlagError, match=message):
    make_mesh(sizes, 1)


@pytest.mark.parametrize("put", [put_local_batch, put_global_batch])
def test_rows_that_lie_on_the_devices_stay_there(put):
  mesh = make_mesh((1, 1, 1), 1)
  rows = np.arange(6).reshape(2, 3)
  there = jax.device_put(rows, batch_sharding(mesh))
  found = put({"host": rows, "device": there}, mesh)
  assert found["device"].unsafe_buffer_pointer() == there.unsafe_buffer_pointer()
  for array in found.values():
    assert array.sharding == batch_sharding(mesh)
    np.testing.assert_array_equal(array, rows)


class EightByFsdp:
  """Stands in for a mesh: the rule looks at nothing but its shape."""

  shape = {"data": 1, "fsdp": 8, "model": 1}  # noqa: RUF012


def test_big_matrices_are_split_along_their_largest_divisible_axis(monkeypatch):
  monkeypatch.setattr("train.sharding.NamedSharding", lambda mesh, spec: spec)
  shapes = {
    "wide": (64, 128),
    "tall": (128, 64),
    "odd": (1000, 33),
    "indivisible": (99, 999),
    "small": (8, 8),
    "vector": (8192,),
  }
  tree = {name: jax.ShapeDtypeStruct(shape, np.float32) for name, shape in shapes.items()}
  assert tree_shardings(tree, EightByFsdp()) == {
    "wide": PartitionSpec(None, "fsdp"),
    "tall": PartitionSpec("fsdp"),
    "odd": PartitionSpec("fsdp"),
    "indivisible": PartitionSpec(),
    "small": PartitionSpec(),
    "vector": PartitionSpec(),
  }


class TwoOfEach:
  """Likewise."""

  shape = {"data": 2, "fsdp": 2, "model": 2}  # noqa: RUF012


def test_parameters_and_their_moments_lie_where_the_table_says(monkeypatch):
  monkeypatch.setattr("train.sharding.NamedSharding", lambda mesh, spec: spec)
  model = nnx.eval_shape(
    lambda: LanguageModel(
      LanguageConfig(vocab_size=33, features=64, method="tensor_local"), rngs=nnx.Rngs(0)
    )
  )
  params = nnx.to_pure_dict(nnx.split(model, nnx.Param)[1])
  moments = jax.eval_shape(make_optimizer(OptimConfig(1e-3, 1, 10)).init, params)
  found = tree_shardings((params, moments), TwoOfEach(), min_size=0)
  text = {
    jax.tree_util.keystr(path, simple=True, separator="/"): tuple(spec)
    for path, spec in jax.tree_util.tree_leaves_with_path(
      found, is_leaf=lambda spec: isinstance(spec, PartitionSpec)
    )
  }
  expected = {
    "embedding/embedding": (None, "fsdp"),  # two devices do not divide 33 words
    "positions": ("fsdp",),
    "blocks/0/attention/qkv/kernel": ("fsdp", "model"),
    "blocks/2/attention/out/kernel": ("model", "fsdp"),
    "blocks/1/mlp/up/kernel": ("fsdp", "model"),
    "blocks/1/mlp/up/bias": ("model",),
    "blocks/1/mlp/down/kernel": ("model", "fsdp"),
    "blocks/0/mlp_norm/scale": (),
    "memory/content/kernel": ("fsdp", "model"),
    "memory/output/kernel": ("model", "fsdp"),
    "memory/gates/mix": ("fsdp", None),
  }
  for name, spec in expected.items():
    places = {path: spec for path, spec in text.items() if path.endswith(name)}
    assert len(places) == 3, (name, places)  # the parameter and its two moments
    assert set(places.values()) == {spec}, name


CARRIED = {"carry_state": True, "protocol": "stream"}
EVERY_AXIS = "data:2,fsdp:2,model:2"


@pytest.mark.parametrize(
  ("meshes", "more"),
  [
    (["data:8", "fsdp:8", "model:2", EVERY_AXIS], {}),
    ([EVERY_AXIS], CARRIED),
    ([EVERY_AXIS], {"method": "gated_delta"}),
    ([EVERY_AXIS], {"method": "xl", **CARRIED}),
  ],
)
def test_eight_devices_equal_one(meshes, more, start, options, tmp_path):
  meshes = ["data:1", *meshes]
  more = {"batch_size": 16, "features": 32, "warmup_steps": 0, **more}
  (tmp_path / "train_on_meshes.py").write_text(PROGRAM)
  arguments = [";".join(meshes), *options(tmp_path / "run", **more)]
  process = start("train_on_meshes", *arguments, XLA_FLAGS=EIGHT, PYTHONPATH=str(tmp_path))
  out, err = process.communicate(timeout=240)
  assert process.returncode == 0, err
  found = json.loads(out.splitlines()[-1])
  one = found["data:1"]
  assert one["devices"] == 1
  for mesh in meshes[1:]:
    other = found[mesh]
    assert other["devices"] == (2 if mesh == "model:2" else 8)
    assert other["compiled"] == 1
    # Adam divides small gradients by small numbers: arrays differ by more than losses.
    for key, rtol in (("losses", 1e-5), ("valid", 1e-5), ("sums", 2e-3)):
      np.testing.assert_allclose(other[key], one[key], rtol=rtol, err_msg=f"{mesh}: {key}")
    if mesh == "data:8":
      assert other["split"] == 0
    else:
      assert other["split"] > 0
      assert other["bytes"] < one["bytes"]


# Saves on eight devices, restores on two and saves again, restores on one; prints what differs.
MOVED = """
import dataclasses, json, sys
from pathlib import Path
import jax, numpy as np
from train import flags, language_task
from train.assembly import assemble
from train.checkpoint import Checkpoints
from train.language_flags import COMMAND
from train.parsers import mesh_sizes
from train.sharding import put_local_batch

config = flags.parse(COMMAND, ["language", *sys.argv[1:]])
task = language_task.make_task(config, language_task.load_corpus(config.data))
kept, whole, split = Checkpoints(config.run.workdir / "checkpoints"), [], []
for mesh_text in ("data:2,fsdp:2,model:2", "fsdp:2", "data:1"):
  run = dataclasses.replace(config.run, mesh=mesh_sizes(mesh_text))
  mesh, setup, step = assemble(task.build, task.loss_fn, run, config.optim)
  found = kept.restore(setup.abstract)
  if found is None:
    batch = put_local_batch(next(task.train_batches()), mesh)
    state, progress = step(setup.init(), batch)[0], {"skipped": 0, "best_step": 1}
  else:
    state, progress = found
  leaves = jax.tree.leaves(state)
  split.append(sum(not leaf.sharding.is_fully_replicated for leaf in leaves))
  whole.append([np.asarray(leaf) for leaf in leaves])
  kept.save(state, progress)
same = [all(map(np.array_equal, whole[0], other)) for other in whole]
print(json.dumps({"same": same, "split": split, "arrays": len(whole[0])}))
"""


def test_a_checkpoint_moves_from_eight_devices_to_two_to_one_bit_for_bit(start, options, tmp_path):
  (tmp_path / "moved.py").write_text(MOVED)
  arguments = options(tmp_path / "run", batch_size=8, features=32, carry_state=True)
  process = start("moved", *arguments, XLA_FLAGS=EIGHT, PYTHONPATH=str(tmp_path))
  out, err = process.communicate(timeout=240)
  assert process.returncode == 0, err
  found = json.loads(out.splitlines()[-1])
  assert found["same"] == [True, True, True]
  assert found["split"][0] >= found["split"][1] > found["split"][2] == 0
