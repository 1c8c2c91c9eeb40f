"""The README's library examples run, and its commands and files exist."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def blocks(language):
  return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_the_examples_are_two_and_short():
  for example in blocks("python"):
    assert sum(bool(line.strip()) for line in example.splitlines()) <= 20
  assert len(blocks("python")) == 2


def test_the_memory_example_runs():
  scope = {}
  exec(compile(blocks("python")[0], "README.md", "exec"), scope)
  np.testing.assert_allclose(scope["pieces"], scope["y"], atol=1e-6)
  assert scope["loss"](scope["params"]) < scope["before"]


def test_the_streaming_example_runs(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  scope = {}
  exec(compile(blocks("python")[1], "README.md", "exec"), scope)
  assert scope["stream"].seen.tolist() == [len("def memory(") + 1]


def test_commands_name_files_that_exist():
  scripts = re.findall(r"(?:bash|python) (launch/[\w./]+)", README)
  modules = re.findall(r"python -m ((?:tmem|train)\.\w+)", README)
  assert {"launch/quickstart.sh", "launch/test.sh", "launch/bench.py"} <= set(scripts)
  assert {"tmem.audit", "train.language", "train.report"} <= set(modules)
  for path in [*scripts, *(f"{module.replace('.', '/')}.py" for module in modules)]:
    assert (ROOT / path).is_file(), path


def test_pictures_and_links_exist():
  for target in re.findall(r"\]\(([^)#]+)\)", README):
    if not target.startswith("http"):
      assert (ROOT / target).exists(), target


@pytest.mark.parametrize("command", ["language", "diagnostics"])
def test_flags_shown_are_flags_of_the_command(command):
  text = README.replace("\\\n", " ")  # a command may go on in the next line
  shown = re.findall(rf"python -m train\.{command} ([^`\n]*)", text)
  help_text = subprocess.run(
    [sys.executable, "-m", f"train.{command}", "--helpfull"],
    cwd=ROOT,
    capture_output=True,
    text=True,
    check=False,
  ).stdout
  known = {"helpshort"} | set(re.findall(r"--(?:\[no\])?(\w+)", help_text))
  used = {a[2:].split("=")[0] for line in shown for a in shlex.split(line) if a.startswith("--")}
  assert used and used <= known, used - known
