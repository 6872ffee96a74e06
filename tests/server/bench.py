"""A client's bytes for a server's connection, made by the client's own codec."""

from __future__ import annotations

import itertools
import random
from typing import Any

from txnproducer._broker.cluster import BrokerCluster, ClusterOptions
from txnproducer._protocol import messages as m
from txnproducer._protocol.messages import ApiKey
from txnproducer._server.connection import Answer, ServerConnection
from txnproducer._server.login import Users
from txnproducer._server.script import Fault, Script
from txnproducer._wire import kafka_python as kp
from txnproducer._wire.codec import WireCodec, frame

TOPIC = "t"


class Bench:
    """One connection to a cluster of one broker, with a clock that the test moves."""

    def __init__(self, users: Users | None = None, **options: Any) -> None:
        self.cluster = BrokerCluster(ClusterOptions(**options), random.Random(1))
        self.cluster.create_topic(TOPIC, 2)
        self.script = Script()
        self.connection = ServerConnection(self.cluster, 0, self.script, users)
        self.now_ms = 1_000
        self._codec = WireCodec("bench")
        self._ids = itertools.count(1)

    def bytes_of(self, request: m.Request, version: int) -> bytes:
        return b"".join(
            bytes(part) for part in self._codec.encode(request, version, next(self._ids))
        )

    def send(self, data: bytes) -> list[Answer]:
        return self.connection.receive(data, self.now_ms)

    def ask(self, request: m.Request, version: int) -> Any:
        [answer] = self.send(self.bytes_of(request, version))
        return self._codec.decode(request, version, memoryview(answer.data)[4:])

    def ask_schema(self, request: Any, response: Any) -> Any:
        """Ask for the handshake or the login, which the codec does not know."""
        [answer] = self.send(frame(request, next(self._ids), "bench"))
        return response.decode(answer.data[4:], version=request.version, header=True)

    def api_versions(self, version: int = 4) -> dict[int, tuple[int, int]]:
        answer = self.ask_schema(
            kp.ApiVersionsRequest(
                version=version, client_software_name="x", client_software_version="1"
            ),
            kp.ApiVersionsResponse,
        )
        return {each.api_key: (each.min_version, each.max_version) for each in answer.api_keys}

    def will(self, api: ApiKey, fault: Fault, times: int = 1) -> None:
        self.script.add(api, fault, times)


def init_request(name: str = "a") -> m.InitProducerIdRequest:
    return m.InitProducerIdRequest(name, 60_000)
