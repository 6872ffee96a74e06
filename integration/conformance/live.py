"""A real broker as a target.

Owns: `LiveTarget`, and the patience that a real broker needs: coordinators that are being made,
markers that are being written. Must not know: the model.
Rules:
* Requests go through the product's own wire adapter, which also chooses their versions.
* The reader is of another make (librdkafka), so that no mistake of ours can hide itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any, Self

from integration.conformance.questions import Questions
from integration.conformance.target import Member, ProducerSeen, RecordSeen
from integration.readers import read_with_confluent
from tests.wire.client_driver import BOOTSTRAP, Driver
from txnproducer import admin
from txnproducer._protocol import messages as m
from txnproducer._protocol.events import Channel, ConnectionId
from txnproducer._protocol.messages import ApiKey
from txnproducer._wire.version_choice import PRODUCE_WITH_TOPIC_IDS
from txnproducer.errors import ErrorCode
from txnproducer.records import TopicPartition

_LONGEST_S = 20.0
_POLL_S = 0.01
_OPEN = frozenset({"Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence"})
_NOT_YET = frozenset(
    {
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
    }
)


class LiveTarget:
    """See the module; a context manager.

    Args:
        servers: the broker's address.
        transaction_version: the finalized feature.
    """

    def __init__(self, servers: str, transaction_version: int) -> None:
        self.transaction_version = transaction_version
        self._servers = servers
        self._driver = Driver(servers)
        self._questions = Questions(servers)
        self._connection = admin.connect(servers)
        self._admin = self._connection.__enter__()
        self._topic_ids: dict[str, bytes | None] = {}
        self._groups: dict[str, set[tuple[str, TopicPartition]]] = {}
        self._node_id = self._first_node()
        self._warm_up()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._connection.__exit__(kind, error, trace)
        self._questions.close()
        self._driver.close()

    # --- requests -------------------------------------------------------------------------------

    def _first_node(self) -> int:
        answer = self._send(BOOTSTRAP, m.MetadataRequest(()))
        (node,) = answer.brokers
        self._driver.client.update_nodes([node])
        return int(node.node_id)

    def _send(self, connection: ConnectionId, request: m.Request) -> Any:
        self._driver.connect(connection)
        (answer,) = self._driver.answers_to(self._driver.send(request, connection))
        assert answer.body is not None, answer
        self._driver.events.clear()
        return answer.body

    def _send_to(self, channel: Channel, request: m.Request) -> Any:
        return self._send(ConnectionId(self._node_id, channel), request)

    def ask(self, request: m.Request) -> m.Response:
        if isinstance(request, m.TxnOffsetCommitRequest):
            places = {(request.group_id, place) for place, _ in request.offsets}
            self._groups.setdefault(request.transactional_id, set()).update(places)
        is_data = isinstance(request, m.ProduceRequest | m.MetadataRequest)
        channel = Channel.DATA if is_data else Channel.COORDINATOR
        answer: m.Response = self._send_to(channel, request)
        return answer

    def _warm_up(self) -> None:
        """Have the internal topics made, and their coordinators loaded."""
        for kind in m.CoordinatorType:
            look_up = m.FindCoordinatorRequest("warm-up", kind)

            def is_found(look_up: m.FindCoordinatorRequest = look_up) -> bool:
                return not self._send_to(Channel.DATA, look_up).coordinators[0].error_code

            _wait(is_found, f"no coordinator of {kind.name}")
        count = admin.partition_count(self._servers, admin.TRANSACTION_TOPIC) or 0
        keys = _keys_of_all(count)
        describe = m.DescribeTransactionsRequest(keys)

        def is_loaded() -> bool:
            answer = self._send_to(Channel.COORDINATOR, describe)
            return all(each.error_code not in _NOT_YET for each in answer.transactions)

        _wait(is_loaded, "coordinators that do not load")

        a_block_of_ids = m.InitProducerIdRequest(None, 60_000)
        _wait(
            lambda: not self._send_to(Channel.DATA, a_block_of_ids).error_code,
            "no producer ids to give",
        )

    def wait_ms(self, time_ms: int) -> None:
        time.sleep(time_ms / 1000)

    def settle(self, transactional_id: str) -> None:
        describe = m.DescribeTransactionsRequest((transactional_id,))

        def has_ended() -> bool:
            (found,) = self._send_to(Channel.COORDINATOR, describe).transactions
            return found.state not in _OPEN

        _wait(has_ended, f"{transactional_id} does not end")
        # Brokers before 4.0 answer for a marker before the group has taken its offsets in.
        groups = self._groups.pop(transactional_id, set())

        def is_decided() -> bool:
            return all(self._is_stable(group_id, place) for group_id, place in groups)

        _wait(is_decided, f"offsets of {transactional_id} stay undecided")

    def _is_stable(self, group_id: str, place: TopicPartition) -> bool:
        found = self._questions.committed_offset(group_id, place, require_stable=True)
        return not isinstance(found, ErrorCode)

    # --- topics ---------------------------------------------------------------------------------

    def create_topic(self, name: str, partition_count: int) -> None:
        wanted = {"num_partitions": partition_count, "replication_factor": 1}
        self._admin.create_topics({name: wanted})
        self._admin.wait_for_topics([name])
        for number in range(partition_count):
            # A leader that everybody knows of may still be on its way to lead.
            place = TopicPartition(name, number)
            _wait(partial(self._questions.is_led, place), f"{place} is not led")

    def topic_id(self, name: str) -> bytes | None:
        offered = self._driver.client.api_versions(self._node_id)
        if offered is None or (offered.max_version(ApiKey.PRODUCE) or 0) < PRODUCE_WITH_TOPIC_IDS:
            return None
        if name not in self._topic_ids:
            answer = self._send_to(Channel.DATA, m.MetadataRequest((name,), False))
            self._topic_ids[name] = answer.topics[0].topic_id
        return self._topic_ids[name]

    # --- looking --------------------------------------------------------------------------------

    def read(self, place: TopicPartition, *, read_committed: bool) -> list[RecordSeen]:
        # A reader of its own each time: one that is assigned anew takes a second to begin.
        isolation = "read_committed" if read_committed else "read_uncommitted"
        found = read_with_confluent(self._servers, place.topic, isolation)
        return [
            RecordSeen(each.offset, each.key, each.value)
            for each in found
            if each.partition == place.partition
        ]

    def last_stable_offset(self, place: TopicPartition) -> int:
        return self._questions.end(place, read_committed=True)

    def log_end_offset(self, place: TopicPartition) -> int:
        return self._questions.end(place, read_committed=False)

    def producers(self, place: TopicPartition) -> list[ProducerSeen]:
        return self._questions.producers(place)

    def committed_offset(
        self, group_id: str, place: TopicPartition, *, require_stable: bool
    ) -> int | ErrorCode:
        return self._questions.committed_offset(group_id, place, require_stable=require_stable)

    def join_group(self, group_id: str) -> Member:
        return self._questions.join_group(group_id)


def _keys_of_all(partition_count: int) -> tuple[str, ...]:
    """Return transactional ids, one for each partition of the coordinators' topic."""
    found: dict[int, str] = {}
    number = 0
    while len(found) < partition_count:
        key = f"warm-up-{number}"
        found.setdefault((admin.java_hash(key) & 0x7FFFFFFF) % partition_count, key)
        number += 1
    return tuple(found.values())


def _wait(is_so: Callable[[], bool], otherwise: str) -> None:
    end = time.monotonic() + _LONGEST_S
    while not is_so():
        assert time.monotonic() < end, otherwise
        time.sleep(_POLL_S)
