"""The benchmarks: one that runs nothing, and that all others can be found."""

import importlib
import json
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent


def bench(*arguments):
  return subprocess.run(
    [sys.executable, str(ROOT / "launch" / "bench.py"), *arguments],
    capture_output=True,
    text=True,
    cwd=ROOT,
  )


def test_bytes_of_a_step_as_one_json_object():
  lengths = ("temporaries", "--preset=smoke", "--lengths=16,64", "--policy=nothing")
  process = bench(*lengths, "--peak_flops=2e9", "--json")
  assert process.returncode == 0, process.stderr
  found = json.loads(process.stdout)
  assert (found["benchmark"], found["peak_flops"], found["peak_source"]) == (
    "temporaries", 2e9, "given",
  )  # fmt: skip
  sizes = found["recompute nothing"]
  assert 0 < sizes["16"]["temporary"] < sizes["64"]["temporary"] < sizes["64"]["all"]


@pytest.fixture
def modules(monkeypatch):
  monkeypatch.syspath_prepend(str(ROOT / "launch"))
  yield importlib.import_module
  for name in [name for name in sys.modules if name.split(".")[0] in ("bench", "benchmarks")]:
    del sys.modules[name]


def test_every_benchmark_is_where_the_command_looks(modules):
  for path, _ in modules("bench").BENCHMARKS.values():
    module, function = path.split(".")
    assert callable(getattr(modules(f"benchmarks.{module}"), function))


def test_an_unknown_benchmark_is_refused():
  process = bench("speed")
  assert process.returncode == 2
  assert "invalid choice: 'speed'" in process.stderr
