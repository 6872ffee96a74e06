"""A process that exits with a transaction open: the transaction is aborted, not left to time out.

From Python 3.12 on the interpreter starts no thread at its exit; the program does the same on
older ones.
"""

from __future__ import annotations

import subprocess
import sys
import uuid
from typing import Any

import pytest

from tests.wire import answers
from tests.wire.fake_broker import FakeBroker
from txnproducer._protocol.messages import ApiKey
from txnproducer._wire import kafka_python as kp

PROGRAM = """
import atexit, contextlib, socket, sys, threading
from txnproducer import TransactionalProducer

def refuse(self):
    raise RuntimeError("can't create new thread at interpreter shutdown")

def lose_connections():  # registered last, called first
    threading.Thread.start = refuse
    for link in list(producer._io._client._links.values()):
        if link.connection is not None:
            with contextlib.suppress(OSError):
                link.connection.sock.shutdown(socket.SHUT_RDWR)

atexit.register(lose_connections)
producer = TransactionalProducer(sys.argv[1], "txn", linger_ms=0)
producer.init_transactions()
producer.begin_transaction()
producer.send("topic", b"value").result(10)
"""


class Coordinator:
    """Answer what an open transaction needs; remember whether its end was a commit."""

    def __init__(self) -> None:
        self.broker = FakeBroker(self.handle, features={"transaction.version": 2}, epoch=1)
        self.ends: list[bool] = []

    def handle(self, api_key: int, correlation_id: int, request: bytes) -> bytes:
        version = int.from_bytes(request[2:4], "big")
        if api_key == ApiKey.END_TXN:
            read = kp.EndTxnRequest.decode(request, version=version, header=True)
            self.ends.append(read.committed)
            return answers.end_txn(correlation_id)
        make = {
            ApiKey.METADATA: self.metadata,
            ApiKey.FIND_COORDINATOR: self.coordinator,
            ApiKey.INIT_PRODUCER_ID: self.identity,
            ApiKey.PRODUCE: self.written,
        }
        return answers.payload(make[ApiKey(api_key)](version), correlation_id)

    def metadata(self, version: int) -> Any:
        kind = kp.MetadataResponse
        partition = kind.MetadataResponseTopic.MetadataResponsePartition(
            error_code=0,
            partition_index=0,
            leader_id=1,
            leader_epoch=0,
            replica_nodes=[1],
            isr_nodes=[1],
            offline_replicas=[],
        )
        topic = kind.MetadataResponseTopic(
            error_code=0,
            name="topic",
            topic_id=uuid.UUID(int=1),
            is_internal=False,
            partitions=[partition],
        )
        broker = kind.MetadataResponseBroker(
            node_id=1, host="127.0.0.1", port=self.broker.port, rack=None
        )
        return kind(
            version=version,
            throttle_time_ms=0,
            brokers=[broker],
            cluster_id="c",
            controller_id=1,
            topics=[topic],
        )

    def coordinator(self, version: int) -> Any:
        found = kp.FindCoordinatorResponse.Coordinator(
            key="txn",
            node_id=1,
            host="127.0.0.1",
            port=self.broker.port,
            error_code=0,
            error_message=None,
        )
        return kp.FindCoordinatorResponse(
            version=version, throttle_time_ms=0, coordinators=[found]
        )

    def identity(self, version: int) -> Any:
        return kp.InitProducerIdResponse(
            version=version, throttle_time_ms=0, error_code=0, producer_id=7, producer_epoch=0
        )

    def written(self, version: int) -> Any:
        topic = kp.ProduceResponse.TopicProduceResponse
        partition = topic.PartitionProduceResponse(
            index=0, error_code=0, base_offset=0, log_append_time_ms=-1, log_start_offset=0
        )
        written = topic(name="topic", topic_id=uuid.UUID(int=1), partition_responses=[partition])
        return kp.ProduceResponse(version=version, responses=[written], throttle_time_ms=0)


@pytest.mark.timeout(60)
def test_an_open_transaction_without_a_connection_is_aborted_at_exit() -> None:
    coordinator = Coordinator()
    with coordinator.broker as broker:
        run = subprocess.run(
            [sys.executable, "-c", PROGRAM, broker.address],
            capture_output=True,
            text=True,
            timeout=50,
            check=False,
        )
        assert run.returncode == 0, run.stderr
        assert coordinator.ends == [False]
