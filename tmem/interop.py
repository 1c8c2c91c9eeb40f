"""Parameters in and out: portable model files, and the authors' PyTorch parameter names."""

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from safetensors import SafetensorError
from safetensors import numpy as safetensors

from tmem.image_models import ImageClassifier, ImageClassifierConfig
from tmem.masked_autoencoder import AutoencoderConfig, MaskedAutoencoder
from tmem.models import LanguageConfig, LanguageModel, SequenceConfig, SequenceModel
from tmem.reference_models import KINDS, required
from tmem.reference_names import Entry, entries
from tmem.video_models import VideoClassifier, VideoConfig

MODELS = {
  "ImageClassifier": (ImageClassifierConfig, ImageClassifier),
  "LanguageModel": (LanguageConfig, LanguageModel),
  "MaskedAutoencoder": (AutoencoderConfig, MaskedAutoencoder),
  "SequenceModel": (SequenceConfig, SequenceModel),
  "VideoClassifier": (VideoConfig, VideoClassifier),
}
DERIVED = (
  "grid_cache",
  "rope_cos",
  "rope_sin",
)  # buffers of the authors' state dict that hold no parameters


def save_model(directory: str | os.PathLike, model: nnx.Module) -> None:
  """Writes `config.json` and `model.safetensors`.

  Both are complete before they take the place of an earlier model, in two renames.

  Args:
    directory: where to write; an earlier model there is replaced.
    model: of one of the classes in `MODELS`.

  Raises:
    ValueError: if `model` is of another class, or `directory` is a file.
  """
  name = type(model).__name__
  if name not in MODELS:
    raise ValueError(f"model: got {name}, expected one of {', '.join(MODELS)}")
  directory = Path(directory)
  if directory.exists() and not directory.is_dir():
    raise ValueError(f"directory: {directory} is a file, expected a folder")
  directory.parent.mkdir(parents=True, exist_ok=True)
  header = {"model": name, "config": model.config.to_dict()}
  arrays = {path: np.asarray(value) for path, value in flat_params(model).items()}
  with tempfile.TemporaryDirectory(prefix=f".{directory.name}-", dir=directory.parent) as scratch:
    written = Path(scratch) / "new"  # `scratch` itself is closed to other users
    written.mkdir()
    (written / "config.json").write_text(json.dumps(header, indent=2) + "\n")
    (written / "model.safetensors").write_bytes(safetensors.save(arrays))
    if directory.exists():
      directory.rename(Path(scratch) / "old")
    written.rename(directory)


def load_model(directory: str | os.PathLike) -> nnx.Module:
  """Reads what `save_model` wrote.

  Raises:
    FileNotFoundError: if there is no model in `directory`.
    ValueError: if a file is broken, or the parameters are not those of the configuration;
      names the file and the first parameter that differs.
  """
  directory = Path(directory)
  header_file, params_file = directory / "config.json", directory / "model.safetensors"
  for file in (header_file, params_file):
    if not file.is_file():
      raise FileNotFoundError(f"{file}: no such file; expected a model written by save_model")
  try:
    header = json.loads(header_file.read_text())
    config_class, model_class = MODELS[header["model"]]
    config = config_class.from_dict(header["config"])
  except (ValueError, KeyError, TypeError) as error:
    raise ValueError(f"{header_file}: not a model configuration ({error})") from error
  try:
    arrays = safetensors.load_file(params_file)
  except (SafetensorError, OSError) as error:
    raise ValueError(f"{params_file}: broken or truncated ({error})") from error
  model = nnx.eval_shape(lambda: model_class(config, rngs=nnx.Rngs(0)))
  try:
    return with_params(model, arrays)
  except ValueError as error:
    raise ValueError(f"{params_file}: {error}") from error


def flat_params(model: nnx.Module) -> dict[str, jax.Array]:
  """The model's parameters by dotted path, as in `blocks.0.mlp.up.kernel`."""
  return _flatten(nnx.to_pure_dict(nnx.state(model, nnx.Param)))


def with_params(model: nnx.Module, arrays: Mapping[str, Any]) -> nnx.Module:
  """A copy of `model` with the parameters of `arrays`, which are named by dotted path.

  Raises:
    ValueError: naming the first path that is missing, unknown, or of another shape.
  """
  graphdef, state = nnx.split(model)
  flat = _flatten(nnx.to_pure_dict(state))
  for path in sorted(flat.keys() | arrays.keys()):
    if path not in arrays:
      raise ValueError(f"parameter {path} is missing")
    if path not in flat:
      raise ValueError(f"parameter {path} does not belong to the model")
    if flat[path].shape != np.shape(arrays[path]):
      raise ValueError(
        f"parameter {path} has shape {np.shape(arrays[path])}, the model's is {flat[path].shape}"
      )
  pure = nnx.to_pure_dict(state)
  leaves = jax.tree.map_with_path(
    lambda path, old: jnp.asarray(arrays[_dotted(path)], old.dtype), pure
  )
  nnx.replace_by_pure_dict(state, leaves)
  return nnx.merge(graphdef, state)


def build_from_reference(config: Mapping[str, Any], params: Mapping[str, Any]) -> nnx.Module:
  """Builds our module from the authors' configuration and parameters.

  Args:
    config: `kind` ("interface", "language_model", "vit" or "video") and the sizes, in the authors'
      names. A language configuration may add `state_scope`; without it the published "depth" is
      meant.
    params: arrays under the names of their PyTorch state dict; derived buffers are ignored.

  Returns:
    A `TensorMemory`, `LanguageModel`, `ImageClassifier` or `VideoClassifier`, without dropout,
    that computes in the type of the parameters.

  Raises:
    ValueError: on an unknown kind or method, a size that is missing, or parameters that do not
      fit the configuration; names the first.

  Reference: github.com/kswain98/tensor-memory, commit 21d6bbb.
  """
  kind = config.get("kind")
  if kind not in KINDS:
    raise ValueError(f"config: got kind {kind!r}, expected one of {', '.join(KINDS)}")
  params = {name: np.asarray(value) for name, value in params.items()}
  model = nnx.eval_shape(lambda: KINDS[kind](config, params))
  return with_params(model, _load(entries(model), params))


def reference_params(model: nnx.Module) -> dict[str, np.ndarray]:
  """The inverse of `build_from_reference`: parameters under the authors' names.

  Args:
    model: one of those that `build_from_reference` builds; one that holds gradients in place of
      parameters will do.

  Returns:
    One array for each name of the authors' state dict, derived buffers and the tied head left
    out.
  """
  arrays = flat_params(model)
  found = {}
  for entry in entries(model):
    parts = entry.store(np.asarray(arrays[entry.path]))
    found.update(zip(entry.names, parts, strict=True))
  return found


def _load(table: list[Entry], params: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
  known = {name for entry in table for name in entry.names}
  for name in params:
    if name not in known and name.rpartition(".")[2] not in DERIVED and name != "head.weight":
      raise ValueError(f"params: {name} does not belong to the model")
  return {
    entry.path: entry.load(*(required(params, name, "params") for name in entry.names))
    for entry in table
  }


def _flatten(pure: Mapping) -> dict[str, Any]:
  return {_dotted(path): leaf for path, leaf in jax.tree.leaves_with_path(pure)}


def _dotted(path) -> str:
  return ".".join(str(entry.key) for entry in path)
