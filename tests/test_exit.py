"""A process that exits with a transaction open: the transaction is aborted, not left to time out.

From Python 3.12 on the interpreter starts no thread at its exit; the program does the same on
older ones.
"""

from __future__ import annotations

import socket
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


V2: dict[str, Any] = {"features": {"transaction.version": 2}, "epoch": 1}


class StoppingBroker(FakeBroker):
    """Accept connections and say nothing once `is_stopped`."""

    is_stopped = False

    def _talk(self, sock: socket.socket) -> None:
        if self.is_stopped:
            while sock.recv(1000):
                pass
        else:
            super()._talk(sock)


class Cluster:
    """Brokers that answer an open transaction, and remember whether its end was a commit.

    Args:
        stale_look_ups: how many look-ups name broker 2 as the coordinator, the others broker 1.
    """

    def __init__(self, stale_look_ups: int = 0) -> None:
        self.broker = FakeBroker(self.handle, **V2)
        self.stopping = StoppingBroker(self.handle, **V2)
        self.ends: list[bool] = []
        self._stale_look_ups = stale_look_ups

    def handle(self, api_key: int, correlation_id: int, request: bytes) -> bytes:
        version = int.from_bytes(request[2:4], "big")
        self.stopping.is_stopped |= api_key == ApiKey.PRODUCE
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
        ports = {1: self.broker.port, 2: self.stopping.port}
        brokers = [
            kind.MetadataResponseBroker(node_id=node_id, host="127.0.0.1", port=port, rack=None)
            for node_id, port in ports.items()
        ]
        return kind(
            version=version,
            throttle_time_ms=0,
            brokers=brokers,
            cluster_id="c",
            controller_id=1,
            topics=[topic],
        )

    def coordinator(self, version: int) -> Any:
        is_stale = self._stale_look_ups > 0
        self._stale_look_ups -= 1
        broker = self.stopping if is_stale else self.broker
        found = kp.FindCoordinatorResponse.Coordinator(
            key="txn",
            node_id=1 + is_stale,
            host="127.0.0.1",
            port=broker.port,
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
@pytest.mark.parametrize("stale_look_ups", [0, 2], ids=["same coordinator", "a stopped one"])
def test_an_open_transaction_without_a_connection_is_aborted_at_exit(stale_look_ups: int) -> None:
    """The second time its coordinator accepts connections and is silent, and is then replaced."""
    cluster = Cluster(stale_look_ups)
    with cluster.broker as broker, cluster.stopping:
        run = subprocess.run(
            [sys.executable, "-c", PROGRAM, broker.address],
            capture_output=True,
            text=True,
            timeout=50,
            check=False,
        )
        assert run.returncode == 0, run.stderr
        assert cluster.ends == [False]
