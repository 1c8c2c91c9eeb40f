import json
import shutil

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from train.checkpoint import Checkpoints
from train.errors import RunError
from train.sharding import make_mesh
from train.state import make_setup


class Net(nnx.Module):
  def __init__(self, width, rngs, extra=False):
    self.layers = nnx.List([nnx.Linear(3, width, rngs=rngs), nnx.Linear(width, 2, rngs=rngs)])
    if extra:
      self.extra = nnx.Param(jnp.zeros(1))


def setup_of(width=4, **more):
  def build(rngs):
    return Net(width, rngs, **more)

  return make_setup(build, optax.adam(1e-3), make_mesh((1, 1, 1), 1), seed=0)


def state_at(step, setup=None):
  state = (setup or setup_of()).init()
  return state._replace(step=jnp.int32(step), params=jax.tree.map(lambda p: p + step, state.params))


def save(checkpoints, step, best_step=None):
  return checkpoints.save(state_at(step), {"skipped": 3, "best_step": best_step, "window": [0.1]})


def names(folder):
  return sorted(path.name for path in folder.iterdir())


def test_what_comes_back_is_what_was_saved(tmp_path):
  checkpoints = Checkpoints(tmp_path)
  assert checkpoints.restore(setup_of().abstract) is None
  save(checkpoints, 7)
  state, progress = checkpoints.restore(setup_of().abstract)
  expected = state_at(7)
  chex.assert_trees_all_equal(state.params, expected.params)
  chex.assert_trees_all_equal(state.opt_state, expected.opt_state)
  assert (int(state.step), int(state.skipped)) == (7, 3)
  assert progress["window"] == [0.1]


def test_the_newest_are_kept_and_the_best_of_each(tmp_path):
  checkpoints = Checkpoints(tmp_path, keep=2)
  for step, best in ((1, 1), (2, 1), (3, 3), (4, 3), (5, 3), (6, 3)):
    save(checkpoints, step, best)
  assert names(tmp_path) == ["00000003", "00000005", "00000006"]
  params, step = checkpoints.restore_params(setup_of().abstract.params)
  assert step == 3
  chex.assert_trees_all_equal(params, state_at(3).params)


def test_saving_a_step_again_replaces_nothing_in_place(tmp_path):
  checkpoints = Checkpoints(tmp_path, keep=1)
  save(checkpoints, 5, 5)
  assert save(checkpoints, 5, 5).name == "00000005.1"
  assert names(tmp_path) == ["00000005.1"]
  assert int(checkpoints.restore(setup_of().abstract)[0].step) == 5


def test_foreign_files_do_no_harm_and_stay(tmp_path):
  (tmp_path / "notes.txt").write_text("mine")
  (tmp_path / "00000099").write_text("a file, not a checkpoint")
  (tmp_path / "old").mkdir()
  checkpoints = Checkpoints(tmp_path)
  for step in (1, 2, 3, 4):
    save(checkpoints, step)
  assert {"notes.txt", "00000099", "old"} <= set(names(tmp_path))
  assert int(checkpoints.restore(setup_of().abstract)[0].step) == 4


def make_half_written(folder, how):
  """Leaves behind what an interrupted save could."""
  newer = folder / "00000009"
  if how == "our temporary name":
    shutil.copytree(folder / "00000002", folder / "unfinished.00000009")
  elif how == "orbax's temporary name":
    shutil.copytree(folder / "00000002", folder / "00000009.orbax-checkpoint-tmp-1")
  elif how == "an empty folder":
    newer.mkdir()
  elif how == "no arrays":
    shutil.copytree(folder / "00000002", newer)
    shutil.rmtree(newer / "params")
  elif how == "cut-off files":
    shutil.copytree(folder / "00000002", newer)
    for path in (newer / "params").rglob("*"):
      if path.is_file():
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize(
  "how",
  ["our temporary name", "orbax's temporary name", "an empty folder", "no arrays", "cut-off files"],
)
def test_a_half_written_checkpoint_is_never_taken(tmp_path, how):
  checkpoints = Checkpoints(tmp_path)
  save(checkpoints, 1)
  save(checkpoints, 2)
  make_half_written(tmp_path, how)
  state, _ = Checkpoints(tmp_path).restore(setup_of().abstract)
  assert int(state.step) == 2
  chex.assert_trees_all_equal(state.params, state_at(2).params)
  save(checkpoints, 10)
  assert int(checkpoints.restore(setup_of().abstract)[0].step) == 10


@pytest.mark.parametrize("how", ["an empty folder", "no arrays", "cut-off files"])
def test_what_is_saved_behind_a_broken_checkpoint_stays(tmp_path, how):
  checkpoints = Checkpoints(tmp_path, keep=1)
  save(checkpoints, 2, 2)
  make_half_written(tmp_path, how)
  save(checkpoints, 3, 2)
  save(checkpoints, 4, 2)
  assert names(tmp_path) == ["00000002", "00000004", "00000009"]
  assert int(checkpoints.restore(setup_of().abstract)[0].step) == 4
  params, step = checkpoints.restore_params(setup_of().abstract.params)
  assert step == 2
  chex.assert_trees_all_equal(params, state_at(2).params)


def test_when_none_can_be_read_that_is_an_error_and_not_a_new_start(tmp_path):
  save(Checkpoints(tmp_path), 1)
  (tmp_path / "00000001" / "progress" / "metadata").write_text("{")
  with pytest.raises(RunError, match=r"no checkpoint can be read \(00000001"):
    Checkpoints(tmp_path).restore(setup_of().abstract)


@pytest.mark.parametrize(
  ("model", "message"),
  [
    ({"width": 5}, r"params/layers/0/bias is float32\[4\] in the checkpoint and float32\[5\] in"),
    ({"extra": True}, r"params/extra is missing in the checkpoint and float32\[1\] in this model"),
  ],
)
def test_another_model_is_refused_naming_the_first_path(tmp_path, model, message):
  save(Checkpoints(tmp_path), 1)
  with pytest.raises(RunError, match=message):
    Checkpoints(tmp_path).restore(setup_of(**model).abstract)


def test_a_model_without_a_saved_array_is_refused(tmp_path):
  setup = setup_of(extra=True)
  Checkpoints(tmp_path).save(setup.init(), {"skipped": 0})
  with pytest.raises(RunError, match=r"params/extra is float32\[1\] in the checkpoint and missing"):
    Checkpoints(tmp_path).restore(setup_of().abstract)


def test_another_type_is_refused(tmp_path):
  save(Checkpoints(tmp_path), 1)
  abstract = setup_of().abstract
  halved = jax.tree.map(
    lambda leaf: jax.ShapeDtypeStruct(leaf.shape, jnp.bfloat16, sharding=leaf.sharding),
    abstract.params,
  )
  with pytest.raises(RunError, match=r"layers/0/bias is float32\[4\] .* bfloat16\[4\]"):
    Checkpoints(tmp_path).restore(abstract._replace(params=halved))


def test_numbers_of_the_progress_come_back_bit_for_bit(tmp_path):
  value = float(np.float32(0.1)) / 3
  Checkpoints(tmp_path).save(state_at(1), {"skipped": 0, "window": [value]})
  assert Checkpoints(tmp_path).restore(setup_of().abstract)[1]["window"] == [value]
  saved = json.loads((tmp_path / "00000001" / "progress" / "metadata").read_text())
  assert saved["arrays"]["params"]["layers/0/bias"] == "float32[4]"
