"""Claims: how the broker decides which of several processes may write a part of a transaction.

Why it exists: sequence numbers count by producer id and partition. A broker answers a second
writer's equal numbers with success, and drops its records. So each part has one writer, and the
broker decides which process that is: a scheduler, or a process that was asleep, may be wrong.

A claim is a transactional id of its own, under which nothing is written. InitProducerId on it adds
one to its epoch, so it works as a fetch-and-add. The holder asks, and the lease says which epoch
comes next. Of all processes that ask afterwards, exactly one gets that epoch.

Owns: the requests. Must not know: the consequences of a claim, which are the manager's.
"""

from __future__ import annotations

from collections.abc import Callable

from txnproducer._core.transactions import verdicts
from txnproducer._core.transactions.commit_evidence import LAST_EPOCH
from txnproducer._core.transactions.handler import (
    RequestPriority,
    TransactionActions,
    TxnRequestHandler,
)
from txnproducer._core.transactions.operation import TransactionalRequestResult
from txnproducer._core.transactions.requests import InitProducerIdHandler
from txnproducer._core.transactions.verdicts import Action, Verdict
from txnproducer._protocol.messages import (
    CoordinatorType,
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from txnproducer.errors import KafkaError
from txnproducer.records import ProducerIdAndEpoch


def next_answer(claimed: ProducerIdAndEpoch) -> ProducerIdAndEpoch | None:
    """Return the answer to the next process that takes a claim, or None if it is not known."""
    epoch = claimed.producer_epoch + 1
    # After the last epoch the coordinator answers with another producer id, which cannot be
    # foretold.
    return ProducerIdAndEpoch(claimed.producer_id, epoch) if epoch <= LAST_EPOCH else None


class ClaimHandler(TxnRequestHandler):
    """InitProducerId on a claim's transactional id.

    Behavior:
    * After a lost answer the request is repeated, and the second answer's epoch counts. If the
      lost request was executed, that epoch is one too high, and its receiver refuses the claim.
    * A refusal is not about the producer itself. It ends the operation; the manager decides
      about the transaction.

    Retries: every retriable code.
    """

    priority = RequestPriority.INIT_PRODUCER_ID
    answer_type = InitProducerIdResponse
    needs_coordinator: CoordinatorType | None = CoordinatorType.TRANSACTION
    # A late copy raises the claim's epoch alone. The process that takes the claim is then refused.
    is_harmful_when_late = False

    def __init__(
        self,
        actions: TransactionActions,
        result: TransactionalRequestResult,
        transactional_id: str,
        transaction_timeout_ms: int,
        on_claimed: Callable[[ProducerIdAndEpoch], None],
    ) -> None:
        super().__init__(actions, result)
        self._transactional_id = transactional_id
        self._transaction_timeout_ms = transaction_timeout_ms
        self._on_claimed = on_claimed

    @property
    def coordinator_key(self) -> str:
        """The key by which its coordinator is looked up."""
        # The claim has an id, and so a coordinator, of its own.
        return self._transactional_id

    @property
    def is_for_commit_only(self) -> bool:
        """Whether an abort can do without it."""
        # A transaction that is aborted is not leased.
        return True

    def _build(self) -> InitProducerIdRequest:
        # With -1/-1 the coordinator raises the epoch for any process: that is the fetch-and-add.
        none = ProducerIdAndEpoch.NONE
        return InitProducerIdRequest(
            self._transactional_id,
            self._transaction_timeout_ms,
            none.producer_id,
            none.producer_epoch,
        )

    def _handle(self, response: InitProducerIdResponse) -> None:
        table, code = verdicts.INIT_PRODUCER_ID, response.error_code
        verdict = table.judge(code)
        if verdict.action is Action.COMPLETE:
            self._on_claimed(ProducerIdAndEpoch(response.producer_id, response.producer_epoch))
        elif verdict.action.is_retry:
            self._execute(verdict, None)
        else:
            reason = table.error(verdict, code)
            text = f"the claim {self._transactional_id!r} is refused: {reason}"
            error = KafkaError(text, recovery=None if reason is None else reason.recovery)
            error.__cause__ = reason
            # Abortable whatever the code says: it is about the claim's id, and this producer is
            # sound.
            self._execute(Verdict(Action.ABORTABLE), error)


class FreshEpochHandler(InitProducerIdHandler):
    """InitProducerId with the present identity, in a transaction into which nothing is written.

    Behavior: with transactions v1 all transactions share one epoch, and sequence numbers count on
    from one to the next. Participants begin at 0, so they need an epoch under which nothing has
    been written. The new epoch also fences late requests of earlier transactions.

    Retries: every retriable code; a repetition is answered like the first (KIP-360).
    """

    def __init__(
        self,
        actions: TransactionActions,
        result: TransactionalRequestResult,
        transaction_timeout_ms: int,
        on_fresh: Callable[[ProducerIdAndEpoch], None],
    ) -> None:
        current = actions.identity.producer_id_and_epoch
        super().__init__(actions, result, transaction_timeout_ms, current=current)
        self._on_fresh = on_fresh

    @property
    def is_for_commit_only(self) -> bool:
        """Whether an abort can do without it. It cannot: EndTxn has to name the epoch."""
        return False

    def _take_identity(self, producer: ProducerIdAndEpoch) -> None:
        self._on_fresh(producer)
