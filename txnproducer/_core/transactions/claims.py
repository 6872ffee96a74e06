"""Claims: how the broker decides which of several processes may write a part of a transaction.

Why it exists: sequence numbers count by producer id and partition, and a broker answers a second
writer's equal numbers with success, dropping its records. So each part has one writer, and who
that is must not depend on what a scheduler, or a process that was asleep, believes.

A claim is a transactional id of its own, under which nothing is written. InitProducerId on it adds
one to its epoch, so it is a fetch-and-add. The holder asks, and the lease says which epoch comes
next; of all that ask afterwards one alone is answered with that.

Owns: the requests. Must not know: what follows from a claim; the manager does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from txnproducer._core.transactions import verdicts
from txnproducer._core.transactions.commit_evidence import LAST_EPOCH
from txnproducer._core.transactions.handler import Priority, TransactionActions, TxnRequestHandler
from txnproducer._core.transactions.requests import InitProducerIdHandler
from txnproducer._core.transactions.result import TransactionalRequestResult
from txnproducer._core.transactions.verdicts import Action, Verdict
from txnproducer._protocol.messages import (
    CoordinatorType,
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from txnproducer.errors import KafkaError
from txnproducer.records import ProducerIdAndEpoch

_PASSING: Final = frozenset({Action.RETRY, Action.LOOK_UP})


def next_answer(claimed: ProducerIdAndEpoch) -> ProducerIdAndEpoch | None:
    """Return what the next to take a claim will be answered; None if that can't be told."""
    epoch = claimed.producer_epoch + 1
    return ProducerIdAndEpoch(claimed.producer_id, epoch) if epoch <= LAST_EPOCH else None


class ClaimHandler(TxnRequestHandler):
    """InitProducerId on a claim's transactional id.

    Behavior:
    * An answer that was lost is asked for again, and the epoch that is told then counts: if the
      lost request was carried out, that is one too many, and whoever expected less refuses.
    * A refusal is not about the producer itself. It ends the operation, and what else it ends the
      manager says.

    Retries: every retriable code.
    """

    priority = Priority.INIT_PRODUCER_ID
    answer_type = InitProducerIdResponse
    needs_coordinator: CoordinatorType | None = CoordinatorType.TRANSACTION
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
        """Whose coordinator it needs."""
        return self._transactional_id

    @property
    def is_of_no_use_for_an_abort(self) -> bool:
        """Whether an abort goes without it."""
        return True

    def _build(self) -> InitProducerIdRequest:
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
        elif verdict.action in _PASSING:
            self._carry_out(verdict, None)
        else:
            reason = table.error(verdict, code)
            text = f"the claim {self._transactional_id!r} is refused: {reason}"
            error = KafkaError(text, recovery=None if reason is None else reason.recovery)
            error.__cause__ = reason
            self._carry_out(Verdict(Action.ABORTABLE), error)


class FreshEpochHandler(InitProducerIdHandler):
    """InitProducerId with the present identity, in a transaction into which nothing is written.

    Behavior: with transactions v1 all transactions have one epoch, and numbers go on counting from
    one to the next. Participants begin at 0, so they need an epoch under which nothing has been
    written, and which leaves behind whatever of an earlier transaction is still on its way.

    Retries: every retriable code; a repetition is answered as the first (KIP-360).
    """

    def __init__(
        self,
        actions: TransactionActions,
        result: TransactionalRequestResult,
        transaction_timeout_ms: int,
        on_fresh: Callable[[ProducerIdAndEpoch], None],
    ) -> None:
        current = actions.producer_id_and_epoch
        super().__init__(actions, result, transaction_timeout_ms, current=current)
        self._on_fresh = on_fresh

    @property
    def is_of_no_use_for_an_abort(self) -> bool:
        """Whether an abort goes without it: that would not know which epoch it is for."""
        return False

    def _take_identity(self, producer: ProducerIdAndEpoch) -> None:
        self._on_fresh(producer)
