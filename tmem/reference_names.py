"""Our parameters and where the authors' PyTorch state dict has them."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from flax import nnx

from tmem.decoder_config import METHODS
from tmem.encoder import Encoder
from tmem.image_models import ImageClassifier
from tmem.memory import TensorMemory


class Entry(NamedTuple):
  """One of our parameters and where the authors' state dict has it.

  Attributes:
    path: ours, dotted.
    names: theirs, one or more.
    load: makes ours of theirs.
    store: the inverse.
  """

  path: str
  names: tuple[str, ...]
  load: Callable[..., np.ndarray]
  store: Callable[[np.ndarray], tuple[np.ndarray, ...]]


def entries(model: nnx.Module) -> list[Entry]:
  """Those of every parameter of a model that has a counterpart."""
  if isinstance(model, TensorMemory):
    return _memory_entries(len(model.config.grid), "", "")
  return _vision_entries(model) if isinstance(model, Encoder) else _language_entries(model)


def _language_entries(model: nnx.Module) -> list[Entry]:
  config = model.config
  found = [
    _array("embedding.embedding", "tok.weight"),
    *_norm("norm", "ln"),
  ]
  if config.learned_positions:
    found.append(_in_batch("positions", "pos"))
  if config.distances is not None:
    found.append(_array("distance_bias", "rel_bias"))
  for layer in range(config.num_layers):
    ours, theirs = f"blocks.{layer}.", f"blocks.{layer}."
    found += [
      *_norm(f"{ours}attention_norm", f"{theirs}ln1"),
      *(_segment_entries(layer) if config.distances is not None else _attention_entries(layer)),
      *_norm(f"{ours}mlp_norm", f"{theirs}ln2"),
      *_linear(f"{ours}mlp.up", f"{theirs}mlp.0"),
      *_linear(f"{ours}mlp.down", f"{theirs}mlp.3"),
    ]
    if METHODS[config.method].output_norm:
      found += _norm(f"{ours}output_norm", f"{theirs}attn_ln")
    if layer in config.memory_layers:
      found += _norm(f"{ours}fusion.norm", f"mem_lns.{layer}")
      found.append(_in_batch(f"{ours}fusion.gate", f"gates.{layer}"))
  if model.memory is not None:
    found += _memory_entries(len(model.memory.config.grid), "memory.", "memory.")
  return found


def _vision_entries(model: Encoder) -> list[Entry]:
  config, memory = model.config, "shared_memory."
  found = [
    _patch_entry(config.patch_size),
    _array("patches.bias", "patch_embed.bias"),
    _in_batch("positions", "pos_embed"),
    Entry("class_token", ("cls_token",), lambda a: a[0, 0], lambda a: (a[None, None],)),
    *_norm("norm", "norm"),
    *_linear("head", "head"),
  ]
  if isinstance(model, ImageClassifier):
    memory = "shared_tensor_memory."
  elif model.times is not None:
    found.append(_in_batch("times", "time_embed"))
  if model.registers is not None:
    found.append(_in_batch("registers", "registers"))
  for layer in range(config.num_layers):
    block = f"blocks.{layer}."
    found += [
      *_norm(f"{block}attention_norm", f"{block}norm1"),
      *_attention_entries(layer),
      *_norm(f"{block}mlp_norm", f"{block}norm2"),
      *_linear(f"{block}mlp.up", f"{block}mlp.0"),
      *_linear(f"{block}mlp.down", f"{block}mlp.3"),
    ]
    if layer in config.memory_layers:
      found += _norm(f"{block}fusion.norm", f"{block}ln_memory")
      found.append(_in_batch(f"{block}fusion.gate", f"{block}memory_gate"))
  if model.memory is not None:
    found += _memory_entries(len(model.memory.config.grid), "memory.", memory)
  return found


def _patch_entry(size: int) -> Entry:
  """A convolution [out, in, size, size] as a product with patches, channels last."""

  def store(kernel):
    return (kernel.reshape(size, size, -1, kernel.shape[1]).transpose(3, 2, 0, 1),)

  return Entry(
    "patches.kernel",
    ("patch_embed.weight",),
    lambda a: a.transpose(2, 3, 1, 0).reshape(-1, len(a)),
    store,
  )


def _attention_entries(layer: int) -> list[Entry]:
  ours, theirs = f"blocks.{layer}.attention.", f"blocks.{layer}.attn."
  return [
    _kernel(f"{ours}qkv", f"{theirs}in_proj_weight"),
    _array(f"{ours}qkv.bias", f"{theirs}in_proj_bias"),
    *_linear(f"{ours}out", f"{theirs}out_proj"),
  ]


def _segment_entries(layer: int) -> list[Entry]:
  ours = f"blocks.{layer}.attention."
  return [
    _kernel(f"{ours}qkv", f"qkv_projs.{layer}.weight"),
    _kernel(f"{ours}out", f"out_projs.{layer}.weight"),
  ]


def _memory_entries(axes: int, ours: str, theirs: str) -> list[Entry]:
  convs = [f"{theirs}gate_conv.conv_{axis}" for axis in "dhw"[:axes]]

  def store_depthwise(kernel):  # [axes, 3, 2C] -> one [2C, 1, taps on its own axis] per axis
    shapes = [[3 if a == axis else 1 for a in range(axes)] for axis in range(axes)]
    return tuple(k.T.reshape(-1, 1, *shape) for k, shape in zip(kernel, shapes, strict=True))

  return [
    *_linear(f"{ours}summary", f"{theirs}write_proj"),
    *_linear(f"{ours}coordinate", f"{theirs}coord_net"),
    *_linear(f"{ours}content", f"{theirs}writer.content_net"),
    *_linear(f"{ours}spread", f"{theirs}writer.sigma_net"),
    *_linear(f"{ours}output", f"{theirs}out_proj"),
    Entry(
      f"{ours}gates.depthwise",
      tuple(f"{c}.weight" for c in convs),
      lambda *w: np.stack([a.reshape(len(a), 3).T for a in w]),
      store_depthwise,
    ),
    Entry(
      f"{ours}gates.depthwise_bias",
      tuple(f"{c}.bias" for c in convs),
      lambda *b: np.stack(b),
      tuple,
    ),
    Entry(
      f"{ours}gates.pointwise",
      (f"{theirs}gate_conv.pointwise.weight",),
      lambda a: a.reshape(a.shape[:2]).T,
      lambda a: (a.T.reshape(*a.T.shape, *(1,) * axes),),
    ),
    _array(f"{ours}gates.pointwise_bias", f"{theirs}gate_conv.pointwise.bias"),
  ]


def _array(path: str, name: str) -> Entry:
  return Entry(path, (name,), lambda a: a, lambda a: (a,))


def _in_batch(path: str, name: str) -> Entry:
  """An array that they have with an axis of one entry in front."""
  return Entry(path, (name,), lambda a: a[0], lambda a: (a[None],))


def _linear(path: str, name: str) -> list[Entry]:
  return [_kernel(path, f"{name}.weight"), _array(f"{path}.bias", f"{name}.bias")]


def _kernel(path: str, name: str) -> Entry:
  return Entry(f"{path}.kernel", (name,), np.transpose, lambda a: (a.T,))


def _norm(path: str, name: str) -> list[Entry]:
  return [_array(f"{path}.scale", f"{name}.weight"), _array(f"{path}.bias", f"{name}.bias")]
