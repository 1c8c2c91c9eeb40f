"""A stream on disk: written whole, and refused unless it is whole and of the same model."""

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from safetensors import SafetensorError, safe_open
from safetensors import numpy as safetensors

from tmem.decoder import Stream
from tmem.interop import flat_params
from tmem.streaming import Model, thawed
from tmem.typing import Logits

FORMAT = "tmem-stream-2"
LOGITS = "logits"


def save_stream(
  path: str | os.PathLike, model: Model, stream: Stream, logits: Logits | None = None
) -> None:
  """Writes a stream, in one rename.

  Args:
    path: file to write; what is there is replaced.
    model: the model that the stream belongs to.
    stream: what to write.
    logits: [batch, vocab_size] of the next tokens, to go along, so that nothing has to be computed
      before the stream goes on.

  Raises:
    FileNotFoundError: if there is no such folder.
    ValueError: if the stream is of another model, the logits are not the stream's, or `path` is a
      folder.
  """
  path, model = Path(path), thawed(model)
  check_place(path)
  model.check_stream(stream)
  expected = (len(stream.seen), model.config.vocab_size)
  if logits is not None and logits.shape != expected:
    raise ValueError(f"logits: got shape {logits.shape}, expected {expected}")
  arrays = {name: np.asarray(array) for name, array in _named(stream).items()}
  if logits is not None:
    arrays[LOGITS] = np.asarray(logits)
  header = {
    "format": FORMAT,
    "model": fingerprint(model),
    "seen": _seen(arrays),  # for those who look at the file
    "content": _digest(arrays),
  }
  with tempfile.TemporaryDirectory(prefix=f".{path.name}-", dir=path.parent) as scratch:
    written = Path(scratch) / "new"
    with written.open("wb") as file:
      file.write(safetensors.save(arrays, header))
      file.flush()
      os.fsync(file.fileno())
    written.replace(path)


def check_place(path: Path) -> None:
  """Raises FileNotFoundError or ValueError if no file can be written there."""
  if not path.parent.is_dir():
    raise FileNotFoundError(f"{path}: there is no folder {path.parent}")
  if path.is_dir():
    raise ValueError(f"{path}: is a folder, expected the name of a file")


def load_stream(path: str | os.PathLike, model: Model) -> tuple[Stream, Logits | None]:
  """Reads what `save_stream` wrote; going on from it is bit for bit as if it had never stopped.

  Args:
    path: the file.
    model: the model that goes on.

  Returns:
    `(stream, logits)`: the stream, and the logits that went along, if any.

  Raises:
    FileNotFoundError: if there is no file.
    ValueError: if it is no stream, not whole, altered, or another model's.
  """
  path, model = Path(path), thawed(model)
  if not path.is_file():
    raise FileNotFoundError(f"{path}: no such file; expected a stream written by save_stream")
  try:
    with safe_open(path, framework="numpy") as file:
      header = file.metadata() or {}
      arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
  except (SafetensorError, OSError, ValueError, TypeError) as error:
    raise ValueError(f"{path}: broken or truncated ({error})") from error
  if header.get("format") != FORMAT:
    raise ValueError(f"{path}: not a stream ({FORMAT})")
  if header.get("content") != _digest(arrays) or header.get("seen") != _seen(arrays):
    raise ValueError(f"{path}: altered since it was written")
  if header.get("model") != fingerprint(model):
    raise ValueError(f"{path}: the stream of another model, or of other parameters")
  empty = jax.eval_shape(lambda: model.init_stream(1))
  logits = arrays.pop(LOGITS, None)
  if set(arrays) != set(_named(empty)):
    raise ValueError(f"{path}: altered since it was written")
  leaves = [jnp.asarray(arrays[name]) for name in _named(empty)]
  stream = jax.tree.unflatten(jax.tree.structure(empty), leaves)
  try:
    model.check_stream(stream)
  except ValueError as error:
    raise ValueError(f"{path}: altered since it was written ({error})") from error
  return stream, None if logits is None else jnp.asarray(logits)


def fingerprint(model: nnx.Module) -> str:
  """What tells a model from others: of its configuration and every parameter's bits."""
  config = json.dumps(model.config.to_dict(), sort_keys=True)
  params = {name: np.asarray(array) for name, array in flat_params(model).items()}
  return hashlib.sha256((config + _digest(params)).encode()).hexdigest()


def _named(stream: Stream) -> dict[str, jax.Array]:
  return {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree.leaves_with_path(stream)}


def _seen(arrays: Mapping[str, np.ndarray]) -> str | None:
  return json.dumps(arrays[".seen"].tolist()) if ".seen" in arrays else None


def _digest(arrays: Mapping[str, np.ndarray]) -> str:
  digest = hashlib.sha256()
  for name, array in sorted(arrays.items()):
    digest.update(f"{name} {array.dtype} {array.shape} ".encode())
    digest.update(np.ascontiguousarray(array).tobytes())
  return digest.hexdigest()
