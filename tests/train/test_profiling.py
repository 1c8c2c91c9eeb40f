"""Traces of training steps."""

import gzip
import json

import pytest

from train.errors import FlagError
from train.trace_names import operation_names


def test_a_trace_names_the_parts_of_the_memory(run, tmp_path):
  workdir = run(tmp_path / "run", steps=4, profile="3:4")
  (folder,) = (workdir / "profile" / "plugins" / "profile").iterdir()
  assert list(folder.glob("*.xplane.pb"))
  with gzip.open(folder / "perfetto_trace.json.gz", "rt") as file:
    events = json.load(file)["traceEvents"]
  steps = [event["args"]["step_num"] for event in events if event.get("name") == "train"]
  assert sorted(map(int, steps)) == [3, 4]
  names = {
    event["name"].rpartition(" ")[0] for event in events if "op_name" in event.get("args", {})
  }
  parts = {part for name in names for part in name.split("/")}
  assert parts >= {"memory_read", "memory_write", "memory_gates", "memory_recurrence"}
  assert any(name.startswith("backward/memory") for name in names)
  assert "profile" not in json.loads((workdir / "config.json").read_text())["flags"]


def test_steps_to_trace_are_checked(config):
  for wrong in ("5", "5:4", "0:2", "a:b"):
    with pytest.raises(FlagError, match=r"--profile=.*expected first and last step, as in 20:25"):
      config(profile=wrong)


def field(number, content):
  """A field of bytes or of a number, as a protocol buffer has it."""
  if isinstance(content, int):
    return bytes([number << 3, content])
  return bytes([number << 3 | 2, len(content)]) + content


def test_names_are_read_from_compiled_programs():
  instruction = field(1, b"fusion.1") + field(7, field(2, b"jit(f)/memory/add"))
  module = field(1, b"jit_f") + field(3, field(1, b"main") + field(2, instruction))
  stat = field(1, 9) + field(6, field(1, module))
  space = field(1, field(1, 3) + field(4, field(1, 7) + field(2, field(5, stat))))
  assert operation_names(space) == {("jit_f", "fusion.1"): "jit(f)/memory/add"}
  assert operation_names(space[:9]) == {}
