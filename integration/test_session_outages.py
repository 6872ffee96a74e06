"""Sessions while the broker is down: at each step of a batch, and on the way back."""

from __future__ import annotations

import gc
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from integration.readers import read_with_confluent
from integration.session_kills import Feeder, Watcher, account, make_topics, open_session
from integration.test_session import running
from tests.waiting import wait_until
from txnproducer.session import TransactSession
from txnproducer.testing import EmbeddedKafka

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(240),
    # kafka-python leaves the sockets of refused connections to the garbage collector.
    pytest.mark.filterwarnings("ignore:.*unclosed <socket:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
# The part of the session, and its call before which the broker goes down.
STEPS = {
    "poll": ("_consumer", "poll"),
    "result": ("_producer", "send"),
    "offsets": ("_producer", "send_offsets_to_transaction"),
    "commit": ("_producer", "commit_transaction"),
    "way back": ("_consumer", "rewind"),
}


@pytest.fixture(scope="module")
def own_kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka() as kafka:
        yield kafka
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()  # no test of another file is to see those sockets


class Outage:
    """Stops the broker just before a call of a session, and starts it again.

    Attributes:
        step: of which the next call meets a broker that is down; empty for none.
        is_over: set when the broker runs again.
    """

    def __init__(self, kafka: EmbeddedKafka, session: TransactSession) -> None:
        self._kafka = kafka
        self.step = ""
        self.is_over = threading.Event()
        for step, (part, name) in STEPS.items():
            self._strike_at(step, getattr(session, part), name)

    def _strike_at(self, step: str, part: Any, name: str) -> None:
        usual = getattr(part, name)

        def call(*given: Any, **named: Any) -> Any:
            if self.step == step:
                self.step = ""
                self._kafka.stop_node(0)
                threading.Thread(target=self._start).start()
            return usual(*given, **named)

        setattr(part, name, call)

    def _start(self) -> None:
        self._kafka.start_node(0)
        self.is_over.set()


def _tries() -> Iterator[Any]:
    """Return the consumers and the steps. Each takes a quarter of a minute."""
    for consumer in ("kafka-python", "confluent"):
        for step in STEPS:
            is_short = (consumer, step) in (("kafka-python", "commit"), ("confluent", "result"))
            marks = () if is_short else pytest.mark.long("the broker starts again for each step")
            yield pytest.param(consumer, step, marks=marks, id=f"{consumer}, {step}")


@pytest.mark.parametrize(("consumer", "step"), list(_tries()))
def test_a_session_goes_on_after_the_broker_was_down(own_kafka, transactional_id, consumer, step):
    servers, topics = own_kafka.bootstrap_servers, make_topics(own_kafka, transactional_id)
    feeder = Feeder(servers, topics[0])
    with (
        Watcher(servers, topics[1]) as watcher,
        open_session(consumer, servers, topics, transactional_id) as session,
    ):
        outage = Outage(own_kafka, session)

        def copy(record, transaction):
            transaction.send(topics[1], record.value, record.key)
            if outage.step == "way back":
                session._note_loss()

        with running(session, copy):
            feeder.fill(30)
            assert watcher.reaches(30, 30), "no result before the outage"
            outage.step = step
            if step != "poll":  # which comes by itself
                feeder.fill(30)
            wait_until(outage.is_over.is_set, "no outage", longest_s=60)
            feeder.fill(30)
            assert watcher.reaches(feeder.count, 60), "no result after the outage"
    assert account(feeder.count, read_with_confluent(servers, topics[1])).is_exact
