"""The reader of a ledger's topic on real brokers: a topic that is deleted and created again."""

from __future__ import annotations

import time

import pytest

from txnproducer.admin import TopicReplacedError, ask, delete_topic, read_log
from txnproducer.ledger.compacted_topic import SETTINGS
from txnproducer.ledger.topic_log import TopicLog

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("length", [1, 2, 5])
def test_a_topic_that_was_made_again_is_not_taken_for_the_old_one_however_long_it_is(
    broker, transactional_id, length, caplog
):
    topic = broker.topic(config=SETTINGS)
    reader = TopicLog(broker.servers, topic)

    def written(values):
        with broker.ready(transactional_id) as producer:
            for value in values:
                with producer.transaction():
                    producer.send(topic, value, b"p0", partition=0)
        return found()

    def found():
        # Not by the clients that a process keeps: these brokers end before it does.
        state = reader.read(["p0"], ask, {}, 20.0, waits_for_undecided=True)
        return {key: one.value for key, one in state.found.items()}

    assert written([b"old 1", b"old 2"]) == {"p0": b"old 2"}
    old = reader.snapshot()
    assert (old.offset, found()) == (4, {"p0": b"old 2"})  # with a marker after each record
    assert abs(old.found["p0"].at_ms / 1000 - time.time()) < 60, "a marker has the broker's time"

    delete_topic(broker.servers, topic)
    broker.kafka.create_topic(topic, config=SETTINGS)
    assert found() == {}, "its end is below the old one's"
    reader.go_on_from(old)
    assert written([b"new %d" % n for n in range(length)]) == {"p0": b"new %d" % (length - 1)}
    assert "was deleted and created again" in caplog.text
    assert reader.snapshot().topic_id not in (None, old.topic_id)
    with pytest.raises(TopicReplacedError):
        read_log(broker.servers, topic, old.offset, lambda _: None, topic_id=old.topic_id)
