"""A real broker as a target.

Owns: `LiveTarget`, and the patience that a real broker needs: coordinators that are being made,
markers that are being written. Must not know: the model.
Rules:
* Requests go through the product's own wire adapter, which also chooses their versions.
* The reader is of another make (librdkafka), so that no mistake of ours can hide itself.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import Any, Self

from kafka import KafkaAdminClient

from integration.conformance.access import denial
from integration.conformance.questions import Questions
from integration.conformance.target import Member, ProducerSeen, RecordSeen, coordinated_by
from integration.readers import read_with_confluent
from integration.waiting import wait_until
from tests.wire.client_driver import BOOTSTRAP, Driver
from txnproducer import admin
from txnproducer._broker.resources import Resource
from txnproducer._protocol import messages as m
from txnproducer._protocol.events import Channel, ConnectionId
from txnproducer._protocol.messages import ApiKey
from txnproducer._wire.version_choice import PRODUCE_WITH_TOPIC_IDS
from txnproducer.errors import ErrorCode
from txnproducer.records import TopicPartition
from txnproducer.testing import EmbeddedKafka

_OPEN = frozenset({"Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence"})
_NOT_YET = frozenset(
    {
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
    }
)


class LiveTarget:
    """A real broker as a target. It is a context manager.

    Args:
        kafka: the cluster.
        transaction_version: the finalized feature.
    """

    def __init__(self, kafka: EmbeddedKafka, transaction_version: int) -> None:
        self.transaction_version = transaction_version
        self._kafka = kafka
        servers = kafka.bootstrap_servers
        self._servers = servers
        self._driver = Driver(servers.split(",")[0])
        self._connection = admin.connect(servers)
        self._admin = self._connection.__enter__()
        self._topic_ids: dict[str, bytes | None] = {}
        self._groups: dict[str, set[tuple[str, TopicPartition]]] = {}
        self._questions = {
            node.node_id: Questions(node.host, node.port) for node in self._find_nodes()
        }
        self._node_ids = sorted(self._questions)
        self._guide = self._node_ids[0]  # the broker to ask where things are
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
        for questions in self._questions.values():
            questions.close()
        self._driver.close()

    # --- requests -------------------------------------------------------------------------------

    def _find_nodes(self) -> tuple[m.BrokerNode, ...]:
        found: tuple[m.BrokerNode, ...] = ()

        def are_all_there() -> bool:
            nonlocal found
            found = self._send(BOOTSTRAP, m.MetadataRequest(())).brokers
            return len(found) == self._kafka.nodes

        wait_until(are_all_there, "not all brokers know one another")
        self._driver.client.update_nodes(found)
        return found

    def _send(self, connection: ConnectionId, request: m.Request) -> Any:
        self._driver.connect(connection)
        (answer,) = self._driver.answers_to(self._driver.send(request, connection))
        assert answer.body is not None, answer
        self._driver.events.clear()
        return answer.body

    def _send_to(self, node_id: int, request: m.Request) -> Any:
        is_data = isinstance(request, m.ProduceRequest | m.MetadataRequest)
        channel = Channel.DATA if is_data else Channel.COORDINATOR
        return self._send(ConnectionId(node_id, channel), request)

    def ask(self, request: m.Request) -> m.Response:
        if isinstance(request, m.TxnOffsetCommitRequest):
            places = {(request.group_id, place) for place, _ in request.offsets}
            self._groups.setdefault(request.transactional_id, set()).update(places)
        answer: m.Response = self._send_to(self._home(request), request)
        return answer

    def init_often(self, request: m.InitProducerIdRequest, times: int) -> None:
        questions = self._questions[self._home(request)]
        questions.init_often(request.transactional_id, request.transaction_timeout_ms, times)

    def ask_elsewhere(self, request: m.Request) -> m.Response:
        home = self._home(request)
        other = next(node_id for node_id in self._node_ids if node_id != home)
        answer: m.Response = self._send_to(other, request)
        return answer

    def _home(self, request: m.Request) -> int:
        if len(self._node_ids) == 1:
            return self._guide  # also what has no leader or coordinator
        if isinstance(request, m.ProduceRequest):
            return self._leader(self._guide, request.partitions[0].topic_partition)
        key = coordinated_by(request)
        return self._guide if key is None else self._coordinator(*key)

    def _leader(self, asked: int, place: TopicPartition) -> int:
        """Return a partition's leader as a broker knows it, -1 for none."""
        answer = self._send_to(asked, m.MetadataRequest((place.topic,), False))
        leaders = {each.partition: each.leader_id for each in answer.topics[0].partitions}
        return int(leaders.get(place.partition, -1))

    def _coordinator(self, kind: m.CoordinatorType, key: str) -> int:
        look_up = m.FindCoordinatorRequest(key, kind)
        (found,) = self._send_to(self._guide, look_up).coordinators
        return -1 if found.error_code else int(found.node.node_id)

    def _warm_up(self) -> None:
        """Have the internal topics made, and their coordinators loaded."""
        for kind in m.CoordinatorType:
            wait_until(partial(self._has_coordinator, kind), f"no coordinator of {kind.name}")
        count = admin.partition_count(self._servers, admin.TRANSACTION_TOPIC) or 0
        for key in _keys_of_all(count):
            wait_until(partial(self._is_loaded, key), f"the coordinator of {key} does not load")
        a_block_of_ids = m.InitProducerIdRequest(None, 60_000)
        for node_id in self._node_ids:

            def has_given(node_id: int = node_id) -> bool:
                return not self._send_to(node_id, a_block_of_ids).error_code

            wait_until(has_given, f"{node_id} has no ids to give")

    def _has_coordinator(self, kind: m.CoordinatorType) -> bool:
        return self._coordinator(kind, "warm-up") >= 0

    def _is_loaded(self, key: str) -> bool:
        node_id = self._coordinator(m.CoordinatorType.TRANSACTION, key)
        if node_id < 0:
            return False
        (found,) = self._send_to(node_id, m.DescribeTransactionsRequest((key,))).transactions
        return found.error_code not in _NOT_YET

    def wait_ms(self, time_ms: int) -> None:
        time.sleep(time_ms / 1000)  # a time of the broker's own, such as a transaction's time-out

    def settle(self, transactional_id: str) -> None:
        describe = m.DescribeTransactionsRequest((transactional_id,))

        def has_ended() -> bool:
            (found,) = self._send_to(self._home(describe), describe).transactions
            return found.state not in _OPEN

        # A coordinator repeats markers that a broker did not answer for after 30 s.
        wait_until(has_ended, f"{transactional_id} does not end", longest_s=75)
        # Brokers before 4.0 answer for a marker before the group has taken its offsets in.
        groups = self._groups.pop(transactional_id, set())

        def is_decided() -> bool:
            return all(self._is_stable(group_id, place) for group_id, place in groups)

        wait_until(is_decided, f"offsets of {transactional_id} stay undecided")

    def _is_stable(self, group_id: str, place: TopicPartition) -> bool:
        found = self._at_group(group_id).committed_offset(group_id, place, require_stable=True)
        return not isinstance(found, ErrorCode)

    # --- topics ---------------------------------------------------------------------------------

    def create_topic(self, name: str, partition_count: int, *, is_compacted: bool) -> None:
        config = {"cleanup.policy": "compact"} if is_compacted else {}
        wanted = {"num_partitions": partition_count, "replication_factor": 1, "configs": config}
        self._create(name, partition_count, wanted)

    def create_topic_at(self, name: str, transactional_id: str, *, is_far: bool) -> None:
        near = self._coordinator(m.CoordinatorType.TRANSACTION, transactional_id)
        leader = next(node_id for node_id in self._node_ids if (node_id != near) == is_far)
        self._create(name, 1, {"assignments": {0: [leader]}})

    def delete_topic(self, name: str) -> None:
        admin.ask(self._servers, lambda client: client.delete_topics([name]))
        self._topic_ids.pop(name, None)

        def is_gone() -> bool:
            answers = [
                self._send_to(node_id, m.MetadataRequest((name,), False))
                for node_id in self._node_ids
            ]
            return all(answer.topics[0].error_code for answer in answers)

        wait_until(is_gone, f"{name} is still there")

    def add_partitions(self, name: str, partition_count: int) -> None:
        admin.ask(self._servers, lambda client: client.create_partitions({name: partition_count}))
        for number in range(partition_count):
            place = TopicPartition(name, number)
            wait_until(partial(self._is_led, place), f"{place} is not led")

    @contextmanager
    def hold_markers(self, place: TopicPartition) -> Iterator[None]:
        far = self._leader(self._guide, place)
        index = self._kafka.node_index(far)
        self._guide = next(node_id for node_id in self._node_ids if node_id != far)
        self._kafka.pause_node(index)
        try:
            yield
        finally:
            self._kafka.resume_node(index)

    @contextmanager
    def deny(self, resource: Resource, name: str) -> Iterator[None]:
        if resource is Resource.TOPIC:
            self.topic_id(name)  # nobody is told it afterwards
        with denial(self._admin, resource, name):
            yield

    def _create(self, name: str, partition_count: int, wanted: dict[str, Any]) -> None:
        def create(client: KafkaAdminClient) -> None:
            client.create_topics({name: wanted})
            client.wait_for_topics([name])

        # By a connection of its own: one that was opened while a broker did not know the other,
        # or while one was held, takes that broker for unknown for minutes.
        admin.ask(self._servers, create)
        for number in range(partition_count):
            place = TopicPartition(name, number)
            wait_until(partial(self._is_led, place), f"{place} is not led")

    def _is_led(self, place: TopicPartition) -> bool:
        leaders = {self._leader(node_id, place) for node_id in self._node_ids}
        # A leader that everybody knows of may still be on its way to lead.
        return len(leaders) == 1 and -1 not in leaders and self._at_leader(place).is_led(place)

    def _at_leader(self, place: TopicPartition) -> Questions:
        return self._questions[self._leader(self._guide, place)]

    def _at_group(self, group_id: str) -> Questions:
        return self._questions[self._coordinator(m.CoordinatorType.GROUP, group_id)]

    def topic_id(self, name: str) -> bytes | None:
        offered = self._driver.client.api_versions(self._guide)
        if offered is None or (offered.max_version(ApiKey.PRODUCE) or 0) < PRODUCE_WITH_TOPIC_IDS:
            return None
        if name not in self._topic_ids:
            answer = self._send_to(self._guide, m.MetadataRequest((name,), False))
            self._topic_ids[name] = answer.topics[0].topic_id
        return self._topic_ids[name]

    # --- looking --------------------------------------------------------------------------------

    def read(self, place: TopicPartition, *, read_committed: bool) -> list[RecordSeen]:
        # A reader of its own each time: one that is assigned again takes a second to begin.
        isolation = "read_committed" if read_committed else "read_uncommitted"
        found = read_with_confluent(self._servers, place.topic, isolation, awaits_markers=False)
        return [
            RecordSeen(each.offset, each.key, each.value)
            for each in found
            if each.partition == place.partition
        ]

    def last_stable_offset(self, place: TopicPartition) -> int:
        return self._at_leader(place).end(place, read_committed=True)

    def log_end_offset(self, place: TopicPartition) -> int:
        return self._at_leader(place).end(place, read_committed=False)

    def producers(self, place: TopicPartition) -> list[ProducerSeen]:
        return self._at_leader(place).producers(place)

    def committed_offset(
        self, group_id: str, place: TopicPartition, *, require_stable: bool
    ) -> int | ErrorCode:
        return self._at_group(group_id).committed_offset(
            group_id, place, require_stable=require_stable
        )

    def join_group(self, group_id: str, instance_id: str | None) -> Member:
        return self._at_group(group_id).join_group(group_id, instance_id)


def _keys_of_all(partition_count: int) -> tuple[str, ...]:
    """Return transactional ids, one for each partition of the coordinators' topic."""
    found: dict[int, str] = {}
    number = 0
    while len(found) < partition_count:
        key = f"warm-up-{number}"
        found.setdefault((admin.java_hash(key) & 0x7FFFFFFF) % partition_count, key)
        number += 1
    return tuple(found.values())
