import json

import pytest

from train import flags
from train.errors import FlagError
from train.language_flags import COMMAND, PRESETS


def parse(tmp_path, *arguments):
  return flags.parse(COMMAND, ["language", f"--workdir={tmp_path / 'run'}", *arguments])


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("method", ["base", "local", "tensor", "tensor_local"])
def test_every_preset_builds_with_every_method(tmp_path, preset, method):
  config = parse(tmp_path, f"--preset={preset}", f"--method={method}")
  assert config.model.method == method
  assert config.optim.steps == config.run.steps
  json.dumps(config.flags)


def test_presets_say_what_they_promise(tmp_path):
  quick = parse(tmp_path)
  model, memory = quick.model, quick.model.memory
  assert (model.num_layers, model.features, model.num_heads, model.max_length) == (2, 128, 4, 256)
  assert (model.window, memory.chunk_size, memory.forget_bias, memory.channels) == (16, 1, 3.0, 128)
  assert (memory.dynamics, memory.read_heads) == ("selective", 4)
  assert (memory.grid, quick.run.batch_size, quick.optim.learning_rate) == ((2, 2, 2), 8, 2e-3)
  paper = parse(tmp_path, "--preset=paper")
  model, memory = paper.model, paper.model.memory
  assert (model.num_layers, model.features, model.num_heads, model.max_length) == (8, 384, 8, 512)
  assert (memory.channels, memory.grid, memory.chunk_size) == (32, (8, 8, 8), 16)
  assert (memory.dynamics, memory.read_heads) == ("convlstm", 1)
  assert (memory.forget_bias, model.dropout, paper.optim.warmup_steps) == (0.0, 0.2, 1000)


def test_a_flag_overrides_the_preset_even_with_the_default_of_another(tmp_path):
  assert parse(tmp_path, "--preset=smoke", "--features=128").model.features == 128
  assert parse(tmp_path, "--preset=smoke").model.features == 32


def test_every_memory_flag_arrives(tmp_path):
  config = parse(
    tmp_path,
    "--memory_channels=3",
    "--grid=2,3,4",
    "--chunk_size=5",
    "--forget_bias=-1.5",
    "--read_query=token",
    "--sigma_scale=0.5",
    "--sigma_min=0.1",
    "--sigma_max=0.9",
    "--remat=3",
    "--memory_every_n_layers=2",
    "--gate_init=-2",
    "--memory_implementation=plain",
    "--dynamics=selective",
    "--memory_update=window",
    "--write_window=2,2,1",
    "--read_heads=2",
    "--write_heads=3",
    "--dtype=bfloat16",
  )
  memory = config.model.memory
  assert (memory.channels, memory.grid, memory.chunk_size) == (3, (2, 3, 4), 5)
  assert (memory.forget_bias, memory.read_query, memory.remat) == (-1.5, "token", 3)
  assert (memory.sigma_scale, memory.sigma_min, memory.sigma_max) == (0.5, 0.1, 0.9)
  assert memory.implementation == "plain"
  assert (memory.dynamics, memory.update, memory.window) == ("selective", "window", (2, 2, 1))
  assert (memory.read_heads, memory.write_heads) == (2, 3)
  assert memory.dtype == config.model.dtype == "bfloat16"
  assert (config.model.memory_every_n_layers, config.model.gate_init) == (2, -2.0)


@pytest.mark.parametrize(
  ("flag", "message"),
  [
    ("--steps=abc", r"--steps=abc: expected an integer of at least 1"),
    ("--steps=0", r"--steps=0: expected an integer of at least 1"),
    ("--learning_rate=-1", r"--learning_rate=-1: expected a finite number above 0"),
    ("--learning_rate=nan", r"--learning_rate=nan: expected a finite number above 0"),
    ("--dropout=1", r"--dropout=1: expected a finite number of at least 0 and below 1"),
    (
      "--method=lstm",
      r"--method=lstm: expected one of base, base_sln, local, local_rope, linear, gated_delta",
    ),
    ("--write_window=0,1,2", r"--write_window=0,1,2: expected one to four integers"),
    ("--preset=huge", r"--preset=huge: expected one of quickstart, cpu, smoke, paper"),
    ("--dataset=imagenet", r"--dataset=imagenet: expected one of stdlib, "),
    ("--mode=fly", r"--mode=fly: expected one of train, eval, score, generate"),
    ("--grid=4,x", r"--grid=4,x: expected one to four integers of at least 1, as in 4,4,4"),
    ("--grid=0,4,4", r"--grid=0,4,4: expected one to four integers"),
    ("--mesh=data:2,rows:4", r"--mesh=data:2,rows:4: expected the axes data, fsdp and model"),
    ("--mesh=8", r"--mesh=8: expected devices per axis"),
    ("--mesh=data:-1,fsdp:-1", r"--mesh=data:-1,fsdp:-1: expected sizes of at least 1, or -1 on"),
    ("--remat=maybe", r"--remat=maybe: expected false, true, or a number"),
    ("--accumulate=3", r"--accumulate=3: does not divide --batch_size=8"),
    ("--warmup_steps=601", r"--warmup_steps=601: more than --steps=600"),
    ("--num_heads=3", r"--features: 128 is not a multiple of --num_heads 3"),
    ("--sigma_min=2,", r"--sigma_min=2,: expected a finite number above 0"),
    ("--dataset=text", r"--data_path: missing, --dataset=text needs a file or a folder"),
    ("--bogus=1", r"Unknown command line flag 'bogus'"),
    ("runs/a", r"'runs/a': flags look like --name=value"),
  ],
)
def test_bad_flags_say_what_came_and_what_is_right(tmp_path, flag, message):
  with pytest.raises(FlagError, match=message) as caught:
    parse(tmp_path, flag)
  assert caught.value.exit_status == 2
  assert "\n" not in str(caught.value)


