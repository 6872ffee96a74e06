"""Calls that are made at once: all of them, unless one fails or the user ends the wait."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from txnproducer.spark.driver.parallel_calls import MOST_AT_ONCE, at_once


def test_results_are_in_the_order_of_the_inputs():
    assert at_once(lambda number: number * 2, range(50)) == [2 * number for number in range(50)]


def test_no_call_is_under_way_when_the_error_of_one_is_raised():
    ended = []

    def call(number):
        if number == 0:
            raise ZeroDivisionError
        time.sleep(0.1)
        ended.append(number)

    with pytest.raises(ZeroDivisionError):
        at_once(call, range(1000))
    after = list(ended)
    time.sleep(0.3)
    assert ended == after
    assert len(ended) < 3 * MOST_AT_ONCE


def test_an_interrupt_does_not_wait_for_calls_that_have_begun():
    may_end, begun = threading.Event(), []

    def call(number):
        begun.append(number)
        if number == MOST_AT_ONCE - 1:
            os.kill(os.getpid(), signal.SIGINT)
        may_end.wait(20)

    began_s = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        at_once(call, range(1000))
    assert time.monotonic() - began_s < 10
    may_end.set()
    assert len(begun) == MOST_AT_ONCE, "no other call begins"
