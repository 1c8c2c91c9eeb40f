import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from train import metrics
from train.evaluate import make_evaluate
from train.losses import language_loss, token_nats
from train.sharding import make_mesh


class Unigram(nnx.Module):
  """Logits that do not depend on the input."""

  def __init__(self, logits):
    self.logits = nnx.Param(jnp.asarray(logits))

  def __call__(self, tokens, key=None):
    return jnp.broadcast_to(self.logits[...], (*tokens.shape, self.logits.shape[0]))


def test_token_nats_is_the_negative_log_probability():
  logits = jnp.log(jnp.array([[0.5, 0.25, 0.25], [0.1, 0.1, 0.8]]))
  expected = -np.log([0.25, 0.8])
  np.testing.assert_allclose(token_nats(logits, jnp.array([1, 2])), expected, rtol=1e-5)


def test_token_nats_of_bfloat16_logits_is_float32():
  assert token_nats(jnp.zeros((2, 3), jnp.bfloat16), jnp.zeros(2, jnp.int32)).dtype == jnp.float32


def test_masked_targets_do_not_count():
  model = Unigram(np.log([0.5, 0.5 - 1e-9, 1e-9]))
  batch = {
    "inputs": jnp.zeros((1, 4), jnp.int32),
    "targets": jnp.array([[0, 1, 2, 2]]),
    "mask": jnp.array([[True, True, False, False]]),
  }
  sums = language_loss(model, batch, None)
  np.testing.assert_allclose(sums["loss"], 2 * math.log(2), rtol=1e-5)
  assert sums["weight"] == 2


def test_means_weigh_batches_by_their_size():
  batches = [{"loss": 6.0, "weight": 3.0}, {"loss": 10.0, "weight": 1.0}]
  assert metrics.weighted_means(batches) == {"loss": 4.0, "weight": 4.0}
  assert metrics.weighted_means([]) == {"weight": 0.0}


def test_units():
  found = metrics.language_metrics({"loss": 2 * math.log(2), "weight": 7.0}, bytes_per_token=4.0)
  np.testing.assert_allclose(found["perplexity"], 4.0)
  np.testing.assert_allclose(found["bits_per_byte"], 0.5)
  assert metrics.perplexity(1e6) == math.inf


def test_evaluation_equals_the_mean_over_all_tokens_whatever_the_batches():
  rng = np.random.default_rng(0)
  probabilities = np.array([0.1, 0.2, 0.7])
  targets = rng.integers(0, 3, 22)
  expected = -np.log(probabilities)[targets].mean()
  graphdef, params = nnx.split(Unigram(np.log(probabilities)))
  evaluate = make_evaluate(graphdef, language_loss, make_mesh((1, 1, 1), 1))
  for rows in (1, 2, 3):
    padded = np.zeros(-(-22 // (4 * rows)) * 4 * rows, np.int32)
    padded[:22] = targets
    batches = [
      {
        "inputs": np.zeros((rows, 4), np.int32),
        "targets": chunk.reshape(rows, 4),
        "mask": mask.reshape(rows, 4),
      }
      for chunk, mask in zip(
        padded.reshape(-1, 4 * rows),
        (np.arange(padded.size) < 22).reshape(-1, 4 * rows),
        strict=True,
      )
    ]
    found = evaluate(nnx.to_pure_dict(params), batches)
    np.testing.assert_allclose(found["loss"], expected, rtol=1e-6)


def test_evaluation_stops_when_asked():
  graphdef, params = nnx.split(Unigram(np.zeros(3)))
  evaluate = make_evaluate(graphdef, language_loss, make_mesh((1, 1, 1), 1))
  assert evaluate(jax.tree.map(lambda x: x, nnx.to_pure_dict(params)), [{}], lambda: True) is None
