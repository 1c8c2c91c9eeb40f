import json

import pytest

from train.collectives import Collective, collectives

# As XLA prints them, by three ways to name devices: a loop of five steps around an all-reduce.
PROGRAM = """HloModule jit_step

%body.1 (state: (s32[], f32[8,4])) -> (s32[], f32[8,4]) {
  %sum = f32[8,4]{1,0} all-reduce(%x), channel_id=1, replica_groups={{0,1},{2,3},{4,5},{6,7}}, use_global_device_ids=true, to_apply=%add, metadata={op_name="jit(step)/while/sum"}
}

%condition.1 (state: (s32[], f32[8,4])) -> pred[] {
  ROOT %less = pred[] compare(%a, %b), direction=LT
}

ENTRY %main (x: f32[8,4]) -> f32[8,4] {
  %loop = (s32[], f32[8,4]{1,0}) while(%start), condition=%condition.1, body=%body.1, backend_config={"known_trip_count":{"n":"5"}}
  %whole = bf16[16,4]{1,0} all-gather(%y), channel_id=2, replica_groups=[4,2]<=[2,2,2]T(0,2,1), dimensions={0}, metadata={op_name="jit(step)/gather"}
  %both = (f32[6]{0}, f32[2,3]{1,0}) all-reduce(%p, %q), channel_id=3, replica_groups=mesh['a'=2,'b'=4], device_ids=([2,4]) {'b'}, to_apply=%add
  %moved = f32[10]{0} collective-permute(%z), channel_id=4, source_target_pairs={{0,0},{1,5},{5,1}}
}
"""  # noqa: E501


def test_collectives_are_counted_with_their_loops_axes_and_bytes():
  mesh = {"data": 2, "fsdp": 2, "model": 2}
  found = collectives(PROGRAM, mesh)
  assert found == [
    Collective("all-reduce", ("model",), 2, "f32[8,4]", 128, 5, "jit(step)/while/sum"),
    Collective("all-gather", ("fsdp",), 2, "bf16[16,4]", 128, 1, "jit(step)/gather"),
    Collective("all-reduce", ("fsdp", "model"), 4, "f32[6] and 1 more", 48, 1, ""),
    Collective("collective-permute", ("data",), 2, "f32[10]", 40, 1, ""),
  ]
  # Around a ring a sum goes twice, and of what is gathered a device has its share.
  assert [one.sent for one in found] == [5 * 128, 64, 72, 40]


# What the compiler counts of a step, on a mesh of the devices that stand in for others.
COUNTED = """
import json, sys
from train import dry_run, flags, language_task, image_task, video_task
from train.language_flags import COMMAND as LANGUAGE
from train.image_flags import COMMAND as IMAGE

def language(config):
  return language_task.make_task(config, language_task.load_corpus(config.data))

def image(config):
  return image_task.make_task(config, image_task.load_images(config.data))

found = {}
for mesh in sys.argv[1].split(";"):
  config = flags.parse(LANGUAGE, ["language", f"--mesh={mesh}", *sys.argv[2:]])
  plan = dry_run.make_plan(config, language)
  found[mesh] = plan._asdict() | {"sent": sum(one.sent for one in plan.collectives)}
config = flags.parse(IMAGE, ["image", "--preset=smoke", "--mesh=data:2,fsdp:2", "--workdir=none"])
found["image"] = dry_run.make_plan(config, image)._asdict()
print(json.dumps(found))
"""


def test_a_plan_agrees_with_the_compiler(start, options, tmp_path):
  (tmp_path / "counted.py").write_text(COUNTED)
  meshes = ["data:1", "data:8", "data:2,fsdp:2,model:2", "data:4096"]
  more = {"batch_size": 4096, "features": 32, "carry_state": True, "accumulate": 1}
  arguments = [";".join(meshes), *options(tmp_path / "run", **more)]
  process = start(
    "counted",
    *arguments,
    PYTHONPATH=str(tmp_path),
    XLA_FLAGS="--xla_backend_optimization_level=0",
  )
  out, err = process.communicate(timeout=400)
  assert process.returncode == 0, err
  found = json.loads(out.splitlines()[-1])
  for name, plan in found.items():
    assert sum(plan["held"].values()) == pytest.approx(plan["arguments"], rel=0.01), name
  one, eight, axes, many = (found[mesh] for mesh in meshes)
  assert one["collectives"] == [] and one["flops"] == eight["flops"] == many["flops"]
  # Two channels in 2x2x2 cells, h and c, of 4 bytes, for 4096 rows.
  assert one["memory_state"] == 4096 * 2 * 8 * 2 * 4
  assert eight["memory_state"] * 8 == axes["memory_state"] * 8 == one["memory_state"]
  assert eight["held"]["parameters"] == one["held"]["parameters"] > axes["held"]["parameters"]
  assert eight["held"]["carry"] * 8 == one["held"]["carry"]
  # With rows alone split, what is sent is a sum of gradients: nearly twice the parameters, of
  # which the table of tokens has two gradients, as input and as output.
  table = next(size for name, *_, size in eight["parameters"] if name == "embedding/embedding")
  summed = eight["held"]["parameters"] + table
  assert eight["sent"] == pytest.approx(2 * 7 / 8 * summed, rel=0.02)
  assert many["mesh"] == {"data": 4096, "fsdp": 1, "model": 1}
  assert many["sent"] == pytest.approx(2 * summed, rel=0.02)


def test_a_dry_run_prints_and_leaves_nothing(run, options, tmp_path, capsys):
  run(tmp_path / "run", dry_run=True, mesh="data:1")
  shown = capsys.readouterr().out
  assert shown.startswith("mesh data:1,fsdp:1,model:1: 1 devices, compiled for cpu, nothing is run")
  assert "blocks/*/mlp/up/kernel" in shown and "FLOPs of a step: " in shown
  assert "what a device sends in a step: 0 bytes" in shown
  assert not (tmp_path / "run").exists()
