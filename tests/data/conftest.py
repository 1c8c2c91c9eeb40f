import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session", autouse=True)
def cache_dir(tmp_path_factory):
  """Keeps the tests out of the user's cache, and lets them share what they prepare."""
  directory = tmp_path_factory.mktemp("cache")
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv("TMEM_CACHE_DIR", str(directory))
    yield directory


@pytest.fixture(scope="session")
def data_dir():
  """Where the downloaded data sets lie."""
  directory = os.environ.get("TMEM_DATA_DIR")
  if not directory:
    pytest.skip("needs downloaded data sets: set TMEM_DATA_DIR to their directory")
  return Path(directory)


@pytest.fixture
def start_python():
  """Starts Python with a script in a process of its own; ends what still runs afterwards."""
  processes = []

  def start(script, *args, **environment):
    process = subprocess.Popen(
      [sys.executable, "-c", script, *map(str, args)],
      cwd=REPOSITORY,
      env={"PATH": os.defpath, "PYTHONPATH": str(REPOSITORY), **environment},
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
    )
    processes.append(process)
    return process

  yield start
  for process in processes:
    if process.poll() is None:
      process.kill()
    process.communicate()
