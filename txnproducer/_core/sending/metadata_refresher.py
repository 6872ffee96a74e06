"""Asks the cluster for its metadata when it is time, one request after the other.

Owns: the one request on its way. Must not know: the use of a snapshot; `on_update` has it.
Rule: a client that can reach none of the brokers it knows begins again with the bootstrap
addresses (KIP-899). They are names, and may stand for other machines since.
"""

from __future__ import annotations

from collections.abc import Callable

from txnproducer._core.failed_tries import FailedTries
from txnproducer._core.metadata import NEVER_MS, Metadata
from txnproducer._core.ports import KafkaClient, first_try_delay_ms
from txnproducer._core.sending.request_tracker import RequestTracker
from txnproducer._protocol.events import ClientResponse, data_connection
from txnproducer._protocol.messages import MetadataRequest, MetadataResponse
from txnproducer._sync.held_logs import held_logger

_LOG = held_logger(__name__)


class MetadataRefresher:
    """Keep a `Metadata` up to date.

    Args:
        metadata: says when to ask, and for which topics.
        client: finds a broker to ask, and learns the addresses.
        requests: sends.
        tries: know why a request has no answer.
        on_update: called after every new snapshot.
    """

    def __init__(
        self,
        metadata: Metadata,
        client: KafkaClient,
        requests: RequestTracker,
        tries: FailedTries,
        on_update: Callable[[], None],
    ) -> None:
        self._metadata = metadata
        self._client = client
        self._requests = requests
        self._tries = tries
        self._on_update = on_update
        self._is_in_flight = False
        client.update_nodes(metadata.bootstrap_nodes)

    def step(self, now_ms: int) -> int:
        """Send a request if one is due. Return after how many milliseconds to look again."""
        if self._is_in_flight:
            return NEVER_MS
        delay_ms = self._metadata.update_delay_ms(now_ms)
        if delay_ms:
            return delay_ms
        node_id = self._client.least_loaded_node(now_ms)
        if node_id is None:
            # The addresses are names that are resolved again with each connection (KIP-899).
            self._client.update_nodes(self._metadata.bootstrap_nodes)
            return first_try_delay_ms(self._client, self._metadata.node_ids, now_ms)
        connection = data_connection(node_id)
        if not self._client.is_ready(connection, now_ms):
            return max(1, self._client.ready_delay_ms(connection, now_ms))
        request = self._metadata.build_request(now_ms)
        self._requests.send(connection, request, self._on_end, now_ms)
        self._is_in_flight = True
        return NEVER_MS

    def _on_end(self, response: ClientResponse, now_ms: int) -> None:
        self._is_in_flight = False
        request, body = response.request.body, response.body
        if not isinstance(request, MetadataRequest) or not isinstance(body, MetadataResponse):
            _LOG.debug("no metadata from %s: %s", response.request.connection, response.failure)
            self._tries.metadata_lost(response, now_ms)
            self._metadata.handle_failure(now_ms)
            return
        self._tries.metadata_came()
        self._metadata.handle_response(request, body, now_ms)
        if body.brokers:  # an answer without any comes from a broker that has just started
            self._client.replace_nodes(body.brokers)
        self._on_update()
