"""A stream, however it is fed, against one pass over all of it."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tmem import MemoryConfig, streaming
from tmem.decoder import MANY
from tmem.decoder_config import METHODS
from tmem.models import LanguageConfig, LanguageModel
from tmem.places import recorded

K, WINDOW, VOCABULARY, LENGTH = 3, 4, 11, 24
SMALL = LanguageConfig(
  vocab_size=VOCABULARY,
  features=8,
  num_heads=2,
  num_layers=3,
  max_length=LENGTH,
  window=WINDOW,
  memory=MemoryConfig(channels=2, grid=(2, 3), chunk_size=K),
)


@pytest.fixture(scope="module")
def models(randomised):
  known = {}

  def get(**changes):
    key = repr(sorted(changes.items()))
    if key not in known:
      config = dataclasses.replace(SMALL, **changes)
      model = randomised(lambda: LanguageModel(config, rngs=nnx.Rngs(0)))
      graphdef, params = nnx.split(model)
      known[key] = model, jax.jit(lambda t: nnx.merge(graphdef, params)(t))
    return known[key]

  return get


@pytest.fixture(scope="module")
def tokens():
  return np.random.default_rng(0).integers(0, VOCABULARY, size=(2, LENGTH)).astype(np.int32)


@pytest.mark.parametrize("prompt", [1, K - 1, K, K + 1, 3 * K + 2])
@pytest.mark.parametrize("method", METHODS)
def test_prefill_and_steps_equal_one_pass(method, prompt, models, tokens):
  model, call = models(method=method)
  whole = np.asarray(call(tokens))
  stream = streaming.init(model, 2)
  logits, stream = streaming.prefill(model, tokens[:, :prompt], stream)
  np.testing.assert_allclose(logits, whole[:, prompt - 1], atol=1e-5)
  for start, stop in ((prompt, prompt + 1), (prompt + 1, prompt + 6), (prompt + 6, prompt + 7)):
    logits, stream = streaming.step(model, tokens[:, start:stop], stream)
    np.testing.assert_allclose(logits, whole[:, start:stop], atol=1e-5)
  assert np.asarray(stream.seen).tolist() == [prompt + 7] * 2


@pytest.mark.parametrize("every", [2, 3])
def test_blocks_without_memory_stream_too(every, models, tokens):
  model, call = models(memory_every_n_layers=every)
  stream = streaming.init(model, 2)
  _, stream = streaming.prefill(model, tokens[:, :5], stream)
  logits, _ = streaming.step(model, tokens[:, 5:], stream)
  np.testing.assert_allclose(logits, call(tokens)[:, 5:], atol=1e-5)


@pytest.mark.parametrize("method", ["tensor_local", "linear", "gated_delta", "slots"])
def test_prompts_of_different_lengths_do_not_meet(method, models, tokens, monkeypatch):
  """In blocks of 4: rows that end in different blocks, whatever stands behind them."""
  monkeypatch.setattr(streaming, "BLOCK", 4)
  model, call = models(method=method)
  whole = np.asarray(call(tokens))
  lengths = np.array([3, 14])
  for behind in (0, VOCABULARY - 1):
    padded = np.where(np.arange(14) < lengths[:, None], tokens[:, :14], behind)
    logits, stream = streaming.prefill(model, padded, streaming.init(model, 2), lengths)
    np.testing.assert_allclose(logits, whole[[0, 1], lengths - 1], atol=1e-5)
    following = np.stack([tokens[0, 3:10], tokens[1, 14:21]])
    logits, _ = streaming.step(model, following, stream)
    np.testing.assert_allclose(logits[0], whole[0, 3:10], atol=1e-5)
    np.testing.assert_allclose(logits[1], whole[1, 14:21], atol=1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_a_stream_keeps_its_structure_and_its_rows_can_be_gathered(method, models, tokens):
  model, _ = models(method=method)
  start = streaming.init(model, 2)
  _, prompted = streaming.prefill(model, tokens[:, :5], start)
  _, stepped = streaming.step(model, tokens[:, 5:6], prompted)
  kinds = [jax.tree.map(lambda a: (a.shape, a.dtype), s) for s in (start, prompted, stepped)]
  assert kinds[0] == kinds[1] == kinds[2]
  swapped = jax.tree.map(lambda a: a[jnp.array([1, 0, 1])], prompted)
  logits, _ = streaming.step(model, tokens[[1, 0, 1], 5:6], swapped)
  expected, _ = streaming.step(model, tokens[:, 5:6], prompted)
  np.testing.assert_allclose(logits, expected[jnp.array([1, 0, 1])], atol=1e-6)


def test_prompts_of_any_length_compile_once(models, tokens):
  model, _ = models(method="tensor_local")
  streaming.prefill(model, tokens[:, :3], streaming.init(model, 2))
  before = streaming._block_onward._cache_size()
  for length in (1, 2, 7, 20):
    streaming.prefill(model, tokens[:, :length], streaming.init(model, 2))
  assert streaming._block_onward._cache_size() == before


def test_a_frozen_model_is_the_model_as_it_was(models, tokens):
  model, _ = models(method="tensor_local")
  logits, stream = streaming.prefill(model, tokens[:, :4], streaming.init(model, 2))
  frozen = streaming.frozen(model)
  assert streaming.frozen(frozen) is frozen
  again, other = streaming.prefill(frozen, tokens[:, :4], streaming.init(frozen, 2))
  np.testing.assert_array_equal(logits, again)
  expected, _ = streaming.step(model, tokens[:, 4:5], stream)
  compiled = streaming._onward._cache_size()
  changed = nnx.merge(*nnx.split(model))
  later = streaming.frozen(changed)
  changed.embedding.embedding[...] *= 2
  for one in (frozen, later):
    np.testing.assert_array_equal(streaming.step(one, tokens[:, 4:5], other)[0], expected)
  assert streaming._onward._cache_size() == compiled
  assert not np.array_equal(streaming.step(changed, tokens[:, 4:5], other)[0], expected)


@pytest.mark.parametrize("method", ["local_rope", "tensor_local", "gated_delta"])
def test_streams_go_on_beyond_the_positions(method, models):
  """State and results stay finite, and rotary attention depends on its window alone."""
  model, _ = models(method=method)
  again = np.tile(np.arange(6, dtype=np.int32), (1, 40))
  _, stream = streaming.prefill(model, again, streaming.init(model, 1))
  logits, stream = streaming.step(model, again[:, :6], stream)
  assert np.isfinite(logits).all()
  if method == "local_rope":
    repeated, _ = streaming.step(model, again[:, :6], stream)
    np.testing.assert_allclose(repeated, logits, atol=1e-5)


@pytest.mark.parametrize("method", ["local", "tensor_local", "base"])
def test_a_stream_of_billions_of_tokens_does_not_overflow(method, models, tokens):
  model, _ = models(method=method)
  _, stream = streaming.prefill(model, tokens, streaming.init(model, 2))
  expected, _ = streaming.step(model, tokens, stream)
  cycles = (MANY - 1) // LENGTH
  late = stream._replace(seen=stream.seen + (cycles - 1) * LENGTH)
  for _ in range(2):  # across the count and behind it
    logits, after = streaming.step(model, tokens, late)
    np.testing.assert_allclose(logits, expected, atol=1e-6)
    assert (np.asarray(after.seen) > MANY // 2 - LENGTH).all()
    late = late._replace(seen=after.seen)
  assert (np.asarray(after.seen) < MANY).all()


def test_places_of_a_stream_are_those_of_one_pass(models, tokens):
  model, _ = models(method="tensor_local")
  with recorded(model) as whole:
    model(tokens[:, : 2 * K])
  with recorded(model) as pieces:
    _, stream = model.onward(tokens[:, :K], model.init_stream(2))
    model.onward(tokens[:, K : 2 * K], stream)
  later = pieces[len(pieces) // 2].write_at[:, :1]  # of the first block, in the second call
  np.testing.assert_allclose(later, whole[0].write_at[:, 1:2], atol=1e-5)


def test_what_cannot_stream_is_named(models, tokens):
  model, _ = models(method="tensor", state_scope="depth", allow_future_leak=True)
  with pytest.raises(ValueError, match="state_scope: 'depth'"):
    streaming.init(model, 1)
  model, _ = models(method="local")
  stream = streaming.init(model, 2)
  for wrong in (tokens[:, :0], tokens[:1], tokens[0]):
    for call in (streaming.step, streaming.prefill):
      with pytest.raises(ValueError, match=r"tokens: got shape .* expected \[2, tokens\]"):
        call(model, wrong, stream)
  with pytest.raises(ValueError, match="batch_size"):
    streaming.init(model, 0)


@pytest.mark.parametrize(
  "lengths", [[9, 3], [0, 3], [-2, 3], [2.0, 3.0], [True, True], [3], [[3], [3]], 3]
)
def test_lengths_that_cannot_be_are_named(lengths, models, tokens):
  model, _ = models(method="local")
  with pytest.raises(ValueError, match=r"^lengths: got "):
    streaming.prefill(model, tokens[:, :5], streaming.init(model, 2), np.array(lengths))


@pytest.mark.parametrize(
  "other",
  [{"window": 3}, {"method": "tensor_local"}, {"method": "base"}, {"method": "linear"},
   {"num_layers": 2}, {"method": "gated_delta"}],
)  # fmt: skip
def test_the_stream_of_another_model_is_refused(other, models, tokens):
  model, _ = models(method="local")
  stream = streaming.init(models(**{"method": "local"} | other)[0], 2)
  for call in (streaming.step, streaming.prefill):
    with pytest.raises(ValueError, match=r"^stream.*of another model"):
      call(model, tokens, stream)
  for wrong in (None, tuple(stream)):
    with pytest.raises(ValueError, match=r"^stream: got "):
      streaming.step(model, tokens, wrong)


@pytest.mark.parametrize(
  "method", ["base", "local", "linear", "gated_delta", "tensor_local", "slots"]
)
def test_unknown_ids_have_no_logits_and_poison_nothing(method, models, tokens):
  """Neither earlier tokens, nor later ones, nor, behind the end of a prompt, anything."""
  model, call = models(method=method)
  for unknown in (-1, VOCABULARY, 2**31 - 1):
    wrong = tokens.copy()
    wrong[0, 6] = unknown
    logits = np.asarray(call(wrong))
    np.testing.assert_allclose(logits[0, :6], call(tokens)[0, :6], atol=1e-6)
    np.testing.assert_allclose(logits[1], call(tokens)[1], atol=1e-6)
    assert np.isnan(logits).all(-1).nonzero()[1].tolist() == [6]
    assert np.isnan(logits).any(-1).sum() == 1
    start = streaming.init(model, 2)
    last, stream = streaming.prefill(model, wrong[:, :9], start, np.array([6, 6]))
    expected, clean = streaming.prefill(model, tokens[:, :6], start)
    np.testing.assert_allclose(last, expected, atol=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), stream, clean)


@pytest.mark.parametrize("method", METHODS)
def test_no_tokens_have_no_logits(method, models, tokens):
  model, _ = models(method=method)
  assert model(tokens[:, :0]).shape == (2, 0, VOCABULARY)
