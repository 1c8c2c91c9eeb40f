"""The authors' configurations as ours: an empty model for each kind."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from flax import nnx

from tmem.config import MemoryConfig
from tmem.decoder_config import METHODS
from tmem.image_models import ImageClassifier, ImageClassifierConfig
from tmem.memory import TensorMemory
from tmem.models import LanguageConfig, LanguageModel
from tmem.video_models import VideoClassifier, VideoConfig

REFERENCE_METHODS = tuple(
  name
  for name, method in METHODS.items()
  if method.memory in (None, "memory") and method.attention != "delta"
)
VIDEO_METHODS = {
  "BaselineVideoViT": "joint",
  "RegisterVideoViT": "registers",
  "TensorMemoryVideoViT": "tensor",
}


def _interface(config, params) -> TensorMemory:
  dtype = _dtype(params, "out_proj.weight")
  memory = _memory_config(config, dtype)
  return TensorMemory(memory, required(config, "embed_dim"), rngs=nnx.Rngs(0))


def _language_model(config, params) -> LanguageModel:
  method = required(config, "method")
  if method not in REFERENCE_METHODS:
    expected = ", ".join(REFERENCE_METHODS)
    raise ValueError(f"config: got method {method!r}, expected one of {expected}")
  dtype = _dtype(params, "tok.weight")
  windowed = METHODS[method].attention == "window"
  remembers = METHODS[method].memory is not None
  scope = config.get("state_scope", "depth") if remembers else "layer"
  language = LanguageConfig(
    vocab_size=required(config, "vocab"),
    features=required(config, "d_model"),
    num_heads=required(config, "heads"),
    num_layers=required(config, "layers"),
    mlp_features=required(params, "blocks.0.mlp.0.weight", "params").shape[0],
    max_length=required(config, "seq_len"),
    method=method,
    window=required(config, "window") if windowed else 1,
    cache_length=required(config, "mem_len") if method == "xl" else None,
    memory=_memory_config(config, dtype) if remembers else MemoryConfig(),
    memory_every_n_layers=config.get("memory_every_n_layers", 1),
    state_scope=scope,
    allow_future_leak=scope == "depth",
    dtype=dtype,
    param_dtype=dtype,
  )
  return LanguageModel(language, rngs=nnx.Rngs(0))


def _vit(config, params) -> ImageClassifier:
  sizes = _vision_sizes(config, params, "shared_tensor_memory.out_proj.weight")
  remembers = "shared_tensor_memory.out_proj.weight" in params
  image = ImageClassifierConfig(method="tensor" if remembers else "base", **sizes)
  return ImageClassifier(image, rngs=nnx.Rngs(0))


def _video(config, params) -> VideoClassifier:
  name = required(config, "model")
  if name not in VIDEO_METHODS:
    raise ValueError(f"config: got model {name!r}, expected one of {', '.join(VIDEO_METHODS)}")
  method = VIDEO_METHODS[name]
  own = {"num_registers": required(config, "n_registers")} if method == "registers" else {}
  sizes = _vision_sizes(config, params, "shared_memory.out_proj.weight")
  video = VideoConfig(method=method, num_frames=required(config, "num_frames"), **own, **sizes)
  return VideoClassifier(video, rngs=nnx.Rngs(0))


def _vision_sizes(config, params, memory: str) -> dict[str, Any]:
  """What the configurations of image and video models have alike; `memory` marks its parameters."""
  dtype = _dtype(params, "head.weight")
  remembers = memory in params
  return {
    "classes": required(config, "num_classes"),
    "image_size": required(config, "img_size"),
    "patch_size": required(config, "patch_size"),
    "input_channels": required(params, "patch_embed.weight", "params").shape[1],
    "features": required(config, "dim"),
    "num_heads": required(config, "heads"),
    "num_layers": required(config, "depth"),
    "mlp_features": required(params, "blocks.0.mlp.0.weight", "params").shape[0],
    "memory_every_n_layers": config.get("memory_every_n_layers", 1),
    "memory": _memory_config(config, dtype) if remembers else MemoryConfig(),
    "dtype": dtype,
    "param_dtype": dtype,
  }


def _memory_config(config, dtype) -> MemoryConfig:
  return MemoryConfig.published(
    channels=_either(config, "memory_channels", "mem_channels"),
    grid=tuple(_either(config, "memory_shape", "mem_shape")),
    chunk_size=required(config, "chunk_size"),
    sigma_scale=config.get("sigma_scale", 1.0),
    dtype=dtype,
    param_dtype=dtype,
    state_dtype=dtype,
  )


def _either(config, name: str, other: str) -> Any:
  """The value of a name that the vision models call otherwise."""
  return config[other] if other in config else required(config, name)


def required(values: Mapping[str, Any], name: str, argument: str = "config") -> Any:
  """The value of a name; raises ValueError if it is missing."""
  if name not in values:
    raise ValueError(f"{argument}: {name} is missing")
  return values[name]


def _dtype(params: Mapping[str, np.ndarray], name: str):
  """Type of a parameter; float64 stays float64 only where JAX has it enabled."""
  return jax.dtypes.canonicalize_dtype(required(params, name, "params").dtype)


# A model of the sizes of a configuration and of parameters, by the configuration's kind.
KINDS = {
  "interface": _interface,
  "language_model": _language_model,
  "vit": _vit,
  "video": _video,
}
