"""A ledger's questions, answered from the model broker, which has no admin API."""

from __future__ import annotations

import pytest

from txnproducer.ledger.places import InOffsets, InTopic
from txnproducer.ledger.state import LedgerState
from txnproducer.records import TopicPartition
from txnproducer.testing import InMemoryKafka


def read_from(cluster: InMemoryKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have ledgers read from a cluster that has their topics."""

    def in_topic(self: InTopic, *_: object) -> LedgerState | None:
        found = [one for one in cluster.records(self._topic) if one.key == self._key.encode()]
        return LedgerState.parse("the topic", found[-1].value or b"") if found else None

    def in_offsets(self: InOffsets, *_: object) -> LedgerState | None:
        one = cluster.committed(self._group).get(TopicPartition("orders", 0))
        return one and LedgerState.parse("the group", one.metadata, one.offset)

    monkeypatch.setattr(InTopic, "read", in_topic)
    monkeypatch.setattr(InOffsets, "read", in_offsets)
    for place in (InTopic, InOffsets):
        monkeypatch.setattr(place, "prepare", lambda *_: None)
