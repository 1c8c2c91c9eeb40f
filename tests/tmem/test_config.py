"""Configurations that refuse what cannot work, and survive JSON."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tmem import MemoryConfig

BAD = [
  *[("channels", value) for value in (0, -1, 1.5, True, "8", None)],
  *[
    ("grid", value)
    for value in ((), (0, 4, 4), "8", 8, (2,) * 5, (4, 2.0, 4), (True, 2), None, {2, 3})
  ],
  ("grid", (2048,) * 3),
  *[("chunk_size", value) for value in (0, -2, 2.0, False)],
  *[("sigma_scale", value) for value in (0.0, -1.0, float("nan"), float("inf"), "1")],
  *[("sigma_min", value) for value in (0.0, -0.1, float("nan"), "a")],
  *[("sigma_max", value) for value in (0.0, float("inf"))],
  *[("forget_bias", value) for value in (float("nan"), float("-inf"), "3", None, True)],
  *[("read_query", value) for value in ("last", "", None)],
  *[("tail", value) for value in ("drop", None)],
  *[("implementation", value) for value in ("slow", "Fast")],
  *[("remat", value) for value in (0, -1, 1.0, "yes")],
  *[("dtype", value) for value in (jnp.int32, "int8", "float33", bool)],
  *[("param_dtype", value) for value in (jnp.uint8, "complex64")],
  *[("state_dtype", value) for value in (jnp.bfloat16, jnp.float16, jnp.int32)],
]


@pytest.mark.parametrize(("name", "value"), BAD)
def test_a_bad_field_names_itself(name, value):
  with pytest.raises(ValueError, match=rf"^{name}: "):
    MemoryConfig(**{name: value})


def test_the_message_says_what_came_and_what_is_right():
  with pytest.raises(ValueError, match=r"channels: got -1, expected an integer of at least 1"):
    MemoryConfig(channels=-1)
  with pytest.raises(ValueError, match=r"tail: got 'drop', expected one of 'commit', 'hold'"):
    MemoryConfig(tail="drop")


def test_crossed_bounds_of_the_spread_are_refused():
  with pytest.raises(ValueError, match=r"sigma_min: 0.5 is above sigma_max 0.2"):
    MemoryConfig(sigma_min=0.5, sigma_max=0.2)
  assert MemoryConfig(sigma_min=0.2, sigma_max=0.2).sigma_max == 0.2


@pytest.mark.parametrize("remat", [False, True, 1, 7])
def test_every_kind_of_remat_is_kept(remat):
  assert MemoryConfig(remat=remat).remat is remat


def test_grids_are_normalised():
  assert MemoryConfig(grid=[2, 3]).grid == (2, 3)
  assert MemoryConfig(grid=np.array([1, 1, 1])).grid == (1, 1, 1)
  assert MemoryConfig(grid=(3, 4, 5)).cells == 60


def test_is_frozen_and_hashable():
  config = MemoryConfig(dtype="bfloat16")
  assert config == MemoryConfig(dtype=jnp.bfloat16)
  assert hash(config) == hash(MemoryConfig(dtype=jnp.bfloat16))
  with pytest.raises(dataclasses.FrozenInstanceError):
    config.channels = 3


def test_json_round_trip():
  with jax.enable_x64(True):
    config = MemoryConfig(
      channels=3,
      grid=(1, 2, 3, 4),
      chunk_size=5,
      sigma_scale=0.5,
      sigma_min=0.01,
      sigma_max=2.0,
      read_query="token",
      dynamics="parallel",
      update="window",
      window=(1, 2, 2, 3),
      read_heads=2,
      write_heads=3,
      write="nearest",
      coordinate_heads="separate",
      depthwise=False,
      forget_bias=-1.0,
      tail="hold",
      implementation="plain",
      remat=4,
      dtype=jnp.bfloat16,
      param_dtype=jnp.float16,
      state_dtype=jnp.float64,
    )
    defaults = MemoryConfig()
    assert all(
      getattr(config, f.name) != getattr(defaults, f.name) for f in dataclasses.fields(config)
    )
    text = json.dumps(config.to_dict())
    assert MemoryConfig.from_dict(json.loads(text)) == config
    assert json.loads(text)["dtype"] == "bfloat16"


def test_float64_needs_64_bit_mode():
  with pytest.raises(ValueError, match=r"dtype: float64 needs .*jax_enable_x64"):
    MemoryConfig(dtype=jnp.float64)


def test_numbers_of_numpy_survive_json():
  config = MemoryConfig(channels=np.int64(3), forget_bias=np.float32(1.5), remat=np.int32(2))
  assert MemoryConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_published_settings():
  config = MemoryConfig.published()
  assert (config.channels, config.grid, config.chunk_size) == (32, (8, 8, 8), 16)
  assert (config.dynamics, config.read_heads, config.write_heads) == ("convlstm", 1, 1)
  assert (config.forget_bias, config.read_query, config.tail) == (0.0, "first", "commit")
  assert (config.sigma_scale, config.sigma_min, config.sigma_max) == (1.0, None, None)
  changed = MemoryConfig.published(channels=4, tail="hold")
  assert (changed.channels, changed.tail, changed.grid) == (4, "hold", (8, 8, 8))


def test_unknown_fields_are_named():
  with pytest.raises(ValueError, match=r"MemoryConfig has no field 'chanels'.*channels"):
    MemoryConfig.from_dict({"chanels": 3})


def test_float64_is_meant_only_when_it_is_said():
  with pytest.raises(ValueError, match=r"^dtype: got None"):
    MemoryConfig(dtype=None)
