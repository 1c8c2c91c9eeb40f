"""Layer normalisation in the compute types of this library."""

from flax import nnx

from tmem.config import at_least_float32
from tmem.typing import Tokens


class LayerNorm(nnx.LayerNorm):
  """LayerNorm over the last axis with epsilon 1e-5, computed in float32 at least.

  The variance takes two passes, for exactness. The casts are explicit: the library's own are
  refused under `jax_numpy_dtype_promotion="strict"`.

  Args:
    features: size of a token.
    dtype: type of the output.
    param_dtype: type of the parameters.
    rngs: source of the initial parameters.
  """

  def __init__(self, features: int, *, dtype, param_dtype, rngs: nnx.Rngs):
    self.output_dtype = dtype
    super().__init__(
      features,
      epsilon=1e-5,
      use_fast_variance=False,
      dtype=at_least_float32(dtype),
      param_dtype=param_dtype,
      rngs=rngs,
    )

  def __call__(self, x: Tokens) -> Tokens:
    """[..., features] -> [..., features] in `dtype`."""
    return super().__call__(x.astype(self.dtype)).astype(self.output_dtype)
