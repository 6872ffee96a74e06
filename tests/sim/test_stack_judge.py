"""The judge of the whole stack finds planted mistakes of a producer."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from txnproducer._record.implementation import IMPL
from txnproducer._shell.record_writer import RecordWriter
from txnproducer.sim.stack.options import StackOptions
from txnproducer.sim.stack.run import StackRun

pytestmark = pytest.mark.skipif(
    IMPL != "python", reason="virtual time runs the parts in Python (TXNPRODUCER_IMPL=python)"
)
SEND = RecordWriter._send_any


def calm(**changes: Any) -> StackOptions:
    """Return the options of a seed without a fault, with some changes."""
    options = next(each for each in map(StackOptions.draw, range(100)) if each.is_calm)
    return replace(options, **changes)


def checks(options: StackOptions) -> set[str]:
    """Run the options. Return the checks that found something."""
    return {check for check, _ in StackRun(options).run().violations}


@pytest.mark.parametrize("kind", [TypeError, ValueError, AssertionError])
@pytest.mark.parametrize("rates", [{}, {"interrupt at a call": 0.1}])
def test_a_call_that_raises_no_kafka_error_is_found(monkeypatch, kind, rates):
    rng = random.Random(1)

    def send(*arguments: Any) -> Any:
        if rng.random() < 0.05:
            raise kind("planted")
        return SEND(*arguments)

    monkeypatch.setattr(RecordWriter, "_send_any", send)
    assert "crash" in checks(calm(call_rates=rates))
