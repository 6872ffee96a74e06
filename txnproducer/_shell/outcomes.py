"""The outcome of the latest transaction, as far as the producer knows it.

Why it exists: a caller has to know whether its records are visible, also after an error, a close,
or in another thread.
Owns: the outcome, the evidence for it that is gathered here, and the questions whose answers
decide it; the end of a producer that a pool gives up, and the error if a newer one has its id.
Must not know: how a transaction begins and ends, how a question is asked.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, Protocol

from txnproducer._core.transactions.commit_evidence import ResolvedOutcome, SentCommit, resolve
from txnproducer._core.transactions.operation import TransactionalRequestResult
from txnproducer._core.transactions.progress import Outcome
from txnproducer._core.transactions.state import TransactionState, TransactionStateMachine
from txnproducer._core.transactions.transaction_loss import sign_of_loss
from txnproducer._protocol.messages import BrokerNode, CoordinatorType, TransactionDescription
from txnproducer._shell import refusals
from txnproducer._shell.record_writer import RecordWriter
from txnproducer._shell.transaction_inquiry import describe_transaction
from txnproducer._sync.core_lock import refuse_reentry
from txnproducer._wire.platform import Platform
from txnproducer.config import ProducerConfig
from txnproducer.errors import (
    CommitOutcomeUnknownError,
    IllegalStateError,
    KafkaError,
    ProducerFencedError,
    UnsupportedVersionError,
)
from txnproducer.prepared import Completion, PreparedTransaction
from txnproducer.records import ProducerIdAndEpoch

__all__ = ["OutcomeKeeper"]

# "unknown" is no key: it stays as it is.
_RESOLVED: Final[dict[Completion, ResolvedOutcome]] = {
    "committed": "committed",
    "aborted": "aborted",
    "lost": "aborted",
}


class _Block(Protocol):
    """The object of a transaction, which shows its outcome."""

    def settle(self, outcome: Outcome, *, is_own_end: bool) -> None:
        """Take in the outcome."""
        ...

    def can_be_ended_here(self) -> bool:
        """Return whether the caller may end it."""
        ...

    def leave_open(self) -> None:
        """Let the end of the block end nothing."""
        ...


@dataclass(frozen=True)
class _Doubt:
    """A question for the outcome of a commit: the answer so far, and the facts that decide it."""

    known: ResolvedOutcome
    commit: SentCommit
    begun: TransactionalRequestResult | None
    may_begin_again: bool


class OutcomeKeeper(RecordWriter):
    """A producer that knows the outcome of its latest transaction."""

    _owned = staticmethod(refusals.owned)

    def _open(self, config: ProducerConfig) -> None:
        self._transaction: _Block | None = None
        self._prepared: PreparedTransaction | None = None
        self._resolved: ResolvedOutcome = "unknown"
        super()._open(config)

    @property
    def _commit(self) -> TransactionalRequestResult | None:
        manager = self._core.transaction_manager
        return None if manager is None else manager.commit_result

    def _doubt(self) -> _Doubt:
        """Return all that is known of the last commit's outcome, of one moment.

        Raises:
            IllegalStateError: no commit has ended; or the caller cannot wait.
            ForkedProducerError: this process is a fork.
        """
        if self._refusal is refusals.forked:
            raise self._refusal("resolve_outcome")
        refuse_reentry(self._lock, "resolve_outcome")
        self._io.refuse_in_callback()
        with self._lock:
            # All under one lock, or they could be of two transactions.
            known, commit, begun = self._outcome(), self._last_commit(), self._commit
            may_begin_again = self._may_have_begun_again()
        if known == "open" or commit is None:
            raise IllegalStateError(
                "resolve_outcome(): no commit has ended; call commit_transaction(), or"
                " abort_transaction()"
            )
        return _Doubt(known, commit, begun, may_begin_again)

    def _inquiry(self) -> tuple[ProducerConfig, Platform, float, list[BrokerNode]]:
        """Return the arguments of `describe_transaction`, but for the call."""
        manager = self._core.transaction_manager
        # One at least may be known if no bootstrap server can be reached.
        found = [] if manager is None else map(manager.requests.coordinator, CoordinatorType)
        known = [node for node in found if node is not None]
        return self._config, self._platform, self._max_block_s, known

    def _describe(self, call: str) -> TransactionDescription | None:
        """Return the coordinator's description of the id, or None if it has none."""
        try:
            return describe_transaction(*self._inquiry(), call=call)
        except UnsupportedVersionError:
            return None  # before Kafka 3.0 no request shows a transaction's state

    def _resolve(self, doubt: _Doubt, found: TransactionDescription | None) -> ResolvedOutcome:
        """Judge by the coordinator's description, None if it has none, and note the outcome."""
        described = "Empty", ProducerIdAndEpoch.NONE
        if found is not None:
            described = found.state, ProducerIdAndEpoch(found.producer_id, found.producer_epoch)
        with self._lock:
            # Another thread may have begun an abort meanwhile, and the next transaction.
            is_latest = self._commit is doubt.begun
            is_given_up = not is_latest or self._is_given_up()
            commit = replace(doubt.commit, is_given_up=is_given_up)
            known = resolve(commit, *described, may_begin_again=doubt.may_begin_again)
            if is_latest:
                self._resolved = known
                self._settle()
        return known

    def _last_commit(self) -> SentCommit | None:
        manager = self._core.transaction_manager
        return None if manager is None else manager.last_commit

    def _is_given_up(self) -> bool:
        commit = self._last_commit()
        return commit is not None and commit.is_given_up

    def _may_have_begun_again(self) -> bool:
        manager = self._core.transaction_manager
        return manager is not None and manager.may_have_begun_again

    def _check_owner(self, call: str) -> None:
        """Refuse a thread that does not own the open block. Call with the lock held."""
        block = self._transaction
        if block is not None and not block.can_be_ended_here():
            raise self._owned(call)

    def _end(self, call: str, begin: Callable[[], TransactionalRequestResult]) -> None:
        self._check_usable(call)  # first: if it refuses, the lock may not be available either
        try:
            self._await(call, begin)
        except KafkaError as error:
            self._settle_failed_end(call, error)
            raise

    def _settle_failed_end(self, call: str, error: KafkaError) -> None:
        """Note that an end has failed. Raise the lost commit before it, if that counts more."""
        with self._lock:
            # An abort that timed out goes on. One that a callback has asked for was refused.
            is_own = call == "abort_transaction" and not self._is_in_callback
            self._settle(is_own_end=is_own and self._refusal is None)
            lost = None if self._commit is None else self._commit.error
            is_unknown = self._outcome() == "unknown"
        if isinstance(lost, CommitOutcomeUnknownError) and lost is not error and is_unknown:
            # The abort's error says that the producer has failed. The commit before it may have
            # succeeded, which is the more important error.
            raise lost from error

    def _is_prepared_lost(self, machine: TransactionStateMachine) -> bool:
        # Another process may have ended it: this producer's failure says nothing about that.
        return machine.has_fatal_error or self._resolved != "unknown"

    def _own_end(self, prepared: PreparedTransaction, *, commit: bool) -> str | None:
        """Return the call by which this producer ends a prepared transaction as its own.

        It is None if the transaction is not its own, or not any more. An end that has timed out
        goes on, also if it is not the one that is asked for. Call with the lock held.
        """
        manager = self._core.transaction_manager
        # A producer that has failed ends nothing any more.
        if manager is None or manager.machine.has_error or prepared != self._prepared:
            return None
        if manager.unseen_end is not None or not manager.share.is_prepared:
            return manager.unseen_end
        return "commit_transaction" if commit else "abort_transaction"

    def _note_completion(self, prepared: PreparedTransaction, outcome: Completion) -> None:
        """Note the outcome of a transaction, which may be this producer's own."""
        with self._lock:
            if prepared == self._prepared:
                self._resolved = _RESOLVED.get(outcome, "unknown")
                self._settle()

    def _settle(self, *, is_own_end: bool = False) -> None:
        """Bring the current transaction's `outcome` up to date.

        Call with the lock held: another thread may begin the next transaction, or learn more about
        this one.
        """
        if self._transaction is not None:
            self._transaction.settle(self._outcome(), is_own_end=is_own_end)

    def _outcome(self) -> Outcome:
        manager = self._core.transaction_manager
        if manager is None or manager.progress.outcome is None:
            return "open"
        outcome = manager.progress.outcome
        if outcome != "open":
            return outcome  # also if an abort has found out about a lost commit
        if self._commit is not None and isinstance(self._commit.error, CommitOutcomeUnknownError):
            return self._resolved
        if manager.is_abort_certain:
            return "aborted"  # even before the coordinator answers
        if manager.share.is_prepared and self._is_prepared_lost(manager.machine):
            return self._resolved
        # After a fatal error no commit is under way that could still succeed, and none can follow.
        return "aborted" if manager.machine.has_fatal_error else "open"

    # --- the end of a producer that a pool gives up ----------------------------------------------

    @property
    def _is_ready(self) -> bool:
        """Whether a transaction can be begun.

        A closed producer may be in the state READY. So may one whose last end has succeeded and
        was not seen by its caller, whom a signal had taken out of the call: until that end is
        seen, it refuses to begin.
        """
        manager = self._core.transaction_manager
        has_unseen_end = manager is not None and manager.unseen_end is not None
        return self.transaction_state == "READY" and self._refusal is None and not has_unseen_end

    def _give_up(self, limit_s: float) -> None:
        """Abort an open transaction, learn the reason of a loss, and close.

        Args:
            limit_s: seconds for the abort and the close. The reason may take a second more.
        """
        self._begin_giving_up()
        has_ended = self._io.wait_until(self._has_no_end_under_way, limit_s)
        self._io.wait_until(lambda: self._core.is_loss_explained, self._evidence_s)
        self.close(limit_s if has_ended else 0)

    def _begin_giving_up(self) -> None:
        """Begin the abort before the close, which would not ask why the abort was refused."""
        manager = self._core.transaction_manager
        if manager is None or self._refusal is not None:
            return
        with self._lock:
            is_open = self.transaction_state in ("IN_TRANSACTION", "ABORTABLE_ERROR")
            if is_open and not manager.share.is_left_open_on_close:
                with suppress(KafkaError):  # the close begins it again, and logs the refusal
                    self._core.begin_abort()
            self._io.poke()

    def _has_no_end_under_way(self) -> bool:
        manager = self._core.transaction_manager
        return manager is None or not manager.machine.is_completing

    def _taken_over(self) -> KafkaError | None:
        """Return the error if a newer producer has this one's id, or may have; None if not."""
        manager = self._core.transaction_manager
        if manager is None:
            return None
        with self._lock:
            machine, loss = manager.machine, manager.progress.loss
            if loss is None:
                # It was refused before it had an identity, so that no transaction was lost.
                return sign_of_loss(machine.last_error) if machine.has_fatal_error else None
            has_aborted = machine.state is TransactionState.READY
            if not loss.may_be_to_newer(has_aborted=has_aborted):
                return None
            text = loss.text(manager.progress.description)
        return ProducerFencedError(text, recovery="restart")