def test_spread_bounds_in_the_wrong_order_are_refused(tmp_path):
  with pytest.raises(FlagError, match=r"^--sigma_min: 2.0 is above --sigma_max 1.0$"):
    parse(tmp_path, "--sigma_min=2", "--sigma_max=1")


def test_depth_scope_needs_the_leak_to_be_allowed(tmp_path):
  with pytest.raises(FlagError, match=r"^--state_scope: 'depth' .*, or set --allow_future_leak to"):
    parse(tmp_path, "--state_scope=depth")
  config = parse(tmp_path, "--state_scope=depth", "--allow_future_leak")
  assert config.model.state_scope == "depth"


def test_the_workdir_is_required():
  with pytest.raises(FlagError, match=r"--workdir: missing"):
    flags.parse(COMMAND, ["language"])


def test_help_names_every_flag_with_its_default(capsys):
  assert flags.parse(COMMAND, ["language", "--helpshort"], "Usage.") is None
  shown = capsys.readouterr().out
  declared = [name for name in flags.define(COMMAND) if not name.startswith("help")]
  assert len(declared) > 40
  for name in declared:
    assert f"--{name}" in shown or f"--[no]{name}" in shown, name
  assert "(default: 2,2,2)" in shown
  assert all(len(line) <= 100 for line in shown.splitlines())


def test_the_variable_stands_in_for_data_dir_and_is_not_stored(tmp_path, monkeypatch):
  monkeypatch.delenv("TMEM_DATA_DIR", raising=False)
  assert parse(tmp_path).data.data_dir is None
  monkeypatch.setenv("TMEM_DATA_DIR", "/variable")
  config = parse(tmp_path)
  assert (config.data.data_dir, config.flags["data_dir"]) == ("/variable", None)
  assert parse(tmp_path, "--data_dir=/flag").data.data_dir == "/flag"
  (tmp_path / "run").mkdir()
  for stored, used in ((None, "/other"), ("/stored", "/stored")):
    record = {"flags": {**config.flags, "data_dir": stored}}
    (tmp_path / "run" / "config.json").write_text(json.dumps(record))
    monkeypatch.setenv("TMEM_DATA_DIR", "/other")
    assert parse(tmp_path).data.data_dir == used


def test_what_is_stored_builds_the_same_run_again(tmp_path):
  first = parse(tmp_path, "--preset=paper", "--grid=2,3,4", "--remat=true", "--allow_future_leak")
  restored = json.loads(json.dumps(first.flags))
  arguments = [f"--{k}={flags.as_text(v)}" for k, v in restored.items() if v is not None]
  again = parse(tmp_path, *arguments)
  assert (again.model, again.optim, again.run) == (first.model, first.optim, first.run)


def test_a_window_of_another_number_of_axes_is_refused_by_the_name_of_its_flag(tmp_path):
  flags = ("--memory_update=window", "--write_window=2,2")
  with pytest.raises(FlagError, match=r"^--write_window: \(2, 2\) has 2 axes, but the grid has 3"):
    parse(tmp_path, *flags)


def test_parameters_of_another_task_are_no_start(tmp_path):
  config, start = tmp_path / "source" / "config.json", f"--init_from={tmp_path / 'source'}"
  config.parent.mkdir()
  config.write_text('{"task": "video", "flags": {}}')
  with pytest.raises(
    FlagError, match=r"--init_from=.*: of a run of train.video, expected one of train.language"
  ):
    parse(tmp_path, f"{start}/checkpoints/00000020")
  config.write_text("{")
  with pytest.raises(FlagError, match=r"--init_from=.*config.json cannot be read; use another run"):
    parse(tmp_path, start)


def test_a_run_that_has_begun_does_not_need_what_it_started_from(tmp_path):
  (tmp_path / "source").mkdir()
  begun = parse(tmp_path, start := f"--init_from={tmp_path / 'source'}")
  (tmp_path / "run").mkdir()
  (tmp_path / "run" / "config.json").write_text(json.dumps({"flags": begun.flags}))
  (tmp_path / "source" / "config.json").write_text("{")
  assert parse(tmp_path).run.init_from == tmp_path / "source"
  assert parse(tmp_path, start).run.init_from == tmp_path / "source"
