"""Training and evaluation on streams: what is carried, how it is cut, and that it resumes."""

import json

import chex
import jax
import numpy as np
import pytest
from flax import nnx

from train.errors import FlagError
from train.evaluate import make_evaluate
from train.losses import Carried, as_carried
from train.optim import learning_rate_schedule, make_optimizer
from train.sharding import make_mesh, put_local_batch
from train.state import make_setup, make_train_step

STILL = {"dropout": 0.0, "learning_rate": 1e-30}


def stepped(task, count, **changes):
  """(batches, losses, carry, model) of some steps."""
  made, config = task(carry_state=True, **changes)
  mesh = make_mesh((1, 1, 1), config.run.batch_size)
  optimizer = make_optimizer(config.optim)
  loss = as_carried(made.loss_fn)
  setup = make_setup(
    made.build, optimizer, mesh, 0, lambda model: loss.init(model, config.run.batch_size)
  )
  schedule = learning_rate_schedule(config.optim)
  step = make_train_step(
    setup, made.loss_fn, optimizer, schedule, mesh, seed=0, accumulate=config.optim.accumulate
  )
  state, batches, losses = setup.init(), made.train_batches(), []
  model = nnx.merge(setup.graphdef, jax.tree.map(np.array, state.params))
  seen = [next(batches) for _ in range(count)]
  for batch in seen:
    state, metrics = step(state, put_local_batch(batch, mesh))
    losses.append(float(metrics["loss"]))
  return seen, losses, state.carry, model


def nats(logits, targets):
  logits = np.asarray(jax.nn.log_softmax(logits))
  return -np.take_along_axis(logits, targets[..., None], -1)[..., 0]


@pytest.mark.parametrize("method", ["tensor_local", "xl"])
def test_training_goes_on_where_the_last_batch_stopped(task, method):
  seen, losses, carry, model = stepped(task, 3, method=method, **STILL)
  inputs, targets = (np.concatenate([b[n] for b in seen], axis=1) for n in ("inputs", "targets"))
  logits, stream = model.onward(inputs, model.init_stream(len(inputs)))
  expected = nats(logits, targets)
  for index, loss in enumerate(losses):
    np.testing.assert_allclose(loss, expected[:, 8 * index : 8 * index + 8].mean(), rtol=1e-5)
  chex.assert_trees_all_close(carry, stream, atol=1e-5)
  alone = nats(
    model.onward(seen[2]["inputs"], model.init_stream(len(inputs)))[0], seen[2]["targets"]
  )
  assert abs(losses[2] - alone.mean()) > 1e-4  # what was carried matters


def test_micro_batches_carry_their_rows(task):
  whole = stepped(task, 2, **STILL)
  parts = stepped(task, 2, accumulate=2, **STILL)
  np.testing.assert_allclose(parts[1], whole[1], rtol=1e-5)
  chex.assert_trees_all_close(parts[2], whole[2], atol=1e-5)


def test_gradients_flow_through_as_many_segments_as_asked(task):
  made, _ = task(carry_state=True, tbptt=3)
  batch = next(made.train_batches())
  assert batch["inputs"].shape == (4, 24)


def test_documents_that_share_a_stream_do_not_meet(task, tmp_path):
  for number in range(6):
    words = np.random.default_rng(number).choice(list("abcdefg "), size=301)
    (tmp_path / f"{number}.txt").write_text("".join(words))
  for packing in (False, True):
    for carry_state in (False, True):
      made, _ = task(packing=packing, data_path=tmp_path, carry_state=carry_state)
      batches = made.train_batches()
      seen = [next(batches) for _ in range(30)] + list(made.eval_batches("valid", 0))
      assert any(batch["reset"].any() for batch in seen if "reset" in batch) is packing


def test_a_step_that_is_not_finite_begins_the_streams_anew(task):
  """What it carried may be the reason, and its borders must not be lost."""
  made, config = task(carry_state=True, method="tensor_local", **STILL)
  inner = as_carried(made.loss_fn)

  def loss(model, carry, batch, key):
    sums, carry = inner.loss(model, carry, batch, key)
    return {**sums, "loss": sums["loss"] * batch["poison"][0]}, carry

  mesh = make_mesh((1, 1, 1), 4)
  optimizer = make_optimizer(config.optim)
  setup = make_setup(made.build, optimizer, mesh, 0, lambda model: inner.init(model, 4))
  step = make_train_step(
    setup, Carried(loss, inner.init), optimizer, learning_rate_schedule(config.optim), mesh, seed=0
  )
  state, batches, ages = setup.init(), made.train_batches(), []
  for poison in (1.0, np.nan, 1.0):
    batch = {**next(batches), "poison": np.full(4, poison, np.float32)}
    state, _ = step(state, put_local_batch(batch, mesh))
    ages.append(np.asarray(state.carry.age).tolist())
  assert ages == [[8] * 4, [0] * 4, [8] * 4]


