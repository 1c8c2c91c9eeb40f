"""What processes tell each other, through a store that lives in this process."""

import sys
import threading
from types import SimpleNamespace

import jax
import pytest

from train import endings, peers, same_data
from train.endings import Endings
from train.errors import FlagError, RunError
from train.peers import Peers
from train.store import Store


class EndedError(Exception):
  """Another process ends this one."""


class Client:
  """Stands in for jax's client of the coordination service."""

  def __init__(self):
    self._values, self._changed = {}, threading.Condition()
    self._has_ended = False

  def end(self):
    with self._changed:
      self._has_ended = True
      self._changed.notify_all()

  def key_value_set(self, key, value):
    with self._changed:
      if key in self._values:
        raise jax.errors.JaxRuntimeError("ALREADY_EXISTS: there")
      self._values[key] = value
      self._changed.notify_all()

  def blocking_key_value_get(self, key, milliseconds):
    with self._changed:

      def is_over():
        return key in self._values or self._has_ended

      if not self._changed.wait_for(is_over, milliseconds / 1000):
        raise jax.errors.JaxRuntimeError("DEADLINE_EXCEEDED: late")
      if key not in self._values:
        raise EndedError
      return self._values[key]

  def get_live_nodes(self, indices):
    return dict.fromkeys(indices, 1)


def in_all(count, call):
  """Calls `call(store)` for each process in a thread; what each returns or raises."""
  client, found = Client(), [None] * count

  def one(index):
    try:
      found[index] = call(Store(client, index, count))
    except RunError as error:
      found[index] = error
      client.end()
    except EndedError as error:
      found[index] = error

  threads = [threading.Thread(target=one, args=(index,)) for index in range(count)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join(60)
  return found


def test_all_take_what_the_first_says():
  assert in_all(3, lambda store: Peers(store).first_says([store.index, None])) == [[0, None]] * 3


def test_a_problem_of_one_is_a_problem_of_all():
  def call(store):
    mine = Peers(store)
    return [
      mine.first_problem(f"of {store.index}" if store.index else None),
      mine.first_problem(None),
    ]

  assert in_all(3, call) == [["of 1", None]] * 3


def test_unequal_data_are_named_once(monkeypatch):
  def call(store):
    own.peers = Peers(store)
    same_data.check_alike("text", {"train": {"tokens": 1000 - 100 * store.index, "crc32": 5}})

  own = threading.local()
  monkeypatch.setattr(same_data.processes, "peers", lambda: own.peers)
  first, *others = in_all(3, call)
  assert str(first) == (
    "--dataset=text: train.tokens: process 0 has 1000, process 1 has 900; give all processes the"
    " same data"
  )
  assert [type(other) for other in others] == [EndedError] * 2


def test_what_one_lacks_is_nothing():
  def call(store):
    Peers(store).check_same({"--a": 1} if store.index else {}, "do", FlagError)

  first, _ = in_all(2, call)
  assert isinstance(first, FlagError)
  assert str(first) == "--a: process 0 has nothing, process 1 has 1; do"


def test_other_code_and_other_packages_are_named(monkeypatch):
  def other(store):
    Peers(store).check_same_code({"jax": f"1.{store.index}", "numpy": "2"})

  first, _ = in_all(2, other)
  assert str(first).startswith("version of jax: process 0 has 1.0, process 1 has 1.1; install")

  digests = iter(("abc", "abd"))
  monkeypatch.setattr(peers, "_sources", lambda: {"train/loop.py": next(digests)})
  first, _ = in_all(2, lambda store: Peers(store).check_same_code({}))
  assert str(first).startswith("train/loop.py: process 0 has ab")


def test_the_code_of_all_packages_is_compared():
  found = peers._sources()
  assert {"train/loop.py", "tmem/memory.py", "data/loader.py"} <= found.keys()


def test_a_folder_that_is_not_shared_is_named(tmp_path):
  def call(store):
    Peers(store).check_shared(tmp_path if store.index < 2 else tmp_path / "elsewhere")

  first, *_ = in_all(3, call)
  assert str(first).startswith(
    f"--workdir={tmp_path}: process 2 does not see what process 0 writes"
  )
  assert in_all(2, call) == [None, None]
  assert list(tmp_path.iterdir()) == []


def test_all_stop_at_one_check_that_none_has_passed(monkeypatch):
  """Every process asks at its own pace; one of them wants to stop."""
  monkeypatch.setattr(endings, "NativeErrors", lambda *_: SimpleNamespace(close=lambda: None))
  rhythm = threading.Barrier(3)

  def call(store):
    mine = Endings(store, "HERE", 5.0)
    asked = 0
    for _ in range(20 * (store.index + 1)):
      asked += 1
      assert mine.stopping() is None
    rhythm.wait(60)
    if store.index == 1:
      mine.ask_to_stop(15)
    while True:
      asked += 1
      signum = mine.stopping()
      if signum is not None:
        return asked, signum, mine.is_stopping

  found = in_all(3, call)
  assert len(set(found)) == 1
  asked, signum, is_stopping = found[0]
  assert asked > 60
  assert (signum, is_stopping) == (15, True)


def test_an_end_does_not_wait_for_a_reader(monkeypatch):
  """The terminal of a process may have gone with the one that started it."""

  class Gone:
    def write(self, *text):
      raise BrokenPipeError(32, "Broken pipe")

    flush = write

  def leave(status):
    raise SystemExit(status)

  monkeypatch.setattr(endings, "NativeErrors", lambda *_: SimpleNamespace(close=lambda: None))
  monkeypatch.setattr(endings.os, "_exit", leave)
  mine = Endings(Store(Client(), 0, 1), "HERE", 5.0)
  with monkeypatch.context() as patch, pytest.raises(SystemExit, match="7"):
    patch.setattr(sys, "stderr", Gone())
    mine.fail(7, "error: what is wrong", True)
