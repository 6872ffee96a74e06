"""The course of a transaction as the sender drives it: requests, answers, batches, epochs.

Why it exists: what the application asks for (`manager.py`) only begins things; here is
what happens to them.

Owns: the partitions of the transaction, whether the coordinator knows of it, when the epoch is
raised, which version of transactions is spoken, how the latest transaction ended. Must not know:
the application's calls, bytes, connections, time, threads.

Rules:
* Whether the epoch has to be raised after a transaction is decided when EndTxn ends, since the
  need can arise while it is under way. The call's result ends with the bump, and with EndTxn's
  outcome. (Java decides when the call begins, and can miss a bump that way.)
* Transactions v1 or v2 (KIP-890) is a matter of the finalized feature, not of API versions. It is
  read when the producer is initialized and when a transaction begins to end, and counts from the
  next transaction on; coming to v2 also raises the epoch.
* v1 counts a transaction as started with the first partition or group that the coordinator has
  accepted, v2 with the first call. One that was not started ends without EndTxn.
* A v1 transaction that lost an answer is followed by a new epoch: the request may still be on its
  way, and would join a later transaction of the same epoch (KAFKA-17754). Where the cluster can't
  raise epochs, no further transaction is begun. With v2 every transaction has its own epoch.
* A batch's error is fatal, abortable, or (idempotent) a matter of sequences alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from copy import copy
from typing import Literal, TypeAlias

from txnproducer._core.ports import KafkaClient
from txnproducer._core.sequences.partition_map import NumberedBatch, identity_of
from txnproducer._core.sequences.sequence_manager import BumpOutcome, SequenceManager
from txnproducer._core.transactions.commit_evidence import ResolvedOutcome, SentCommit
from txnproducer._core.transactions.end_txn import EndTxnHandler
from txnproducer._core.transactions.handler import Offsets
from txnproducer._core.transactions.request_flow import TxnRequestFlow
from txnproducer._core.transactions.requests import (
    AddPartitionsToTxnHandler,
    FindCoordinatorHandler,
    InitProducerIdHandler,
    TxnOffsetCommitHandler,
    TxnRequestHandler,
)
from txnproducer._core.transactions.result import TransactionalRequestResult
from txnproducer._core.transactions.state import TransactionState
from txnproducer._core.transactions.transaction_loss import TransactionLoss, sign_of_loss
from txnproducer._core.transactions.verdicts import ABORTABLE_AFTER_RETRIES, FATAL_PRODUCE_ERRORS
from txnproducer._protocol.messages import CoordinatorType, ProducePartitionResponse
from txnproducer.errors import KafkaError, TransactionAbortableError
from txnproducer.records import OffsetAndMetadata, ProducerIdAndEpoch, TopicPartition

_LOG = logging.getLogger(__name__)

_ENDED = logging.getLogger("txnproducer.transactions")
_ENDED_LINE = (
    "transactional_id=%(transactional_id)r producer_id=%(producer_id)d"
    " producer_epoch=%(producer_epoch)d version=%(version)d outcome=%(outcome)s ms=%(ms)s"
    " records=%(records)d cause=%(cause)s"
)

_S = TransactionState

Outcome: TypeAlias = Literal["open"] | ResolvedOutcome


class TransactionCourse(TxnRequestFlow):
    """See the module.

    Args:
        transactional_id: None for an idempotent producer.
        transaction_timeout_ms: after which the coordinator aborts a transaction by itself.
        retry_backoff_ms: between two attempts of a request.
        client: asked for the cluster's finalized features.

    Attributes:
        sequences: the partitions' sequence numbers.
        is_transaction_v2_enabled: which version the present transaction is written with.
        may_have_begun: whether only requests whose success nobody knows could have begun the
            transaction.
        begun_count: how many transactions were begun.
        may_begin_again: whether a request without an answer may yet begin another one, in this
            epoch (transactions v1).
        outcome: how the latest transaction ended; None before the first.
        loss: why the latest transaction was lost to the coordinator's time-out, or to a newer
            producer; None if it was not.
        commit_result: of the present transaction's commit, or the latest one's; None if none was
            begun.
        is_half_way: whether a call is adding offsets, or leasing. If it is still set when the next
            call comes, an exception has left it.
        last_commit: the latest commit that was begun; once it was sent, and its answer is lost for
            good, evidence of it can be asked for.
    """

    def __init__(
        self,
        *,
        transactional_id: str | None,
        transaction_timeout_ms: int,
        retry_backoff_ms: int,
        client: KafkaClient,
    ) -> None:
        super().__init__(transactional_id, retry_backoff_ms)
        self._transaction_timeout_ms = transaction_timeout_ms
        self._client = client
        self.sequences = SequenceManager(is_transactional=transactional_id is not None)
        self.outcome: Outcome | None = None
        self.last_commit: SentCommit | None = None
        self.loss: TransactionLoss | None = None
        self._now_ms = 0
        self._started_ms: int | None = None
        self._has_lost_init = False
        self.commit_result: TransactionalRequestResult | None = None
        self.is_half_way = False
        self._record_count = 0
        self._cause: KafkaError | None = None
        self.is_transaction_v2_enabled = False
        self._is_v2_enabled_next = False
        self._features_epoch = -1
        self._is_bump_required = False
        self._is_identity_due = True
        self._lost_identity: KafkaError | None = None
        self._is_started = False
        self.may_have_begun = False
        self.may_begin_again = False
        self.begun_count = 0
        self._has_stray_request = False
        self._lost_offsets: dict[tuple[str, TopicPartition], set[OffsetAndMetadata]] = {}
        self._end_txn: EndTxnHandler | None = None
        self._new_partitions: set[TopicPartition] = set()
        self._pending_partitions: set[TopicPartition] = set()
        self._partitions: set[TopicPartition] = set()

    # --- what is asked about it -----------------------------------------------------------------

    @property
    def producer_id_and_epoch(self) -> ProducerIdAndEpoch:
        """The present identity."""
        return self.sequences.producer_id_and_epoch

    @property
    def has_producer_id(self) -> bool:
        """Whether there is an identity."""
        return self.producer_id_and_epoch.is_valid

    @property
    def _has_identity(self) -> bool:
        return not self._is_identity_due

    @property
    def has_partitions_to_add(self) -> bool:
        """Whether the coordinator has not accepted all partitions yet."""
        return bool(self._new_partitions or self._pending_partitions)

    def is_send_to_partition_allowed(self, topic_partition: TopicPartition) -> bool:
        """Tell whether a partition's batches may go on the wire, in whatever state but fatal."""
        if self.has_fatal_error:
            return False
        return not self.is_transactional or topic_partition in self._partitions

    @property
    def must_bump_from_client(self) -> bool:
        """Whether raising the epoch after an error is the client's to do, and can be done."""
        return self.coordinator_can_bump and not self.is_transaction_v2_enabled

    @property
    def can_handle_abortable_error(self) -> bool:
        """Whether the epoch will be raised after an abort, by whichever side."""
        return self.coordinator_can_bump or self.is_transaction_v2_enabled

    # --- why a transaction was lost -------------------------------------------------------------

    def set_time(self, now_ms: int) -> None:
        """Note the time, and with it when the transaction begins at the coordinator."""
        self._now_ms = now_ms
        if self._started_ms is None and (self._must_be_ended or self._is_to_begin):
            self._started_ms = now_ms

    @property
    def _is_to_begin(self) -> bool:
        if self.outcome != "open":
            return False
        return bool(self._new_partitions or self._pending_partitions or self._queue)

    @property
    def _age_ms(self) -> int | None:
        """How long the transaction is open; None where that is not known here."""
        return 0 if self._started_ms is None else self._now_ms - self._started_ms

    def _note_loss(self, error: KafkaError) -> None:
        """Take in an error; one that tells of a lost transaction gets a text by its age."""
        sign = sign_of_loss(error)
        has_transaction = self.is_transactional and self.has_producer_id
        if sign is None or self.loss is not None or not has_transaction:
            return
        self.loss = TransactionLoss(
            self.producer_id_and_epoch,
            2 if self.is_transaction_v2_enabled else 1,
            self._age_ms,
            self._transaction_timeout_ms,
            self._now_ms,
            self.outcome == "open",
            self._has_lost_init,
        )
        sign.args = (self.loss.text(self._who),)

    @property
    def _who(self) -> str:
        return f"{self.name}, {self.producer_id_and_epoch}"

    def explained(self, error: KafkaError) -> KafkaError:
        """Return a call's error with what is known of why the transaction was lost."""
        return error if self.loss is None else self.loss.explain(error, self._who)

    def transition_to(self, target: TransactionState, error: KafkaError | None = None) -> None:
        """See `TransactionStateMachine`."""
        if error is not None:
            self._note_loss(error)
            self._cause = error
        super().transition_to(target, error)
        if target is _S.FATAL_ERROR and self.outcome == "open":
            self._tell_end(self._outcome_when_fatal)

    def _on_poisoned(self, error: KafkaError) -> None:
        self._cause = error
        super()._on_poisoned(error)
        if self.outcome == "open":
            self._tell_end(self._outcome_when_fatal)

    # --- the public line about each transaction -------------------------------------------------

    @property
    def _outcome_when_fatal(self) -> ResolvedOutcome:
        is_unknown = self._end_txn is not None and self._end_txn.may_be_committed
        return "unknown" if is_unknown else "aborted"

    def _tell_end(self, outcome: ResolvedOutcome) -> None:
        """Log the end of the transaction, for operators; the record's `args` are its values."""
        if not _ENDED.isEnabledFor(logging.INFO):
            return
        _ENDED.info(
            _ENDED_LINE,
            {
                "transactional_id": self.transactional_id,
                "producer_id": self.producer_id_and_epoch.producer_id,
                "producer_epoch": self.producer_id_and_epoch.producer_epoch,
                "version": 2 if self.is_transaction_v2_enabled else 1,
                "outcome": outcome,
                "ms": self._age_ms,
                "records": self._record_count,
                "cause": None if outcome == "committed" else self._cause,
            },
        )

    # --- requests -------------------------------------------------------------------------------

    def next_request(self, has_incomplete_batches: bool) -> TxnRequestHandler | None:
        """Take the next request to send out of the queue.

        Requests that can't be sent in the present state fail on the way, and an EndTxn of a
        transaction that the coordinator does not know succeeds.

        Returns:
            None if there is none, or if it is an EndTxn that has to wait for batches.
        """
        self._queue_new_partitions()
        while (handler := self._queue.peek()) is not None:
            if handler.is_end_txn and has_incomplete_batches:
                return None
            handler = self._take()
            if self._is_refused(handler):
                self._out = None
                handler.fail(self.last_error or KafkaError())
            elif isinstance(handler, EndTxnHandler) and not self._must_be_ended:
                self._out = None
                handler.skip()
            elif isinstance(handler, TxnOffsetCommitHandler) and self._may_be_undone(handler):
                self._out = None
                handler.abortable_error(
                    KafkaError(
                        "an answer to earlier offsets of this transaction was lost: a delayed copy"
                        " of that request could overwrite these; abort, and do it again",
                        recovery="abort",
                    )
                )
            else:
                return handler
        return None

    def offsets_lost(self, group_id: str, offsets: Offsets) -> None:
        """Take in that offsets of the open transaction were sent, and have no answer."""
        for place, offset in offsets:
            self._lost_offsets.setdefault((group_id, place), set()).add(offset)

    def _may_be_undone(self, handler: TxnOffsetCommitHandler) -> bool:
        """Tell whether a copy of other offsets could come behind these and take their place.

        Offsets have no sequence numbers: of two requests in one transaction the last one to arrive
        counts. (Java sends them; a group then goes back to offsets it has passed.)
        """
        return any(
            self._lost_offsets.get((handler.group_id, place), {offset}) != {offset}
            for place, offset in handler.offsets
        )

    @property
    def _must_be_ended(self) -> bool:
        return self._is_started or self.may_have_begun

    def _is_refused(self, handler: TxnRequestHandler) -> bool:
        # A look-up does no harm while an abort is awaited, which will need the coordinator.
        is_harmless = self.has_abortable_error and isinstance(handler, FindCoordinatorHandler)
        return self.has_error and not is_harmless

    def _queue_new_partitions(self) -> None:
        if self._new_partitions:
            self._pending_partitions |= self._new_partitions
            self._new_partitions.clear()
            pending = frozenset(self._pending_partitions)
            self._queue.push(AddPartitionsToTxnHandler(self, pending))

    def _find_coordinator(self, key: str, key_type: CoordinatorType) -> FindCoordinatorHandler:
        return FindCoordinatorHandler(self, key, key_type)

    # --- answers, as the handlers report them ---------------------------------------------------

    def initialized(self, producer: ProducerIdAndEpoch, *, is_epoch_bump: bool) -> None:
        """Take in the producer's identity."""
        _LOG.info("%s: now %s", self.name, producer)
        if self.is_transactional:
            self.sequences.reset_sequence_numbers()
        self.sequences.adopt(producer)
        # What is late is fenced now.
        self._is_bump_required = self._has_stray_request = self.may_begin_again = False
        self._is_identity_due = False
        self.transition_to(_S.READY)
        if self.is_transactional and not is_epoch_bump:
            self.maybe_update_transaction_v2_enabled(on_initialization=True)

    def partitions_answered(
        self, partitions: frozenset[TopicPartition], *, are_added: bool
    ) -> None:
        """Take in that partitions are, or are not, in the transaction."""
        self._pending_partitions -= partitions
        if are_added:
            self._partitions |= partitions
            self._begun()

    def offsets_added(self, follower: TxnRequestHandler, leader: TxnRequestHandler) -> None:
        """Go on from AddOffsetsToTxn to TxnOffsetCommit, in the same place of the queue."""
        self._begun()
        if self.is_aborting:
            follower.give_up()
            return
        follower.order = leader.order
        self._queue.push(follower)

    def _begun(self) -> None:
        self._is_started = True
        self.may_have_begun = False

    def begun_perhaps(self) -> None:
        """Take in that a refused request may have begun the transaction all the same."""
        self.may_have_begun = self.may_have_begun or not self._is_started

    def init_request_lost(self) -> None:
        """Take in that an InitProducerId has no answer; it may yet raise the epoch, or fence."""
        self._has_lost_init = True

    def request_lost(self, *, may_begin_transaction: bool) -> None:
        """Take in that a request which could do harm later has no answer."""
        if not self.is_transactional or self.is_transaction_v2_enabled:
            return
        if may_begin_transaction:
            self.may_begin_again = True
            self.begun_perhaps()
        self._need_new_epoch()

    def _need_new_epoch(self) -> None:
        """Begin no other transaction under this epoch; where it can't be raised, none at all."""
        if not self.is_transactional or self.is_transaction_v2_enabled:
            return
        if self.coordinator_can_bump:
            self._is_bump_required = True
        else:
            self._has_stray_request = True

    def transaction_ended(
        self,
        producer: ProducerIdAndEpoch,
        result: TransactionalRequestResult,
        on_end: Callable[[], None],
        outcome: ResolvedOutcome,
    ) -> None:
        """Take in the end of the transaction, and perhaps the identity for the next one."""
        if self.outcome == "open":  # else this ends what was in the way of the next one
            self.outcome = outcome
            self._tell_end(outcome)
        if producer.is_valid:
            _LOG.debug("%s: now %s", self.name, producer)
            self.sequences.reset_sequence_numbers()
            self.sequences.adopt(producer)
        must_bump = self._is_bump_required
        self.transition_to(_S.INITIALIZING if must_bump else _S.READY)
        self._is_bump_required = False
        self._is_started = self.may_have_begun = False
        self._started_ms = self._cause = None
        self._record_count = 0
        self._lost_offsets.clear()
        self._end_txn = None
        self._new_partitions.clear()
        self._pending_partitions.clear()
        self._partitions.clear()
        self.is_transaction_v2_enabled = self._is_v2_enabled_next
        if not must_bump:
            on_end()
            return
        self._queue.push(
            InitProducerIdHandler(
                self,
                result,
                self._transaction_timeout_ms,
                current=self.producer_id_and_epoch,
                on_bump_end=on_end,
            )
        )

    def require_epoch_bump(self) -> None:
        """Raise the epoch when this transaction ends, if that is the client's to do."""
        if self.must_bump_from_client:
            self._is_bump_required = True

    def epoch_bump_failed(self) -> None:
        """Take in that the epoch was not raised; it is raised when the next transaction ends."""
        # Whatever version is spoken by now: after an upgrade it is v2, and the bump is v1's.
        self._is_bump_required = True

    def maybe_update_transaction_v2_enabled(self, *, on_initialization: bool) -> None:
        """Read the finalized features, if there is a newer reading."""
        features = self._client.finalized_features()
        if features.epoch <= self._features_epoch:
            return
        self._features_epoch = features.epoch
        self._is_v2_enabled_next = features.transaction_version >= 2
        if on_initialization:
            self.is_transaction_v2_enabled = self._is_v2_enabled_next
        elif self._is_v2_enabled_next and not self.is_transaction_v2_enabled:
            # Fences what the v1 transaction may have left: v2 does not add partitions explicitly.
            self._is_bump_required = True

    def transition_to_uninitialized(self, error: KafkaError) -> None:
        """Go back to the start after `must_begin_anew`; the sender has failed the batches."""
        self.transition_to(_S.UNINITIALIZED)
        self._fail_all(error)
        self._out = None
        if self._has_identity:
            self._lost_identity = error
        self._is_identity_due = True
        self._is_bump_required = False
        self.sequences.reset_sequence_numbers()

    # --- batches --------------------------------------------------------------------------------

    def maybe_transition_to_error_state(self, error: KafkaError) -> None:
        """Draw the consequences of a batch, or a record, that could not be written."""
        if isinstance(error, FATAL_PRODUCE_ERRORS):
            self.transition_to_fatal_error(error)
            return
        if not self.is_transactional or self._is_commit_decided_elsewhere:
            return
        own_error = error
        if not self.is_aborting:  # the abort itself may fence what is still in flight
            self._note_loss(own_error)  # before its text becomes a part of another error's
        if isinstance(error, ABORTABLE_AFTER_RETRIES):
            error = TransactionAbortableError(f"the transaction cannot be completed: {own_error}")
            error.__cause__ = own_error
        elif own_error.recovery == "fix":
            # Abort the transaction; the record itself stays a thing to fix, or it fails again.
            error = copy(own_error)
            error.__cause__ = own_error
        if not self.is_aborting:
            self.require_epoch_bump()
        self.transition_to_abortable_error(error)
        if self.state is _S.ABORTABLE_ERROR and own_error.recovery != "fix":
            own_error.recovery = error.recovery  # what the record's future has to say, too

    @property
    def _is_commit_decided_elsewhere(self) -> bool:
        """Whether EndTxn(commit) is out, so that only its answer counts.

        All batches are in then. What can still fail is a record that never got into one, in a
        `send` that ran beside the commit; its future tells.
        """
        end_txn = self._end_txn
        return (
            self.state is _S.COMMITTING_TRANSACTION
            and end_txn is not None
            and (end_txn.is_taken or end_txn.may_be_committed)
        )

    def handle_completed_batch(
        self, batch: NumberedBatch, response: ProducePartitionResponse
    ) -> None:
        """Note a batch's success."""
        is_lost = batch.is_reset or not self.sequences.is_in_flight(batch)
        if is_lost and identity_of(batch) == self.producer_id_and_epoch:
            # Renumbered on the wire, and written under the number of before; or its partition's
            # numbers were wiped meanwhile. The partition gives this number out again: what comes
            # under it would be taken for this one. (In Java it is.)
            self._need_new_epoch()
        self._record_count += batch.record_count
        self.sequences.handle_completed_batch(batch, response)

    def handle_failed_batch(
        self, batch: NumberedBatch, error: KafkaError, adjust_sequence_numbers: bool
    ) -> None:
        """Settle a batch that failed and will not be sent again.

        Args:
            batch: which one.
            error: why.
            adjust_sequence_numbers: whether the broker surely does not have it.
        """
        self.sequences.remove_in_flight_batch(batch)
        self.maybe_transition_to_error_state(error)
        if not self.has_fatal_error and batch.has_sequence:
            self.sequences.handle_failed_batch(
                batch, error, adjust_sequence_numbers=adjust_sequence_numbers
            )

    def can_retry(
        self, response: ProducePartitionResponse, error: KafkaError, batch: NumberedBatch
    ) -> bool:
        """Judge whether a refused batch may be sent again."""
        return self.sequences.can_retry(response, error, batch)

    def maybe_resolve_sequences(self) -> None:
        """Draw the consequences of batches whose fate will not be known any more."""
        lost = self.sequences.maybe_resolve_sequences()
        if not lost or not self.is_transactional or not self.has_ongoing_transaction:
            return
        text = "no answer came for records that were sent, and they cannot be sent again"
        if not self.can_handle_abortable_error:
            self.transition_to_fatal_error(
                KafkaError(f"{text}; this cluster is too old to go on safely after an abort")
            )
            return
        self.require_epoch_bump()
        if not self.has_abortable_error:  # what made the batch fail says more than this
            self.transition_to_abortable_error(KafkaError(f"{text}; abort and go on"))

    def bump_idempotent_epoch_and_reset_id_if_needed(self) -> None:
        """Raise an idempotent producer's epoch if that is due, or ask for an identity."""
        if self.is_transactional:
            return
        if self.sequences.bump_idempotent_epoch() is BumpOutcome.NEW_ID_NEEDED:
            _LOG.info("%s: its epochs are used up, asking for a new producer id", self.name)
            self.transition_to(_S.UNINITIALIZED)
        if self.state is not _S.INITIALIZING and not self.has_producer_id:
            self.transition_to(_S.INITIALIZING)
            result = TransactionalRequestResult("init_producer_id")
            self._queue.push(InitProducerIdHandler(self, result))
