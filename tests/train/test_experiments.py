"""The cells of the diagnostic suite: fair comparisons, and settings that cannot work."""

import dataclasses

import pytest

from data.synthetic import CoordinateBinding, LongRecall
from train import flags
from train.cells import CONTESTANTS, VALID, Cell, count_params
from train.diagnostics_flags import COMMAND
from train.diagnostics_presets import PRESETS, SETTINGS
from train.errors import FlagError
from train.experiments import EXPERIMENTS


def cells(*options: str) -> tuple[Cell, ...]:
  return flags.parse(COMMAND, ["diagnostics", "--workdir=/nowhere", *options]).cells


@pytest.mark.parametrize("preset", PRESETS)
def test_every_cell_has_a_folder_of_its_own(preset):
  suite = cells(f"--preset={preset}")
  assert {cell.experiment for cell in suite} == set(EXPERIMENTS)
  assert len({(cell.experiment, cell.name) for cell in suite}) == len(suite)


def test_the_wide_baseline_has_the_parameters_of_the_memory():
  for preset in ("cpu", "paper"):
    by_method = {
      cell.method: count_params(cell.model)
      for cell in cells(f"--preset={preset}", "--task=no_harm", "--seeds=1")
    }
    assert abs(by_method["base_wide"] / by_method["tensor"] - 1) < 0.02
    assert by_method["base"] < 0.98 * by_method["tensor"]


def test_methods_differ_by_nothing_but_the_method():
  suite = cells("--task=map_building", "--attention_window=4", "--seeds=1")
  assert [cell.method for cell in suite] == list(CONTESTANTS)
  same = {dataclasses.replace(c.model, method="base", mlp_features=1) for c in suite}
  assert len(same) == 1
  assert len({(c.training, c.optim, c.batch_size, tuple(c.tests)) for c in suite}) == 1


def test_windows_close_the_attention():
  suite = cells("--task=no_harm", "--attention_window=full,7", "--seeds=2")
  assert [(c.window, c.method, c.seed) for c in suite] == [
    *[("full", method, 0) for method in CONTESTANTS],
    *[(7, method, 0) for method in CONTESTANTS],
    *[(7, method, 1) for method in CONTESTANTS if method != "base_wide"],
  ]
  assert [c.model.attention_window for c in suite] == [None] * 4 + [7] * 7


def test_a_segment_is_all_that_open_attention_sees_in_long_recall():
  suite = cells("--task=long_recall", "--attention_window=full,32", "--methods=base")
  assert [(cell.variant, cell.window) for cell in suite] == [("distance", 32), ("capacity", 32)]


def test_open_attention_is_not_spent_on_slots_unless_asked_for():
  def opened(*options):
    return {cell.method for cell in cells("--task=no_harm", *options) if cell.window == "full"}

  assert opened() == {"base", "base_wide", "tensor"}
  assert opened("--methods=slots") == {"slots"}
  assert opened("--attention_window=full") == set(CONTESTANTS)


def test_a_closed_window_reaches_no_write_when_it_is_asked():
  for options in (("--attention_window=full,4",), ("--attention_window=3", "--num_layers=5")):
    for cell in cells("--task=coordinate_binding", *options):
      if cell.window != "full":
        # Block after block, a query sees `window - 1` tokens farther back.
        reach = cell.model.num_layers * (cell.window - 1)
        later = [task for task, _ in cell.training.stages[1:]]
        assert all(task.distractors >= reach for task in [*later, *cell.tests.values()])
  published = cells("--preset=paper", "--task=coordinate_binding")
  assert {task.distractors for cell in published for task in cell.tests.values()} == {0}


def test_lessons_ask_more_often_than_tests():
  options = ["--task=coordinate_binding", "--curriculum=5:1,10:1", "--tested=10"]
  for given, queries in ((["--lessons=true"], [16, 16]), ([], [4, 4])):
    for cell in cells(*options, *given):
      assert [task.queries for task, _ in cell.training.stages] == queries
      assert {task.queries for name, task in cell.tests.items() if name != VALID} == {4}


def test_a_flag_takes_the_place_of_the_preset():
  (cell,) = cells(
    "--task=coordinate_binding",
    "--methods=tensor",
    "--attention_window=2",
    "--seeds=1",
    "--curriculum=3:20,6:30",
    "--tested=6,9",
    "--noise=0.1",
    "--grid=2,3,4",
    "--memory_channels=5",
    "--forget_bias=1",
    "--learning_rate=0.1",
    "--batch_size=7",
  )

  def task(writes, distractors=2):
    return CoordinateBinding(writes=writes, noise=0.1, distractors=distractors)

  assert cell.training.stages == ((task(3, 0), 20), (task(6), 30))
  assert cell.tests == {
    "valid": task(6),
    "writes_6_noise_0.1": task(6),
    "writes_9_noise_0.1": task(9),
  }
  memory = cell.model.memory
  assert (memory.grid, memory.channels, memory.forget_bias) == ((2, 3, 4), 5, 1.0)
  assert (cell.optim.learning_rate, cell.optim.steps, cell.batch_size) == (0.1, 50, 7)


def test_each_ablation_changes_one_thing():
  suite = {cell.variant: cell.model for cell in cells("--task=ablations", "--seeds=1")}
  base = suite.pop("recommended")
  everywhere, leaking = suite.pop("memory_in_every_block"), suite.pop("state_scope_depth")
  assert dataclasses.replace(leaking, state_scope="layer", allow_future_leak=False) == everywhere
  assert (leaking.memory_layers, leaking.causal) == ((0, 1), False)
  changed = {
    variant: {
      field.name
      for field in dataclasses.fields(base.memory)
      if getattr(model.memory, field.name) != getattr(base.memory, field.name)
    }
    for variant, model in suite.items()
  }
  assert changed.pop("chunk_size_2_read_query_token") == {"chunk_size", "read_query"}
  assert changed.pop("dynamics_convlstm_depthwise_false") == {"dynamics", "depthwise"}
  assert all(len(fields) == 1 for fields in changed.values())
  assert set().union(*changed.values()) == {
    "write", "coordinate_heads", "dynamics", "grid", "chunk_size", "forget_bias", "sigma_scale",
  }  # fmt: skip


