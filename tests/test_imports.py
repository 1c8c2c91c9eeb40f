"""The layout's rules: who may import whom, and how long a file may be."""

import ast
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
PACKAGES = ("tmem", "data", "train", "launch")
LONGEST_FILE = 350

# What a package's files may import of the others.
ALLOWED = {"tmem": set(), "data": set(), "train": {"tmem", "data"}, "launch": set()}
BENCHMARKS = {
  pathlib.Path("launch/bench.py"),
  *(path.relative_to(ROOT) for path in ROOT.glob("launch/benchmarks/*.py")),
}
ALLOWED_IN_BENCHMARKS = {"tmem", "train"}


def sources(*folders):
  paths = (path for folder in folders for path in (ROOT / folder).rglob("*.py"))
  return sorted(path.relative_to(ROOT) for path in paths)


def parse(path):
  return ast.parse((ROOT / path).read_text(encoding="utf-8"), filename=str(path))


def imported_modules(tree):
  """Absolute module names; a relative import cannot leave its package and is not listed."""
  names = set()
  for node in ast.walk(tree):
    if isinstance(node, ast.Import):
      names.update(alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.level == 0:
      names.add(node.module)
  return names


def imported_packages(tree):
  return {name.partition(".")[0] for name in imported_modules(tree)}


def defined_flags(tree):
  """Names of the absl `DEFINE` and `DEFINE_*` functions called."""
  calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
  names = [getattr(call, "attr", getattr(call, "id", "")) for call in calls]
  return [name for name in names if name == "DEFINE" or name.startswith("DEFINE_")]


def allowed_packages(path):
  return ALLOWED_IN_BENCHMARKS if path in BENCHMARKS else ALLOWED[path.parts[0]]


def test_the_readers_of_source_see_every_form():
  tree = ast.parse(
    "import jax.numpy as jnp, data.text\n"
    "from . import grid\n"
    "def late():\n"
    "  from train.flags import x\n"
    "  flags.DEFINE_string('a', '', '')\n"
    "  DEFINE_integer('b', 0, '')\n"
    "  flags.DEFINE(parser, 'c', 0, '')\n"
  )
  assert imported_packages(tree) == {"jax", "data", "train"}
  assert sorted(defined_flags(tree)) == ["DEFINE", "DEFINE_integer", "DEFINE_string"]


def test_every_package_has_sources():
  assert {path.parts[0] for path in sources(*PACKAGES)} == set(PACKAGES)


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_go_one_way(package):
  others = set(PACKAGES) - {package}
  wrong = {
    str(path): sorted(crossing)
    for path in sources(package)
    if (crossing := imported_packages(parse(path)) & others - allowed_packages(path))
  }
  assert wrong == {}


@pytest.mark.parametrize(
  ("module", "users"),
  [("orbax", ["train/checkpoint.py"]), ("chex", [])],
)
def test_module_is_imported_only_by_its_users(module, users):
  found = [str(path) for path in sources(*PACKAGES) if module in imported_packages(parse(path))]
  assert found == users


def test_flags_are_defined_in_one_place():
  assert [str(path) for path in sources("train") if defined_flags(parse(path))] == [
    "train/flags.py"
  ]


def test_no_source_file_is_too_long():
  lengths = {
    str(path): len((ROOT / path).read_text(encoding="utf-8").splitlines())
    for path in sources(*PACKAGES, "tests")
  }
  assert {path: length for path, length in lengths.items() if length > LONGEST_FILE} == {}


def test_importing_the_library_loads_nothing_of_training():
  program = "import sys, tmem; print(*{name.partition('.')[0] for name in sys.modules})"
  output = subprocess.run(
    [sys.executable, "-c", program], cwd=ROOT, check=True, capture_output=True, text=True
  ).stdout
  loaded = set(output.split())
  assert "jax" in loaded
  unwanted = {"orbax", "tensorflow", "tensorflow_datasets", "grain", "matplotlib", "data", "train"}
  assert loaded & unwanted == set()
