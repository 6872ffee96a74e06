"""The contents of the broker's log, by Kafka's own DumpLogSegments."""

from __future__ import annotations

import re

import pytest

pytestmark = pytest.mark.integration

_FIELD = re.compile(r"(\w+): (\S+)")


def test_the_log_shows_id_epoch_consecutive_sequences_and_the_markers(broker, transactional_id):
    topic = broker.topic()
    with broker.ready(transactional_id, linger_ms=0, batch_size=2_000) as producer:
        for number in range(3):
            producer.begin_transaction()
            for n in range(100):
                producer.send(topic, b"%03d" % n * 10)
            if number == 1:
                producer.flush()
                producer.abort_transaction()
            else:
                producer.commit_transaction()
    batches = _batches(broker.kafka.dump_log(topic))
    data = [batch for batch in batches if batch["isControl"] == "false"]
    markers = [batch for batch in batches if batch["isControl"] == "true"]

    assert {batch["isTransactional"] for batch in batches} == {"true"}
    assert len({batch["producerId"] for batch in batches}) == 1
    assert [marker["endTxnMarker"] for marker in markers] == ["COMMIT", "ABORT", "COMMIT"]
    assert len(data) > 3  # or the sequences below would show nothing

    by_epoch: dict[int, list[dict[str, str]]] = {}
    for batch in data:
        by_epoch.setdefault(int(batch["producerEpoch"]), []).append(batch)
    # Transactions v2: an epoch for each. v1: one epoch for all, sequences run through.
    assert len(by_epoch) == (3 if broker.mode.transaction_version == 2 else 1)
    for epoch_batches in by_epoch.values():
        following = 0
        for batch in epoch_batches:
            assert int(batch["baseSequence"]) == following
            following = int(batch["lastSequence"]) + 1
        assert following == (100 if broker.mode.transaction_version == 2 else 300)


def _batches(dump: str) -> list[dict[str, str]]:
    batches: list[dict[str, str]] = []
    for line in dump.splitlines():
        if line.startswith("baseOffset:"):
            batches.append(dict(_FIELD.findall(line)))
        elif "endTxnMarker:" in line:
            batches[-1]["endTxnMarker"] = dict(_FIELD.findall(line))["endTxnMarker"]
    return batches