def test_ablations_keep_the_axes_of_the_grid():
  suite = cells("--task=ablations", "--grid=4,4", "--memory_update=window", "--write_window=2,2")
  grids = {cell.variant: cell.model.memory.grid for cell in suite}
  assert {len(grid) for grid in grids.values()} == {2}
  assert (grids["grid_6x6"], grids["grid_8x8"]) == ((6, 6), (8, 8))


def test_long_recall_is_trained_across_segments_and_asked_from_afar():
  suite = cells("--task=long_recall", "--distances=100,300")
  (distance,) = (cell for cell in suite if cell.variant.startswith("distance-grid"))
  assert (distance.segment, distance.model.memory.grid) == (32, (4, 4, 4))
  assert [(task.writes, task.length) for task, _ in distance.training.stages] == [
    (5, 9),  # nothing between writes and queries
    (10, 32),
    (10, 128),
  ]
  assert distance.tests["distance_300"] == LongRecall(writes=10, noise=0.05, distractors=290)
  capacity = next(cell for cell in suite if cell.variant == "capacity")
  assert (capacity.segment, capacity.method) == (None, "base")
  assert capacity.tests["writes_512"] == CoordinateBinding(512, noise=0.05, distractors=6)
  grids = {cell.variant for cell in suite if cell.variant.startswith("capacity-")}
  assert grids == {f"capacity-grid_{n}x{n}x{n}" for n in (2, 3, 4)}


def test_recall_in_one_stage_is_trained_in_segments():
  suite = cells("--task=long_recall", "--methods=tensor", "--curriculum=7:9")
  distance = next(cell for cell in suite if cell.variant.startswith("distance"))
  assert [(task.writes, task.length) for task, _ in distance.training.stages] == [(7, 32)]


def test_methods_without_a_grid_are_not_trained_again_for_each():
  suite = cells("--task=long_recall", "--methods=base,tensor")
  assert [cell.variant for cell in suite if cell.method == "base"] == ["distance", "capacity"]
  assert {cell.method for cell in cells("--task=ablations", "--methods=base,slots,tensor")} == {
    "tensor"
  }


def test_the_paper_has_a_model_for_each_difficulty():
  suite = cells("--preset=paper", "--task=occlusion", "--methods=tensor", "--seeds=1")
  variants = {f"{v}-hidden_{n}" for v in ("until_end", "middle") for n in (0, 2, 4, 6)}
  assert {cell.variant for cell in suite} == variants
  for cell in suite:
    valid, task = cell.tests.values()
    assert cell.training.stages == ((task, 1500),)
    assert valid == task


@pytest.mark.parametrize(
  ("options", "message"),
  [
    ("--task=sorting", "--task=sorting: expected one of all, coordinate_binding, "),
    ("--methods=base,lstm", "--methods=base,lstm: expected with commas between, one of base, "),
    ("--preset=huge", "--preset=huge: expected one of cpu, paper, smoke"),
    ("--attention_window=0", "--attention_window=0: expected .*full, or an integer of at least 1"),
    ("--curriculum=5", r"--curriculum=5: expected difficulty:steps .*as in 5:200,10:400"),
    ("--curriculum=5:0", r"--curriculum=5:0: expected difficulty:steps .*at least 1 step each"),
    ("--methods=base,base", "--methods=base,base: expected each value once"),
    ("--curriculum=5:9", "--curriculum: every task counts something else; choose one with --task"),
    (
      "--task=long_recall --curriculum=30:9",
      "--segment: 32 tokens do not hold 30 writes, 4 queries",
    ),
    (
      "--task=long_recall --segment=400 --curriculum=300:9",
      "--distances: 256 tokens .* do not hold 300 writes",
    ),
    ("--task=long_recall --chunk_size=3", "--segment: 32 tokens are not whole chunks"),
    ("--chunk_size=99 --task=no_harm", r"--chunk_size: got 99, but a stream has 32 tokens"),
    ("--grid=0,2,2", "--grid=0,2,2: expected one to four integers"),
    ("--num_heads=5", r"--features: 64 is not a multiple of --num_heads 5"),
    ("--task=occlusion --tested=7", "--curriculum, --tested: hidden: got 7, expected"),
  ],
)
def test_bad_flags_say_what_came_and_what_is_right(options, message):
  with pytest.raises(FlagError, match=message):
    cells(*options.split())


def test_presets_say_what_they_promise():
  binding = SETTINGS["paper"]["coordinate_binding"]
  assert (binding.learning_rate, binding.memory.forget_bias) == (3e-4, 0.0)
  memory = binding.memory
  assert (binding.features, binding.num_layers, binding.num_heads) == (64, 2, 4)
  assert (memory.channels, memory.grid, memory.chunk_size) == (16, (6, 6, 6), 1)
  assert (binding.batch_size, binding.stages[-1][1], binding.seeds) == (128, 2000, 3)
  assert SETTINGS["paper"]["map_building"].features == 96
  for settings in SETTINGS["cpu"].values():
    # Slots hold as many numbers as a read of the grid can see (its cell state comes on top).
    slots = settings.slots.count * settings.features
    assert slots >= settings.memory.cells * settings.memory.channels
