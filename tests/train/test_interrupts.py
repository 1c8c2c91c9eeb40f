"""Signals are asked for between steps, and none is lost."""

import os
import signal

import pytest

from train.errors import Interrupted
from train.interrupts import Interrupts


def test_a_signal_waits_to_be_asked_for():
  with pytest.raises(Interrupted), Interrupts() as interrupts:
    assert not interrupts.pending()
    os.kill(os.getpid(), signal.SIGTERM)
    assert interrupts.pending()
    raise Interrupted("saved", interrupts.signum)
  assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_one_that_led_to_nothing_takes_its_effect_at_the_end():
  reached = False
  with pytest.raises(KeyboardInterrupt), Interrupts():
    signal.raise_signal(signal.SIGINT)
    reached = True
  assert reached


def test_a_second_ctrl_c_ends_at_once():
  with pytest.raises(KeyboardInterrupt), Interrupts():
    signal.raise_signal(signal.SIGINT)
    signal.raise_signal(signal.SIGINT)
    pytest.fail("went on")
