"""What the log says of a memory, and when it warns."""

import dataclasses
import json

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from train import loop

NUMBERS = {
  "memory_cell_max", "memory_sigma_min", "memory_sigma_mean", "memory_sigma_max",
  "memory_write_spread", "memory_writes_lost", "memory_writes_alike", "memory_collapsed",
  *(f"memory_{gate}_{end}" for gate in ("input", "forget", "output") for end in ("shut", "open")),
}  # fmt: skip


@pytest.fixture(scope="module")
def look(task):
  """Says of the tiny model, changed by a function, what is logged."""
  made, _ = task()

  def call(change=lambda model: None):
    model = made.build(nnx.Rngs(0))
    change(model)
    return made.watch(model)

  return call


def test_numbers_of_a_sound_memory(look):
  found = look()
  assert found.keys() == NUMBERS | {"gate_block_0"}
  assert np.isfinite(list(found.values())).all()
  assert found["memory_collapsed"] == 0
  assert 0 < found["memory_sigma_min"] <= found["memory_sigma_mean"] <= found["memory_sigma_max"]
  assert found["memory_cell_max"] > 0


def one_place(model):
  model.memory.coordinate.kernel[...] *= 0
  model.memory.coordinate.bias[...] += 0.5  # from the middle all cells of this grid are alike


def narrow(model):
  model.memory.spread.bias[...] -= 30
  model.memory.coordinate.bias[...] += 0.3


def wide(model):
  model.memory.spread.bias[...] += 50


def shut(model):
  model.blocks[0].fusion.gate[...] = jnp.float32(-9)


@pytest.mark.parametrize(
  ("change", "message"),
  [
    (one_place, "all writes go to one place in block 0"),
    (narrow, "writes are so narrow that they reach no cell in block 0 (see --sigma_min)"),
    (wide, "writes are so wide that all cells get the same in block 0 (see --sigma_max)"),
    (shut, "no block lets more than 1% of it through (sigmoid of γ)"),
  ],
)
def test_a_collapsed_memory_is_named(look, change, message):
  found = look(change)
  assert found["memory_collapsed"] == 1
  assert found["warning"] == f"the memory has collapsed: {message}"


def test_one_cell_is_always_one_place(task):
  made, _ = task(grid="1,1,1")
  assert made.watch(made.build(nnx.Rngs(0)))["memory_collapsed"] == 0


def test_models_without_a_grid_log_their_gates_alone(task):
  for method, names in (("local", set()), ("slots_local", {"gate_block_0"})):
    made, _ = task(method=method)
    assert made.watch(made.build(nnx.Rngs(0))).keys() == names


def test_a_warning_is_shown_and_stays_in_the_log(task, tmp_path, capsys):
  made, config = task(method="local", steps=2, eval_every=2)
  made = dataclasses.replace(made, export=None, watch=lambda model: {"warning": "look here"})
  run = dataclasses.replace(config.run, workdir=tmp_path / "run")
  loop.train(made, run, config.optim, {})
  assert "\nwarning: look here\n" in capsys.readouterr().out
  lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
  assert [json.loads(line).get("warning") for line in lines] == [None, "look here"]


def test_long_rows_in_bfloat16_stay_finite(run, tmp_path):
  workdir = run(
    tmp_path / "run", max_length=1024, batch_size=1, chunk_size=1, dtype="bfloat16", steps=4
  )
  records = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
  assert [record["skipped"] for record in records] == [0] * 4
  assert all(np.isfinite([r["loss"], r["grad_norm"]]).all() for r in records)
  assert np.isfinite(records[-1]["memory_cell_max"])


def test_the_state_is_float32_where_the_model_computes_in_bfloat16(task):
  made, _ = task(dtype="bfloat16")
  states = nnx.eval_shape(lambda: made.build(nnx.Rngs(0)).init_states(1))
  assert {states[0].hidden.dtype, states[0].cell.dtype} == {jnp.dtype("float32")}
