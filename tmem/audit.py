"""Causality audits: does a later token reach an earlier logit, and can a model beat chance?

`python -m tmem.audit --workdir=DIR` runs both on a trained model.
"""

import argparse
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
from flax import nnx

from tmem import interop
from tmem.config import check_int
from tmem.decoder_config import DecoderConfig
from tmem.models import LanguageConfig, LanguageModel, SequenceModel
from tmem.typing import Logits, TokenIds, Tokens


def future_influence(logits_fn: Callable[[jax.Array], Logits], tokens: TokenIds | Tokens) -> float:
  """The largest change of any earlier logit when a later token changes.

  The token at every position but the first is replaced in turn, by the next of the vocabulary
  or, if tokens are vectors, by one that differs in every feature; everything else is kept. A
  causal model has exactly 0.0: the same numbers go through the same operations.

  Args:
    logits_fn: `tokens` -> [batch, tokens, classes]; compiled here.
    tokens: at least two positions: [batch, tokens] integers in [0, classes), or
      [batch, tokens, features] floating.

  Returns:
    The largest absolute difference; infinity if a logit becomes or stops being NaN.

  Raises:
    ValueError: if `tokens` has another shape or type or fewer than two positions, if there is
      only one class, or if every logit is NaN: then nothing can be said.
  """
  tokens = jnp.asarray(tokens)
  kinds = {2: jnp.integer, 3: jnp.floating}
  kind = kinds.get(tokens.ndim)
  if kind is None or tokens.shape[1] < 2 or not jnp.issubdtype(tokens.dtype, kind):
    raise ValueError(
      f"tokens: got {tokens.dtype}{list(tokens.shape)}, expected integers [batch, tokens >= 2] or"
      " floats [batch, tokens >= 2, features]"
    )
  compiled = jax.jit(lambda tokens: logits_fn(tokens))
  reference = np.asarray(compiled(tokens))
  if reference.shape[-1] < 2:
    raise ValueError("logits_fn: got one symbol, expected at least two to tell tokens apart")
  if np.isnan(reference).all():
    raise ValueError("logits_fn: every logit is NaN, expected numbers")
  worst = 0.0
  for position in range(1, tokens.shape[1]):
    other = tokens[:, position] + 1
    if kind is jnp.integer:
      other = other % reference.shape[-1]
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
  config: DecoderConfig,
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
    config: the decoder; it becomes a language model of `symbols` symbols without dropout.
    symbols: number of symbols.
    steps: training steps, each on fresh symbols, at least 8.
    batch_size: rows of a step.
    length: tokens of a row; None means `config.max_length`.
    learning_rate: of Adam.
    seed: of parameters and symbols.

  Returns:
    The loss reached, the floor and the statistical margin.

  Raises:
    ValueError: if `steps` is below 8, which is too few for a margin.

  Reference: a causal model's expected loss on i.i.d. uniform tokens is at least their entropy.
  """
  check_int("steps", steps, minimum=8)
  decoder = {f.name: getattr(config, f.name) for f in dataclasses.fields(DecoderConfig)}
  config = LanguageConfig(vocab_size=symbols, **{**decoder, "dropout": 0.0})
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
  last = losses[-(steps // 4) :]
  margin = 5.0 * float(last.std(ddof=1)) / math.sqrt(len(last))
  return Floor(loss=float(last.mean()), floor=math.log(symbols), margin=margin)


def audit_model(
  model: LanguageModel | SequenceModel, *, tokens: int, floor_steps: int, seed: int = 0
) -> dict:
  """Both audits of a trained model.

  Args:
    model: the model. The influence is that of its weights; the floor is that of a fresh model of
      its configuration.
    tokens: length of the audited sequence, cut to what the model takes.
    floor_steps: training steps of the entropy floor; 0 leaves it out.
    seed: of tokens and training.

  Returns:
    JSON values: `future_influence`, `influence_tokens`, `entropy_floor` (or None) and `causal`.
  """
  length = min(tokens, model.config.max_length)
  key = jax.random.key(seed)
  if isinstance(model, LanguageModel):
    inputs = jax.random.randint(key, (1, length), 0, model.config.vocab_size)
  else:
    inputs = jax.random.normal(key, (1, length, model.config.input_features))
  influence = future_influence(model, inputs)
  report = {"future_influence": influence, "influence_tokens": length, "entropy_floor": None}
  causal = influence == 0.0
  if floor_steps:
    floor = entropy_floor(model.config, steps=floor_steps, length=length, seed=seed)
    report["entropy_floor"] = floor._asdict()
    causal = causal and floor.causal
  return report | {"causal": causal}


def main() -> None:
  """Prints the audits of `WORKDIR/model` as JSON.

  Exit status 1 if the model is not causal or cannot be audited, 2 for bad flags.
  """
  parser = argparse.ArgumentParser(
    prog="python -m tmem.audit", description=__doc__.splitlines()[0], allow_abbrev=False
  )
  parser.add_argument("--workdir", required=True, help="run directory that holds model/")
  parser.add_argument("--tokens", type=int, default=64, help="length of the audited sequence")
  parser.add_argument(
    "--floor_steps", type=int, default=300, help="training steps on random symbols; 0: none"
  )
  parser.add_argument("--seed", type=int, default=0, help="seed of tokens and training")
  options = parser.parse_args()
  if options.tokens < 2:
    parser.error(f"--tokens={options.tokens}: expected at least 2")
  if options.floor_steps and options.floor_steps < 8:
    parser.error(f"--floor_steps={options.floor_steps}: expected 0 or at least 8")
  try:
    model = interop.load_model(Path(options.workdir) / "model")
    report = audit_model(
      model, tokens=options.tokens, floor_steps=options.floor_steps, seed=options.seed
    )
  except (OSError, ValueError) as error:
    sys.exit(f"error: --workdir={options.workdir}: {error}")
  print(json.dumps(report, indent=2))
  if not report["causal"]:
    sys.exit("the model is NOT causal: later tokens reach earlier ones")


if __name__ == "__main__":
  main()
