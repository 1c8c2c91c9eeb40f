"""Documents one behind the other in a row: nothing crosses a border, and nobody sees it coming."""

import dataclasses
import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tmem import MemoryConfig, TensorMemory, blocks, memory_scan, streaming
from tmem.config import DYNAMICS
from tmem.decoder_config import METHODS
from tmem.models import LanguageConfig, LanguageModel
from tmem.slots import SlotConfig

VOCABULARY, LENGTH = 11, 20
BORDERS = (7, 12, 13)  # one inside a chunk of 3 in front of, one at, and one behind its border
SMALL = LanguageConfig(
  vocab_size=VOCABULARY,
  features=8,
  num_heads=2,
  num_layers=2,
  max_length=LENGTH,
  window=4,
  memory=MemoryConfig(channels=2, grid=(2, 3), chunk_size=3),
  slots=SlotConfig(count=3, chunk_size=3),
)
VARIANTS = {
  **{method: {"method": method} for method in METHODS},
  **{dynamics: {"memory": {"dynamics": dynamics}} for dynamics in DYNAMICS},
  "tokens": {"memory": {"read_query": "token"}},
  "heads": {"memory": {"read_heads": 2, "write_heads": 2}},
  "window": {"memory": {"update": "window", "window": (2, 2)}},
  "plain": {"memory": {"implementation": "plain"}},
}


@pytest.fixture(scope="module")
def models(randomised):
  known = {}

  def get(name, chunk_size=3):
    if (name, chunk_size) not in known:
      changes = dict(VARIANTS[name])
      memory = changes.pop("memory", {})
      config = dataclasses.replace(
        SMALL,
        memory=dataclasses.replace(SMALL.memory, chunk_size=chunk_size, **memory),
        slots=dataclasses.replace(SMALL.slots, chunk_size=chunk_size),
        **changes,
      )
      model = randomised(lambda: LanguageModel(config, rngs=nnx.Rngs(0)))
      graphdef, params = nnx.split(model)
      call = jax.jit(lambda tokens, reset: nnx.merge(graphdef, params)(tokens, reset=reset))
      onward = jax.jit(
        lambda tokens, stream, count, reset: nnx.merge(graphdef, params).onward(
          tokens, stream, count, reset
        )
      )
      known[name, chunk_size] = model, call, onward
    return known[name, chunk_size]

  return get


@pytest.fixture(scope="module")
def tokens():
  return np.random.default_rng(0).integers(0, VOCABULARY, size=(2, LENGTH)).astype(np.int32)


def resets(*borders, rows=2):
  reset = np.zeros((rows, LENGTH), bool)
  reset[0, list(borders)] = True  # the other row is one document
  return reset


@pytest.mark.parametrize("name", VARIANTS)
def test_what_one_document_holds_leaves_the_others_as_they_are(name, models, tokens):
  """Bit for bit; and the last one's border changes nothing in front of it."""
  _, call, _ = models(name)
  before = np.asarray(call(tokens, resets(*BORDERS)))
  edges = (0, *BORDERS, LENGTH)
  for start, stop in itertools.pairwise(edges):
    other = tokens.copy()
    other[0, start:stop] = (other[0, start:stop] + 1) % VOCABULARY
    changed = np.any(np.asarray(call(other, resets(*BORDERS))) != before, axis=-1)
    assert changed[0, start:stop].any()
    changed[0, start:stop] = False
    assert not changed.any()
  unaware = np.asarray(call(tokens, resets(*BORDERS[:-1])))
  np.testing.assert_array_equal(unaware[0, : BORDERS[-1]], before[0, : BORDERS[-1]])
  assert (unaware[0, BORDERS[-1] :] != before[0, BORDERS[-1] :]).any()
  np.testing.assert_array_equal(call(tokens, resets())[1], before[1])


@pytest.mark.parametrize("name", VARIANTS)
def test_a_document_in_a_row_is_what_it_is_alone(name, models, tokens):
  """With chunks of one token, for then chunks begin where documents do."""
  _, call, _ = models(name, 1)
  packed = call(tokens, resets(*BORDERS))
  edges = (0, *BORDERS, LENGTH)
  for start, stop in itertools.pairwise(edges):
    alone = np.zeros_like(tokens)
    alone[0, : stop - start] = tokens[0, start:stop]
    expected = call(alone, resets())[0, : stop - start]
    np.testing.assert_allclose(packed[0, start:stop], expected, atol=1e-5)


