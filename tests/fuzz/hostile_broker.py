"""A broker on a loopback socket that carries out nothing and answers well, until told to damage.

It answers what a producer asks, for any transactional id, as a cluster of one broker would whose
transactions always succeed.
"""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading
import uuid
from collections.abc import Callable, Sequence
from typing import Any, Self

from tests.fuzz.mutations import damage
from tests.wire import answers
from txnproducer._wire import kafka_python as kp

PARTITIONS = 2
_LARGEST_REQUEST_BYTES = 1_000_000
_V1_OFFER = {**answers.OFFER, 0: 11, 26: 4, 28: 4}
_IDENTITY = {"throttle_time_ms": 0, "error_code": 0, "producer_id": 11}


class HostileBroker:
    """A server of connections until `close`, used as a context manager.

    Args:
        rng: draws which answers are damaged, and how.
        others: answers of all APIs, for splicing.
        is_v2: whether the cluster has transactions v2.

    Attributes:
        damaged: the kinds of damage done so far, each with the API's key.
        damage_rate: the share of answers that are damaged.
    """

    def __init__(self, rng: random.Random, others: Sequence[bytes], *, is_v2: bool) -> None:
        self.damaged: list[tuple[int, tuple[str, ...]]] = []
        self.damage_rate = 0.0
        self._rng = rng
        self._others = others
        self._is_v2 = is_v2
        self._epoch = 0
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            for sock in self._open:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self._listener.accept()
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                with self._lock:
                    self._open.add(sock)
                threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        with sock, contextlib.suppress(OSError):
            while (head := _read(sock, 4)) and (data := _read(sock, *struct.unpack(">i", head))):
                api_key, version, number = struct.unpack_from(">hhi", data)
                answer = self._answer(api_key, version, number, data)
                sock.sendall(self._framed(api_key, answer))
        with self._lock:
            self._open.discard(sock)

    def _framed(self, api_key: int, answer: bytes) -> bytes:
        with self._lock:
            if self._rng.random() >= self.damage_rate:
                return answers.framed(answer)
            done = damage(self._rng, answer, self._rng.choice(self._others))
            self.damaged.append((api_key, done.kinds))
            framed = answers.framed(done.payload)
            if self._rng.random() < 0.1:  # the size
                framed = self._rng.randbytes(1) + framed[1:]
            return framed

    def _answer(self, api_key: int, version: int, number: int, data: bytes) -> bytes:
        if api_key == 18:
            return self._versions(version, number)
        request_type, make = _ANSWERS[api_key]
        request = request_type.decode(data, version=version, header=True)
        with self._lock:
            if api_key in {22, 26}:
                self._epoch = (self._epoch + 1) % 30_000
            return answers.payload(make(self, request, version), number)

    def _versions(self, version: int, number: int) -> bytes:
        features = {"transaction.version": 2 if self._is_v2 else 1}
        offer = answers.OFFER if self._is_v2 else _V1_OFFER
        return answers.api_versions(number, version, features, 1, offer)

    # --- answers --------------------------------------------------------------------------------

    def metadata(self, request: Any, version: int) -> Any:
        topic_type = kp.MetadataResponse.MetadataResponseTopic
        topics = [
            topic_type(
                error_code=0,
                name=asked.name,
                topic_id=uuid.uuid5(uuid.NAMESPACE_DNS, asked.name),
                is_internal=False,
                partitions=[
                    topic_type.MetadataResponsePartition(
                        error_code=0,
                        partition_index=index,
                        leader_id=1,
                        leader_epoch=1,
                        replica_nodes=[1],
                        isr_nodes=[1],
                        offline_replicas=[],
                    )
                    for index in range(PARTITIONS)
                ],
            )
            for asked in request.topics or ()
        ]
        broker = kp.MetadataResponse.MetadataResponseBroker(**self._address, rack=None)
        return kp.MetadataResponse(
            version=version,
            throttle_time_ms=0,
            brokers=[broker],
            cluster_id="c",
            controller_id=1,
            topics=topics,
        )

    def coordinator(self, request: Any, version: int) -> Any:
        found = {**self._address, "error_code": 0, "error_message": None}
        coordinator = kp.FindCoordinatorResponse.Coordinator
        return kp.FindCoordinatorResponse(
            version=version,
            throttle_time_ms=0,
            coordinators=[coordinator(key=key, **found) for key in request.coordinator_keys],
        )

    @property
    def _address(self) -> dict[str, Any]:
        return {"node_id": 1, "host": "127.0.0.1", "port": self.port}

    def producer_id(self, request: Any, version: int) -> Any:
        return kp.InitProducerIdResponse(version=version, producer_epoch=self._epoch, **_IDENTITY)

    def end(self, request: Any, version: int) -> Any:
        return kp.EndTxnResponse(version=version, producer_epoch=self._epoch, **_IDENTITY)

    def added(self, request: Any, version: int) -> Any:
        topic_type = kp.AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult
        result = topic_type.AddPartitionsToTxnPartitionResult
        results = [
            topic_type(
                name=topic.name,
                results_by_partition=[
                    result(partition_index=index, partition_error_code=0)
                    for index in topic.partitions
                ],
            )
            for topic in request.v3_and_below_topics
        ]
        return kp.AddPartitionsToTxnResponse(
            version=version, throttle_time_ms=0, results_by_topic_v3_and_below=results
        )

    def offsets_added(self, request: Any, version: int) -> Any:
        return kp.AddOffsetsToTxnResponse(version=version, throttle_time_ms=0, error_code=0)

    def offsets(self, request: Any, version: int) -> Any:
        topic_type = kp.TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic
        part_type = topic_type.TxnOffsetCommitResponsePartition
        topics = [
            topic_type(
                name=topic.name,
                partitions=[
                    part_type(partition_index=part.partition_index, error_code=0)
                    for part in topic.partitions
                ],
            )
            for topic in request.topics
        ]
        return kp.TxnOffsetCommitResponse(version=version, throttle_time_ms=0, topics=topics)

    def described(self, request: Any, version: int) -> Any:
        state_type = kp.DescribeTransactionsResponse.TransactionState
        fields = dict.fromkeys(("error_code", "producer_id", "producer_epoch"), 0)
        fields |= dict.fromkeys(("transaction_timeout_ms", "transaction_start_time_ms"), 0)
        states = [
            state_type(
                transactional_id=name, transaction_state="CompleteCommit", topics=[], **fields
            )
            for name in request.transactional_ids
        ]
        return kp.DescribeTransactionsResponse(
            version=version, throttle_time_ms=0, transaction_states=states
        )

    def produced(self, request: Any, version: int) -> Any:
        topic_type = kp.ProduceResponse.TopicProduceResponse
        topics = [
            topic_type(
                name=topic.name,
                topic_id=topic.topic_id,
                partition_responses=[
                    topic_type.PartitionProduceResponse(
                        index=part.index, error_code=0, base_offset=17
                    )
                    for part in topic.partition_data
                ],
            )
            for topic in request.topic_data
        ]
        return kp.ProduceResponse(
            version=version, responses=topics, throttle_time_ms=0, node_endpoints=[]
        )


