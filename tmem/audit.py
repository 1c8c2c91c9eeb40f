"""Causality audits: does a later token reach an earlier logit, and can a model beat chance?

`python -m tmem.audit --workdir=DIR` runs both on a trained model.
"""

import dataclasses
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl import app, flags
from flax import nnx

from tmem import interop
from tmem.models import LanguageConfig, LanguageModel
from tmem.typing import Logits, TokenIds


def future_influence(logits_fn: Callable[[TokenIds], Logits], tokens: TokenIds) -> float:
  """The largest change of any earlier logit when a later token changes.

  Every position but the first is changed in turn, everything else kept. A causal model has
  exactly 0.0: the same numbers go through the same operations.

  Args:
    logits_fn: int32 [batch, tokens] -> [batch, tokens, vocabulary]; compiled here.
    tokens: [batch, tokens] integers in [0, vocabulary), at least two tokens.

  Returns:
    The largest absolute difference; infinity if a logit becomes or stops being NaN.

  Raises:
    ValueError: if `tokens` has another shape or type, or fewer than two positions.
  """
  tokens = jnp.asarray(tokens)
  if tokens.ndim != 2 or tokens.shape[1] < 2 or not jnp.issubdtype(tokens.dtype, jnp.integer):
    raise ValueError(
      f"tokens: got {tokens.dtype}{list(tokens.shape)}, expected integers [batch, tokens >= 2]"
    )
  compiled = jax.jit(lambda tokens: logits_fn(tokens))
  reference = np.asarray(compiled(tokens))
  worst = 0.0
  for position in range(1, tokens.shape[1]):
    other = (tokens[:, position] + 1) % reference.shape[-1]
    changed = np.asarray(compiled(tokens.at[:, position].set(other)))[:, :position]
    before = reference[:, :position]
    if not np.array_equal(np.isnan(changed), np.isnan(before)):
      return math.inf
    with np.errstate(invalid="ignore"):  # infinities that stay are no difference
      worst = max(worst, float(np.nanmax(np.abs(changed - before), initial=0.0)))
  return worst


class Floor(NamedTuple):
  """Result of `entropy_floor`: losses in nats per token.

  Attributes:
    loss: mean over the last quarter of the steps, each on tokens never seen before.
    floor: ln(symbols), which no causal model can go below.
    margin: five standard errors of `loss`.
  """

  loss: float
  floor: float
  margin: float

  @property
  def causal(self) -> bool:
    """Whether the loss respects the floor."""
    return self.loss >= self.floor - self.margin


def entropy_floor(
  config: LanguageConfig,
  *,
  symbols: int = 4,
  steps: int = 300,
  batch_size: int = 16,
  length: int | None = None,
  learning_rate: float = 3e-3,
  seed: int = 0,
) -> Floor:
  """Trains a model on uniform random symbols, which nothing but a leak can predict.

  Args:
    config: the model; its vocabulary is replaced by `symbols`, dropout by 0.
    symbols: number of symbols.
    steps: training steps, each on fresh symbols.
    batch_size: rows of a step.
    length: tokens of a row; None means `config.max_length`.
    learning_rate: of Adam.
    seed: of parameters and symbols.

  Returns:
    The loss reached, the floor and the statistical margin.

  Reference: a causal model's expected loss on i.i.d. uniform tokens is at least their entropy.
  """
  config = dataclasses.replace(config, vocab_size=symbols, dropout=0.0)
  length = config.max_length if length is None else length
  graphdef, params = nnx.split(LanguageModel(config, rngs=nnx.Rngs(seed)))
  optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(learning_rate))

  def loss_fn(params, tokens):
    logits = nnx.merge(graphdef, params)(tokens[:, :-1])
    return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

  def step(carry, key):
    params, moments = carry
    tokens = jax.random.randint(key, (batch_size, length + 1), 0, symbols)
    loss, grads = jax.value_and_grad(loss_fn)(params, tokens)
    updates, moments = optimizer.update(grads, moments, params)
    return (optax.apply_updates(params, updates), moments), loss

  keys = jax.random.split(jax.random.key(seed), steps)
  train = jax.jit(lambda carry: jax.lax.scan(step, carry, keys)[1])
  losses = np.asarray(train((params, optimizer.init(params))), np.float64)
  last = losses[-max(2, steps // 4) :]
  margin = 5.0 * float(last.std(ddof=1)) / math.sqrt(len(last))
  return Floor(loss=float(last.mean()), floor=math.log(symbols), margin=margin)


def audit_model(model: LanguageModel, *, tokens: int, floor_steps: int, seed: int = 0) -> dict:
  """Both audits of a trained model.

  Args:
    model: the model; its weights are used for the influence, its configuration for the floor.
    tokens: length of the audited sequence, cut to what the model takes.
    floor_steps: training steps of the entropy floor; 0 leaves it out.
    seed: of tokens and training.

  Returns:
    JSON values: `future_influence`, `influence_tokens`, `entropy_floor` (or None) and `causal`.
  """
  length = min(tokens, model.config.max_length)
  ids = jax.random.randint(jax.random.key(seed), (1, length), 0, model.config.vocab_size)
  influence = future_influence(model, ids)
  report = {"future_influence": influence, "influence_tokens": length, "entropy_floor": None}
  causal = influence == 0.0
  if floor_steps:
    floor = entropy_floor(model.config, steps=floor_steps, length=length, seed=seed)
    report["entropy_floor"] = floor._asdict()
    causal = causal and floor.causal
  return report | {"causal": causal}


FLAGS = flags.FLAGS


def _define_flags() -> None:
  flags.DEFINE_string("workdir", None, "Run directory that holds model/.", required=True)
  flags.DEFINE_integer("tokens", 64, "Length of the audited sequence.", lower_bound=2)
  flags.DEFINE_integer("floor_steps", 300, "Training steps on random symbols, 0: none.", 0)
  flags.DEFINE_integer("seed", 0, "Seed of tokens and training.")


def main(argv: list[str]) -> None:
  """Prints the audits as JSON; exit status 1 if the model is not causal or cannot be read."""
  if len(argv) > 1:
    raise app.UsageError(f"unexpected argument {argv[1]!r}; flags begin with --")
  try:
    model = interop.load_model(Path(FLAGS.workdir) / "model")
  except (OSError, ValueError) as error:
    sys.exit(f"error: --workdir={FLAGS.workdir}: {error}")
  report = audit_model(model, tokens=FLAGS.tokens, floor_steps=FLAGS.floor_steps, seed=FLAGS.seed)
  print(json.dumps(report, indent=2))
  if not report["causal"]:
    sys.exit("the model is NOT causal: later tokens reach earlier ones")


if __name__ == "__main__":
  _define_flags()
  app.run(main)