@pytest.mark.parametrize("pieces", [(1, 6, 5, 1, 7), (8, 12)])
@pytest.mark.parametrize("name", VARIANTS)
def test_a_stream_of_documents_equals_one_pass(name, pieces, models, tokens):
  model, call, onward = models(name)
  reset, stream, found = resets(*BORDERS), streaming.init(model, 2), []
  for start, size in zip(np.cumsum((0, *pieces[:-1])), pieces, strict=True):
    # In front of nothing: what stands behind the end of a piece does not count.
    part = np.full((2, 13), -1, np.int32), np.ones((2, 13), bool)
    for padded, whole in zip(part, (tokens, reset), strict=True):
      padded[:, :size] = whole[:, start : start + size]
    logits, stream = onward(part[0], stream, np.full(2, size), part[1])
    found.append(logits[:, :size])
  np.testing.assert_allclose(np.concatenate(found, axis=1), call(tokens, reset), atol=1e-5)
  assert np.asarray(stream.seen).tolist() == [LENGTH, LENGTH]
  assert np.asarray(stream.age).tolist() == [LENGTH - BORDERS[-1], LENGTH]


DIAGONAL = ("parallel", "selective")
SCANS = [
  *((name, "sequential", None) for name in DYNAMICS),
  *((name, "associative", None) for name in DIAGONAL),
  *((name, "sequential", (2, 2)) for name in ("convlstm", *DIAGONAL)),
]


@pytest.mark.parametrize(("name", "mode", "window"), SCANS)
def test_fast_scans_empty_the_state_as_the_plain_one(
  name, mode, window, monkeypatch, random_case, results
):
  """Values and every gradient, for states that are not empty at first."""
  for part in ("forward", "backward"):
    monkeypatch.setattr(blocks, f"block_{part}", getattr(blocks, f"{mode}_{part}"))
  with jax.enable_x64(True):
    for masked in (False, True):
      case = random_case(name, (3, 2), 17, masked, cleared=True)
      plain, fast = (
        results(case, implementation=i, window=window, remat=r)
        for i, r in (("plain", 0), ("fast", 5))
      )
      chex.assert_trees_all_close(fast, plain, rtol=1e-10, atol=1e-10)


def test_emptied_rows_are_those_of_a_new_state(random_case):
  params, state, inputs = random_case("convlstm", (3, 2), 4, dtype=np.float32)
  clear = np.zeros((4, 2), bool)
  clear[2, 0] = True
  after, _ = jax.jit(memory_scan)(params, state, inputs._replace(clear=clear))
  empty = jax.tree.map(jnp.zeros_like, state)
  late = jax.tree.map(lambda a: a[2:], inputs)
  expected, _ = jax.jit(memory_scan)(params, empty, late)
  kept, _ = jax.jit(memory_scan)(params, state, inputs)
  for field in ("hidden", "cell"):
    np.testing.assert_allclose(getattr(after, field)[0], getattr(expected, field)[0], atol=1e-6)
    np.testing.assert_array_equal(getattr(after, field)[1], getattr(kept, field)[1])


def test_a_chunk_writes_its_newest_document_alone(randomised):
  config = MemoryConfig(channels=2, grid=(2, 3), chunk_size=4)
  memory = randomised(lambda: TensorMemory(config, 5, rngs=nnx.Rngs(0)))
  x = np.random.default_rng(0).normal(size=(1, 8, 5)).astype(np.float32)
  reset = np.zeros((1, 8), bool)
  reset[0, [1, 2]] = True
  y, state = memory(x, memory.init_state(1), reset=reset)
  only = x.copy()
  only[0, :2] = np.nan
  expected_y, expected = memory(only, memory.init_state(1), np.arange(8)[None] >= 2)
  chex.assert_trees_all_close(state, expected, atol=1e-6)
  np.testing.assert_allclose(y[0, 4:], expected_y[0, 4:], atol=1e-6)
  np.testing.assert_allclose(y[0, 2:4], np.tile(memory.output.bias[...], (2, 1)), atol=1e-6)


@pytest.mark.parametrize(
  "wrong", [np.zeros((2, 19), bool), np.zeros((2, LENGTH)), np.zeros(2, bool)]
)
def test_wrong_resets_are_named(wrong, models, tokens):
  model, *_ = models("local")
  with pytest.raises(ValueError, match=r"^reset: got .*, expected bool\[2, 20\]"):
    model(tokens, reset=wrong)
  with pytest.raises(ValueError, match=r"^reset: got .*, expected bool\[2, 20\]"):
    model.onward(tokens, streaming.init(model, 2), reset=wrong)
