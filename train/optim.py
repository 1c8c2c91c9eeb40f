"""AdamW: warm-up and cosine, clipping, weight decay on matrices only."""

from typing import Any

import jax
import optax

from train.config import OptimConfig

# Path components of parameters that are not weight matrices although they have two or more
# axes: embeddings and position tables (rows are looked up, not multiplied), normalisation,
# biases, slots at their start, and 3-tap depthwise filters, which start as the identity and must
# not shrink to zero.
UNDECAYED = ("embedding", "positions", "norm", "bias", "initial", "depthwise")


def learning_rate_schedule(config: OptimConfig) -> optax.Schedule:
  """Linear from 0 to the peak in `warmup_steps`, then a cosine to its fraction at `steps`.

  Args:
    config: peak, steps and final fraction.

  Returns:
    A function from the number of updates made so far to the learning rate of the next.
  """
  return optax.warmup_cosine_decay_schedule(
    init_value=0.0 if config.warmup_steps else config.learning_rate,
    peak_value=config.learning_rate,
    warmup_steps=config.warmup_steps,
    decay_steps=max(config.steps, config.warmup_steps + 1),
    end_value=config.learning_rate * config.final_lr_fraction,
  )


def decay_mask(params: Any) -> Any:
  """Which parameters weight decay shrinks: matrices, except those named in `UNDECAYED`.

  Args:
    params: tree of arrays or of shapes.

  Returns:
    Tree of bools in the structure of `params`.
  """

  def is_decayed(path, leaf) -> bool:
    names = jax.tree_util.keystr(path, simple=True, separator="/").lower()
    return leaf.ndim >= 2 and not any(word in names for word in UNDECAYED)

  return jax.tree_util.tree_map_with_path(is_decayed, params)


def make_optimizer(config: OptimConfig) -> optax.GradientTransformation:
  """AdamW (Loshchilov and Hutter, 2019) behind global-norm clipping.

  Args:
    config: rates, decay and clipping; `clip_norm=0` leaves the gradient as it is.

  Returns:
    An optax transformation; its schedule counts the updates it has made.
  """
  clip = optax.clip_by_global_norm(config.clip_norm) if config.clip_norm else optax.identity()
  adamw = optax.adamw(
    learning_rate_schedule(config),
    b1=config.b1,
    b2=config.b2,
    weight_decay=config.weight_decay,
    mask=decay_mask,
  )
  return optax.chain(clip, adamw, _scaled_coordinates(config.coordinate_lr_factor))


def _scaled_coordinates(factor: float) -> optax.GradientTransformation:
  """Scales the updates of coordinate heads.

  Where to write and what to write are learnt together. A head that moves as fast as the rest
  follows the first direction of the tokens that pays, with all its axes, and the others are lost.
  """
  if factor == 1.0:
    return optax.identity()

  def heads(params):
    return jax.tree_util.tree_map_with_path(
      lambda path, _: "coordinate" in jax.tree_util.keystr(path), params
    )

  return optax.masked(optax.scale(factor), heads)
