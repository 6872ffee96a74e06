"""The modelled broker as a target that is asked in bytes, as the client sends them.

Owns: `ByteTarget`. Must not know: a real broker.

Each request goes through the client's own codec at the version that the client would choose, and
through the server's side of it (`txnproducer._server`). So a case that is equal here and on a real
broker shows that the bytes of both sides mean the same.
"""

from __future__ import annotations

from integration.conformance.model import ModelTarget
from txnproducer._protocol import messages as m
from txnproducer._server.connection import ServerConnection
from txnproducer._server.script import Script
from txnproducer._wire.codec import WireCodec
from txnproducer._wire.version_choice import choose_version


class ByteTarget(ModelTarget):
    """Ask the model in bytes; the arguments are those of `ModelTarget`."""

    def __init__(self, version: str, transaction_version: int, nodes: int = 1) -> None:
        super().__init__(version, transaction_version, nodes)
        self._codec = WireCodec("conformance")
        self._connections = [
            ServerConnection(self._cluster, node_id, Script()) for node_id in range(nodes)
        ]
        self._correlation_id = 0

    def init_often(self, request: m.InitProducerIdRequest, times: int) -> None:
        # No transcript shows these answers, and asking for all epochs in bytes takes seconds.
        for _ in range(times):
            super()._ask(self._home(request), request)

    def _ask(self, node_id: int, request: m.Request) -> m.Response:
        self._advance_to(self._now_ms + 1)
        version = choose_version(request, self._cluster.api_versions(node_id))
        self._correlation_id += 1
        sent = b"".join(
            bytes(part) for part in self._codec.encode(request, version, self._correlation_id)
        )
        [answer] = self._connections[node_id].receive(sent, self._now_ms)
        payload = memoryview(answer.data)[4:]
        assert payload[:4] == self._correlation_id.to_bytes(4, "big")
        return self._codec.decode(request, version, payload)
