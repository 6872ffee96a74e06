"""A log is read up to its end, and a leader that serves less than that has not shown it all."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock
from uuid import UUID

import kafka.errors
import pytest
from kafka.admin import OffsetSpec

from tests.test_log_batches import encoded
from txnproducer.admin import LogBatch, TopicReplacedError, _connection, _log
from txnproducer.errors import CorruptRecordError

AT = 1_700_000_000_000
OUT_OF_RANGE = kafka.errors.OffsetOutOfRangeError.errno
THROTTLED = kafka.errors.ThrottlingQuotaExceededError.errno
UNKNOWN_ID = kafka.errors.UnknownTopicIdError.errno
CORRUPT = kafka.errors.CorruptRecordError.errno


class ScriptedClient:
    """A client with the answers to its fetches, in their order.

    Args:
        bounds: the first offset, and each end that is asked for.
        fetches: the records, and the high watermark or an error's code.
        ids: of the topic, one for each look at the metadata; the last one stays. None is that of
            a broker without ids.
    """

    def __init__(self, bounds, *fetches, ids=(None,)):
        self._first, *self._ends = bounds
        self._fetches = list(fetches)
        self._ids = list(ids)
        self.named: list[UUID | str] = []
        self._manager = self

    async def _get_cluster_metadata(self, topics):
        topic_id = self._ids.pop(0) if len(self._ids) > 1 else self._ids[0]
        parts = [{"partition_index": 0, "leader_id": 1}]
        topic = {"error_code": 0, "topic_id": topic_id or UUID(int=0), "partitions": parts}
        return {"topics": [topic]}

    def _list_partition_offsets_request(self, places, isolation_level):
        return places

    def _list_partition_offsets_process_response(self, answer):
        return answer

    async def send(self, request, node_id):
        assert node_id == 1
        if isinstance(request, dict):
            ((place, spec),) = request.items()
            is_end = spec == OffsetSpec.LATEST
            return {place: SimpleNamespace(offset=self._ends.pop(0) if is_end else self._first)}
        (topic,) = request.topics
        self.named.append(topic.topic if request._max_version <= 12 else topic.topic_id)
        records, high_watermark, *code = self._fetches.pop(0)
        found = SimpleNamespace(
            records=records, high_watermark=high_watermark, error_code=code[0] if code else 0
        )
        answer = SimpleNamespace(partitions=[found])
        return SimpleNamespace(error_code=0, responses=[answer])

    def run(self, coroutine):
        return asyncio.run(coroutine())

    @property
    def fetches_left(self):
        return len(self._fetches)

    @property
    def is_asked_for_all(self):
        return not self._fetches and not self._ends


def batch(offset):
    return encoded([(AT, b"key", b"%d" % offset, ())], offset)


def read(client, offset=0, timeout=5.0, topic_id=None):
    """Return the offset up to which a log is read, and the values."""
    taken: list[LogBatch] = []

    def ask(bootstrap_servers: str, question: Any, timeout: float = 0.0, **_: Any) -> Any:
        return question(client)

    reached = _log.read_log(
        "servers", "t", offset, taken.append, timeout, topic_id=topic_id, asker=ask
    )
    return reached.offset, [each.newest[b"key"].value for each in taken]


def test_a_log_is_read_over_several_fetches():
    client = ScriptedClient((0, 2), (batch(0), 2), (batch(1), 2))
    assert read(client) == (2, [b"0", b"1"])
    assert client.is_asked_for_all


def test_compaction_may_have_removed_the_last_records():
    assert read(ScriptedClient((0, 3), (batch(0), 3), (b"", 3))) == (3, [b"0"])


def test_a_new_leader_that_serves_less_is_asked_again():
    # Its high watermark follows when its followers have fetched (KAFKA-2334, KIP-207).
    client = ScriptedClient((0, 2), (batch(0), 1), (b"", 1), (b"", 1), (batch(1), 2))
    assert read(client) == (2, [b"0", b"1"])


def test_a_leader_that_goes_on_serving_less_is_an_error():
    with pytest.raises(kafka.errors.OffsetNotAvailableError, match="up to 0 of 2"):
        read(ScriptedClient((0, 2), *[(b"", 1)] * 99), timeout=0.2)


def test_a_log_without_its_first_records_is_read_from_those_that_are_left():
    client = ScriptedClient((5, 6), (None, 6, OUT_OF_RANGE), (batch(5), 6))
    assert read(client, 2) == (6, [b"5"])


def test_a_log_that_has_become_shorter_is_read_up_to_its_new_end():
    # Deleted and created again, say, since its end was asked for.
    client = ScriptedClient((0, 9, 3), (None, 3, OUT_OF_RANGE))
    assert read(client, 5) == (3, [])
    assert client.is_asked_for_all


def asking_again(client):
    """Read a log by the usual asker, over a client that connects at once."""

    @contextmanager
    def connect(*_, **__):
        with _connection.our_errors("servers"):
            yield client

    with mock.patch.object(_connection, "connect", connect):
        return _log.read_log("servers", "t", 0, lambda _: None, 5.0)


def flipped(data):
    return data[:-1] + bytes([data[-1] ^ 1])


@pytest.mark.parametrize(
    ("fetch", "text"),
    [
        pytest.param((flipped(batch(1)), 9), "the CRC of the batch", id="CRC"),
        pytest.param((batch(1)[:40], 9), "40 bytes, and no whole batch", id="half a batch"),
        pytest.param((None, 9, CORRUPT), "its leader cannot read it", id="the broker's own"),
    ],
)
def test_bytes_that_cannot_be_read_end_the_reading_at_once_with_their_place(fetch, text):
    client = ScriptedClient((0, 9, 9), (batch(0), 9), fetch, (batch(0), 9), (batch(1), 9))
    with pytest.raises(
        CorruptRecordError, match=f"^partition 0 of the topic t, offset 1: {text}"
    ) as found:
        asking_again(client)
    assert found.value.recovery == "fix"
    assert client.fetches_left == 2, "the question was put again"


# --- a topic that was made again -----------------------------------------------------------------

OLD, NEW = UUID(int=7), UUID(int=8)


def test_a_fetch_names_the_topic_by_its_id_once_that_is_known():
    client = ScriptedClient((0, 2), (batch(0), 2), (batch(1), 2), ids=[OLD])
    assert read(client) == (2, [b"0", b"1"])
    assert client.named == [OLD, OLD]
    assert read(ScriptedClient((0, 1), (batch(0), 1), ids=[OLD]), 0, topic_id=OLD) == (1, [b"0"])


def test_a_topic_of_another_id_is_not_read_even_if_it_has_grown_as_long():
    for end in (1, 2, 9):
        client = ScriptedClient((0, end), (batch(1), end), ids=[NEW])
        with pytest.raises(TopicReplacedError, match="the topic t was deleted and created again"):
            read(client, 1, topic_id=OLD)
        assert client.named == []


def test_a_topic_that_is_made_again_while_it_is_read_is_noticed():
    client = ScriptedClient((0, 2), (batch(0), 2), (batch(1), 2), ids=[OLD, OLD, NEW])
    with pytest.raises(TopicReplacedError):
        read(client)


def test_a_question_that_is_put_again_is_about_the_same_topic():
    # The first attempt takes a batch, and fails for a passing reason then.
    client = ScriptedClient(
        (0, 2, 2), (batch(0), 2), (None, 2, THROTTLED), (batch(1), 2), ids=[OLD, OLD, OLD, NEW]
    )
    with pytest.raises(TopicReplacedError):
        asking_again(client)
    assert client.fetches_left == 1


def test_a_leader_that_does_not_know_the_topic_yet_is_asked_again():
    client = ScriptedClient((0, 1), (None, 1, UNKNOWN_ID), (batch(0), 1), ids=[OLD])
    assert read(client) == (1, [b"0"])


def test_a_broker_without_ids_is_asked_by_name():
    client = ScriptedClient((0, 2), (batch(0), 2), (batch(1), 2), ids=[None])
    assert read(client) == (2, [b"0", b"1"])
    assert client.named == ["t", "t"]
    # While brokers are brought to a newer version, some of them have ids.
    mixed = ScriptedClient((0, 2), (batch(0), 2), (batch(1), 2), ids=[None, OLD, None])
    assert read(mixed) == (2, [b"0", b"1"])
