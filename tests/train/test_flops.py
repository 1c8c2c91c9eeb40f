"""Operations of matrix products, counted in traced functions."""

import jax
import jax.numpy as jnp
import pytest

from train.flops import matrix_flops

ROWS = jnp.ones((3, 5))
MATRIX = jnp.ones((5, 7))
ONE = 2 * 3 * 5 * 7


def scanned(x):
  return jax.lax.scan(lambda c, _: (c, jnp.sum(c @ MATRIX)), x, None, length=4)


def chosen(x):
  return jax.lax.cond(
    x[0, 0] > 0, lambda x: x @ MATRIX, lambda x: x @ MATRIX @ MATRIX.T @ MATRIX, x
  )


@pytest.mark.parametrize(
  ("function", "expected"),
  [
    (lambda x: jnp.tanh(x @ MATRIX), ONE),
    (lambda x: jax.vmap(lambda row: row @ MATRIX)(x), ONE),
    (scanned, 4 * ONE),
    (chosen, 3 * ONE),
    (jax.checkpoint(lambda x: x @ MATRIX), ONE),
    (jnp.tanh, 0),
  ],
)
def test_products_are_counted_as_often_as_they_run(function, expected):
  assert matrix_flops(jax.jit(function).trace(ROWS).jaxpr) == expected


def test_a_convolution_counts_its_window():
  images, kernel = jnp.ones((2, 6, 6, 3)), jnp.ones((3, 3, 3, 4))

  def convolve(images):
    return jax.lax.conv_general_dilated(
      images, kernel, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )

  assert matrix_flops(jax.jit(convolve).trace(images).jaxpr) == 2 * (2 * 4 * 4 * 4) * (3 * 3 * 3)
