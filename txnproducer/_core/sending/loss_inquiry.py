"""Asks the coordinator once why a transaction was lost.

Owns: the one question about each loss (`transaction_loss`). Must not know: the meaning of the
answer.

Rules:
* The core does not wait for it. A call that is about to raise the error does, in the shell, for
  `LONGEST_MS` at most.
* Only the text of an error depends on it. If the coordinator cannot be asked (it is not known, or
  does not offer DescribeTransactions), the transaction's age decides.
"""

from __future__ import annotations

from typing import Final

from txnproducer._core.metadata import NEVER_MS
from txnproducer._core.ports import KafkaClient
from txnproducer._core.sending.request_tracker import RequestTracker
from txnproducer._core.transactions.transaction_loss import TransactionLoss
from txnproducer._protocol.events import ClientResponse, coordinator_connection
from txnproducer._protocol.messages import (
    ApiKey,
    BrokerNode,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)

LONGEST_MS: Final = 1000


class LossInquiry:
    """One question to the coordinator about each lost transaction.

    Args:
        client: says whether the coordinator can be asked.
        requests: sends the question.
        transactional_id: the id that is asked about.
    """

    def __init__(
        self, client: KafkaClient, requests: RequestTracker, transactional_id: str | None
    ) -> None:
        self._client = client
        self._requests = requests
        self._transactional_id = transactional_id or ""
        self._asked: TransactionLoss | None = None

    def step(self, loss: TransactionLoss, coordinator: BrokerNode | None, now_ms: int) -> int:
        """Ask about a loss as soon as the coordinator's connection takes a request.

        Returns:
            After how many milliseconds to call again.
        """
        if loss.is_explained:
            return NEVER_MS
        left_ms = loss.noticed_ms + LONGEST_MS - now_ms
        is_late = left_ms <= 0
        if is_late or coordinator is None or not is_describe_offered(self._client, coordinator):
            # The caller waits for the explanation, so "not known" must be an end as well.
            loss.end_inquiry()
            return NEVER_MS
        if loss is self._asked:
            return left_ms
        connection = coordinator_connection(coordinator.node_id)
        if not self._client.is_ready(connection, now_ms):
            # At least 1: with 0 the loop would spin until the connection is there.
            return min(left_ms, max(1, self._client.ready_delay_ms(connection, now_ms)))
        self._asked = loss

        def take(response: ClientResponse, _: int) -> None:
            # Any end will do, also a lost connection. Otherwise the caller would wait out its
            # second.
            loss.end_inquiry()
            if isinstance(response.body, DescribeTransactionsResponse):
                for description in response.body.transactions:
                    loss.take(description)

        request = DescribeTransactionsRequest((self._transactional_id,))
        self._requests.send(connection, request, take, now_ms)
        return left_ms


def is_describe_offered(client: KafkaClient, coordinator: BrokerNode) -> bool:
    """Return whether a coordinator is known to offer DescribeTransactions (Kafka 3.0)."""
    offered = client.api_versions(coordinator.node_id)
    return offered is not None and offered.max_version(ApiKey.DESCRIBE_TRANSACTIONS) is not None
