"""What holds for every test."""

import importlib.metadata
import os

import numpy as np
import pytest

# Compiling is what the tests' time goes into, and the programs are tiny: optimise none of them.
FLAGS = "--xla_backend_optimization_level=0"
if importlib.metadata.version("jaxlib").startswith("0.10."):
  # Code by the older emitters takes half the time to compile. Later versions have them no more,
  # and stop at flags that they do not know.
  FLAGS += " --xla_cpu_use_fusion_emitters=false"

# JAX reads this once, so it has to be set before anything imports it.
os.environ.setdefault("XLA_FLAGS", FLAGS)


@pytest.fixture(scope="session")
def write_video():
  """Writes a video whose frames have levels of grey, with some noise; returns its path."""
  import av

  def write(path, levels, size=(32, 32), codec="mpeg4"):
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    with av.open(str(path), "w") as container:
      stream = container.add_stream(codec, rate=25)
      stream.width, stream.height = size
      stream.pix_fmt = "yuv420p"
      stream.options = {"qscale": "1"}
      for level in levels:
        pixels = (level + rng.integers(-3, 4, size=(size[1], size[0], 3))).astype(np.uint8)
        container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
      container.mux(stream.encode())
    return path

  return write
