"""What a user who installs the library gets."""

import ast
import configparser
import pathlib
import re
import shutil
import subprocess
import sys
import zipfile

import tmem

ROOT = pathlib.Path(__file__).resolve().parent.parent


def metadata():
  parser = configparser.ConfigParser()
  parser.read(ROOT / "setup.cfg", encoding="utf-8")
  return parser


def requirement_lines(*texts):
  lines = [line.strip() for text in texts for line in text.splitlines()]
  return {line for line in lines if line and not line.startswith(("#", "-r"))}


def test_metadata_and_requirement_files_name_the_same_versions():
  config = metadata()
  declared = requirement_lines(
    config["options"]["install_requires"], *config["options.extras_require"].values()
  )
  files = [ROOT / "requirements.txt", ROOT / "requirements-dev.txt"]
  assert declared == requirement_lines(*(path.read_text(encoding="utf-8") for path in files))


def imported_packages(path):
  """Packages that a source file imports, wherever in it; its own and Python's are left out."""
  found = set()
  for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
    if isinstance(node, ast.Import):
      found |= {alias.name.partition(".")[0] for alias in node.names}
    elif isinstance(node, ast.ImportFrom) and node.level == 0:
      found.add(node.module.partition(".")[0])
  return found - {"tmem"} - sys.stdlib_module_names


def test_the_wheel_asks_for_what_the_library_imports():
  lines = requirement_lines(metadata()["options"]["install_requires"])
  declared = {re.match(r"[\w.-]+", line)[0] for line in lines}
  sources = (ROOT / "tmem").rglob("*.py")
  assert declared == set().union(*(imported_packages(path) for path in sources))


def test_wheel_holds_only_the_library(tmp_path):
  checkout = tmp_path / "checkout"
  checkout.mkdir()
  for name in ("setup.cfg", "pyproject.toml", "LICENSE", "README.md"):
    shutil.copy(ROOT / name, checkout)
  for name in ("tmem", "data", "train", "launch"):
    shutil.copytree(ROOT / name, checkout / name, ignore=shutil.ignore_patterns("__pycache__"))
  options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--no-build-isolation"]
  command = [sys.executable, "-m", "pip", "wheel", *options, "--wheel-dir", tmp_path, checkout]
  subprocess.run(command, check=True)
  release = f"tensor_memory-{tmem.__version__}"
  with zipfile.ZipFile(tmp_path / f"{release}-py3-none-any.whl") as wheel:
    files = set(wheel.namelist())
  info = f"{release}.dist-info/"
  assert f"{info}licenses/LICENSE" in files
  sources = {str(path.relative_to(ROOT)) for path in (ROOT / "tmem").rglob("*.py")}
  assert {name for name in files if not name.startswith(info)} == sources
