"""Holds a transaction's first request back until the previous transaction's markers are written.

Why it exists: the coordinator answers EndTxn before it has written the markers. A Produce request
(or AddPartitionsToTxn) that comes in between is refused, or waits inside the broker for 20 ms and
more, which costs transactions of a few records most of their time. A question to the coordinator
costs a fraction of a millisecond, and records are collected meanwhile.

Owns: the knowledge whether the last transaction is complete. Must not know: batches, states, when
it pays to ask (`gate_costs` does).

Rules:
* It is only an optimization: in any doubt (an error, no connection, a broker that does not offer
  DescribeTransactions, too long a wait) the gate opens, and the broker's own answer counts.
* The coordinator is asked only if a request waits, if the last transaction ended just now, and if
  it pays.
"""

from __future__ import annotations

from typing import Final

from txnproducer._core.ports import KafkaClient
from txnproducer._core.sending.gate_costs import GateCosts
from txnproducer._core.sending.loss_inquiry import is_describe_offered
from txnproducer._core.sending.request_tracker import RequestTracker
from txnproducer._core.transactions.manager import TransactionManager
from txnproducer._protocol.events import ClientResponse, coordinator_connection
from txnproducer._protocol.messages import (
    BrokerNode,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)

# Markers usually take half a millisecond, so after this time no question is needed.
FRESH_MS: Final = 10
# After this time the request goes out; the broker itself then waits for the markers, or refuses.
GIVE_UP_MS: Final = 50
# The first questions follow each other at once; after these there is one in a millisecond.
_EAGER_QUESTIONS: Final = 6
# A first request that takes as long was put to sleep. Or its broker is so slow that a question
# does not matter.
SLEPT_MS: Final = 15
# PrepareCommit, PrepareAbort: the end is decided, and some markers are still missing.
_UNFINISHED: Final = "Prepare"


class MarkerGate:
    """The knowledge whether the last transaction is complete.

    Args:
        client: knows whether the coordinator can be asked.
        requests: sends the question.
        transactions: have the transactional id, and know whether transactions v2 are in use. With
            v1 a request that comes too early is refused, and not put to sleep: it always asks.

    Attributes:
        is_going: whether the present transaction goes without a question, so that the ends of its
            requests are of interest.
    """

    def __init__(
        self, client: KafkaClient, requests: RequestTracker, transactions: TransactionManager
    ) -> None:
        self._client = client
        self._requests = requests
        self._transactional_id = transactions.transactional_id or ""
        self._identity = transactions.identity
        self._is_open = True
        self._ended_ms = 0
        self._next_question_ms = 0
        self._questions = 0
        # So that a late answer about an earlier end is not taken for this one's.
        self._transaction = 0
        self._is_asking = False
        self._costs = GateCosts()
        self._asked_ms = 0
        self.is_going = False
        # The time of the present transaction's first answer, and whether a request that was sent
        # before that was put to sleep.
        self._first_answer_ms: int | None = None
        self._has_slept = False

    def transaction_ended(self, now_ms: int) -> None:
        """Note that EndTxn was answered: the markers are being written."""
        if self.is_going:
            self._costs.note_without_question(has_slept=self._has_slept)
        self.is_going = self._has_slept = False
        self._first_answer_ms = None
        self._is_open = False
        self._ended_ms = self._next_question_ms = now_ms
        self._questions = 0
        self._transaction += 1
        self._is_asking = False

    def note_end(self, sent_ms: int, now_ms: int, *, is_refused: bool) -> None:
        """Note the end of a request of the present transaction.

        Args:
            sent_ms: when it was sent.
            now_ms: the time.
            is_refused: whether it was refused, or had no answer. It may have come too early.
        """
        if not self.is_going:
            return
        if self._first_answer_ms is None:
            self._first_answer_ms = now_ms
        # Later requests find the partitions added. Those to other brokers were sent before.
        if sent_ms <= self._first_answer_ms:
            self._has_slept |= is_refused or now_ms - sent_ms >= SLEPT_MS

    def wait_ms(self, coordinator: BrokerNode | None, now_ms: int) -> int | None:
        """Return how long to wait before looking again, or None if the gate is open.

        It asks the coordinator, so it is called only if a request waits.
        """
        if not self._is_open and self._is_late(now_ms):
            self._give_up(now_ms)
        if self._is_open:
            return None
        if self._is_asking:
            # An answer wakes the sender before. Without one the gate opens at this moment.
            return self._ended_ms + GIVE_UP_MS - now_ms
        if now_ms < self._next_question_ms:
            return self._next_question_ms - now_ms
        if not self._questions:
            self._asked_ms = now_ms
            if self._identity.is_transaction_v2_enabled and not self._costs.must_ask:
                self._is_open = self.is_going = True
                return None
        return self._ask(coordinator, now_ms)

    def _is_late(self, now_ms: int) -> bool:
        limit_ms = GIVE_UP_MS if self._questions else FRESH_MS
        return now_ms - self._ended_ms >= limit_ms

    def _give_up(self, now_ms: int) -> None:
        """Open the gate because of the time. A question without an answer has cost that time."""
        self._is_open = True
        if self._questions:
            self._costs.note_question(min(now_ms - self._asked_ms, GIVE_UP_MS))

    def _ask(self, coordinator: BrokerNode | None, now_ms: int) -> int | None:
        if coordinator is None or not self._can_ask(coordinator, now_ms):
            self._is_open = True
            return None
        transaction = self._transaction
        self._requests.send(
            coordinator_connection(coordinator.node_id),
            DescribeTransactionsRequest((self._transactional_id,)),
            lambda response, end_ms: self._on_end(transaction, response, end_ms),
            now_ms,
        )
        self._is_asking = True
        self._questions += 1
        return self._ended_ms + GIVE_UP_MS - now_ms

    def _can_ask(self, coordinator: BrokerNode, now_ms: int) -> bool:
        if not is_describe_offered(self._client, coordinator):
            return False
        connection = coordinator_connection(coordinator.node_id)
        # To wait for a connection would take longer than the markers do.
        return self._client.is_ready(connection, now_ms)

    def _on_end(self, transaction: int, response: ClientResponse, now_ms: int) -> None:
        # An answer that comes after the gate was opened has held nothing.
        if transaction != self._transaction or self._is_open:
            return
        self._is_asking = False
        body = response.body
        if not isinstance(body, DescribeTransactionsResponse) or not body.transactions:
            self._is_open = True
            return
        (description, *_) = body.transactions
        # An error is no proof of missing markers, so it opens the gate.
        if description.error_code == 0 and not description.state.startswith(_UNFINISHED):
            self._costs.note_question(now_ms - self._asked_ms)
            self._is_open = True
            return
        self._is_open = description.error_code != 0
        pause_ms = 0 if self._questions < _EAGER_QUESTIONS else 1
        self._next_question_ms = now_ms + pause_ms