_ANSWERS: dict[int, tuple[Any, Callable[[HostileBroker, Any, int], Any]]] = {
    0: (kp.ProduceRequest, HostileBroker.produced),
    3: (kp.MetadataRequest, HostileBroker.metadata),
    10: (kp.FindCoordinatorRequest, HostileBroker.coordinator),
    17: (
        kp.SaslHandshakeRequest,
        lambda broker, request, version: kp.SaslHandshakeResponse(
            version=version, error_code=0, mechanisms=["PLAIN"]
        ),
    ),
    22: (kp.InitProducerIdRequest, HostileBroker.producer_id),
    24: (kp.AddPartitionsToTxnRequest, HostileBroker.added),
    25: (kp.AddOffsetsToTxnRequest, HostileBroker.offsets_added),
    26: (kp.EndTxnRequest, HostileBroker.end),
    28: (kp.TxnOffsetCommitRequest, HostileBroker.offsets),
    36: (
        kp.SaslAuthenticateRequest,
        lambda broker, request, version: kp.SaslAuthenticateResponse(
            version=version,
            error_code=0,
            error_message=None,
            auth_bytes=b"",
            session_lifetime_ms=200,  # so that logins are repeated as well
        ),
    ),
    65: (kp.DescribeTransactionsRequest, HostileBroker.described),
}


def _read(sock: socket.socket, size: int) -> bytes:
    if not 0 <= size <= _LARGEST_REQUEST_BYTES:  # as a TLS greeting reads
        return b""
    data = bytearray()
    while len(data) < size:
        chunk = sock.recv(size - len(data))
        if not chunk:
            return b""
        data += chunk
    return bytes(data)
