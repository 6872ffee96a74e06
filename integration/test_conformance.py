"""Every case in bytes on a real broker and on the model: the transcripts are equal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from integration.brokers import Mode
from integration.conformance.bytes import ByteTarget
from integration.conformance.case import Case, play
from integration.conformance.cases import CASES
from integration.conformance.live import LiveTarget
from integration.conftest import Broker

pytestmark = pytest.mark.integration

# A transaction may time out earlier in the case than it should where the machine stands still for
# a second; not three times in a row.
ATTEMPTS = {"time_outs": 3}
_LAST_EPOCHS = pytest.mark.long("asks for 32,767 epochs; one such case is always run")
_ONE_OF_THEM = "after_the_last_epoch_a_bump_gets_a_new_producer_id"


@pytest.fixture(scope="module")
def live(broker: Broker) -> Iterator[LiveTarget]:
    with LiveTarget(broker.kafka, broker.mode.transaction_version) as target:
        yield target


@pytest.fixture(scope="module")
def live_pair(broker: Broker) -> Iterator[LiveTarget]:
    mode = broker.mode
    with mode.start(nodes=2) as kafka:
        with LiveTarget(kafka, mode.transaction_version) as target:
            yield target


@pytest.fixture(scope="module")
def live_guarded(broker: Broker) -> Iterator[LiveTarget]:
    mode = broker.mode
    with mode.start(has_authorizer=True) as kafka:
        with LiveTarget(kafka, mode.transaction_version) as target:
            yield target


def cases_on(nodes: int, *, has_authorizer: bool = False) -> list[Any]:
    return [
        pytest.param(name, marks=_LAST_EPOCHS if is_long(name) else ())
        for name, case in CASES.items()
        if case.cluster == (nodes, has_authorizer)
    ]


def is_long(name: str) -> bool:
    return CASES[name].group == "last_epochs" and name != _ONE_OF_THEM


@pytest.mark.parametrize("name", cases_on(1))
def test_the_model_answers_as_a_real_broker_does(
    broker: Broker, live: LiveTarget, name: str
) -> None:
    compare(CASES[name], broker.mode, live)


@pytest.mark.parametrize("name", cases_on(2))
def test_the_model_answers_as_two_real_brokers_do(
    broker: Broker, live_pair: LiveTarget, name: str
) -> None:
    compare(CASES[name], broker.mode, live_pair)


@pytest.mark.parametrize("name", cases_on(1, has_authorizer=True))
def test_the_model_answers_as_a_real_broker_with_an_authorizer_does(
    broker: Broker, live_guarded: LiveTarget, name: str
) -> None:
    compare(CASES[name], broker.mode, live_guarded)


def compare(case: Case, mode: Mode, live: LiveTarget) -> None:
    if not case.is_for(mode.transaction_version):
        pytest.skip(f"needs a broker with transactions v{case.only}, which has a run of its own")
    model = ByteTarget(mode.version, mode.transaction_version, case.nodes)
    told = play(case, model)
    truth = play(case, live)
    for attempt in range(1, ATTEMPTS.get(case.group, 1)):
        if truth == told:
            break
        truth = play(case, live, attempt)
    assert told == truth