def test_evaluation_as_a_stream_is_one_pass_in_which_every_token_counts(task):
  made, _ = task(protocol="stream", method="tensor_local")
  model = made.build(nnx.Rngs(0))
  graphdef, params = nnx.split(model)
  evaluate = make_evaluate(graphdef, made.eval_loss_fn, make_mesh((1, 1, 1), 4))
  means = evaluate(params, made.eval_batches("valid", 60))
  metrics = made.metrics(means, "valid")
  batches = list(made.eval_batches("valid", 60))
  inputs, targets, mask, repeat = (
    np.concatenate([b[name] for b in batches], axis=1)
    for name in ("inputs", "targets", "mask", "repeat")
  )
  found = nats(model.onward(inputs, model.init_stream(4))[0], targets)
  assert metrics["tokens"] == mask.sum() == 60
  np.testing.assert_allclose(metrics["loss"], found[mask].mean(), rtol=1e-5)
  for index, kind in enumerate(("first", "near", "far")):
    own = mask & (repeat == index)
    np.testing.assert_allclose(metrics[f"loss_{kind}"], found[own].mean(), rtol=1e-5)
    np.testing.assert_allclose(metrics[f"share_{kind}"], own.sum() / 60, rtol=1e-5)


def test_a_uniform_model_scores_the_size_of_the_vocabulary(task):
  for protocol in ("windows", "stream"):
    made, _ = task(protocol=protocol)
    model = made.build(nnx.Rngs(0))
    model.embedding.embedding[...] *= 0
    graphdef, params = nnx.split(model)
    evaluate = make_evaluate(graphdef, made.eval_loss_fn, make_mesh((1, 1, 1), 4))
    metrics = made.metrics(evaluate(params, made.eval_batches("valid", 0)), "valid")
    np.testing.assert_allclose(metrics["perplexity"], 256, rtol=1e-5)


@pytest.mark.parametrize("chunk_size", [1, 3])
def test_a_run_on_streams_resumes_exactly_and_can_be_measured_both_ways(
  run, bare, records, saved, tmp_path, chunk_size
):
  """Of chunks of one token none ever waits: the state has arrays without elements."""
  changes = {"carry_state": True, "chunk_size": chunk_size}
  whole = run(tmp_path / "whole", **changes)
  halves = run(tmp_path / "halves", stop_at=3, **changes)
  run(halves, **changes)
  assert records(whole) == records(halves)
  one, two = (saved(workdir, 8)["arrays"] for workdir in (whole, halves))
  assert any(name.startswith("carry/") for name in one)
  assert one.keys() == two.keys()
  for name, value in one.items():
    np.testing.assert_array_equal(value, two[name], err_msg=name)
  result = json.loads((whole / "result.json").read_text())
  assert (result["protocol"], result["carry_state"]) == ("stream", True)
  losses = {}
  for protocol in ("windows", "stream"):
    bare(workdir=whole, mode="eval", protocol=protocol)
    measured = json.loads((whole / f"eval_{protocol}.json").read_text())
    assert measured["protocol"] == protocol
    losses[protocol] = measured["valid_loss"]
  np.testing.assert_allclose(losses["stream"], result["valid_loss"], rtol=1e-6)
  assert losses["windows"] != losses["stream"]


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"carry_state": True, "order": "shuffled"}, "^--carry_state: segments in --order=shuffled do"),
    ({"method": "xl"}, "^--method=xl: sees in front of its segment what is carried"),
    ({"order": "contiguous"}, "^--order=contiguous: only for --carry_state"),
    ({"tbptt": 2}, "^--tbptt=2: without --carry_state"),
    (
      {"protocol": "stream", "state_scope": "depth", "allow_future_leak": True},
      "^--state_scope=depth: reads what later",
    ),
  ],
)
def test_flags_that_do_not_fit_together_are_named(config, changes, message):
  with pytest.raises(FlagError, match=message):
    config(**changes)


def test_a_text_too_short_for_its_streams_is_named(task, tmp_path):
  path = tmp_path / "short.txt"
  path.write_text("some words, and a few more of them\n" * 3)
  with pytest.raises(
    FlagError, match=r"^--max_length=8: the train split has .* fewer than 4 streams"
  ):
    task(carry_state=True, tbptt=5, data_path=path)[0].train_batches()
