"""EndTxn: the request whose answer decides the outcome of a transaction.

Owns: `EndTxnHandler`, and the knowledge about the outcome while answers are missing. Must not
know: the queue, the state machine.

A commit that was sent and got no answer may have been executed or not, or may still be on its way.
As long as it is only repeated, that does no harm: the coordinator answers a repeated commit like
the first. It matters in two cases:
* The producer ends before the answer comes, or the repetition is refused. Then "not committed"
  would be a guess, and the caller gets `CommitOutcomeUnknownError`. If every attempt was answered,
  a refusal is certain.
* The application wants to abort. The handler turns into an abort of the same transaction, and the
  coordinator's answer to the abort shows the outcome:
  NONE: the transaction is aborted, and the lost commit cannot succeed any more.
  INVALID_TXN_STATE: the transaction is committed, since only then is its abort answered like that.
  The commit is repeated once more for its answer, which holds the next epoch with transactions v2.
  The abort call fails because it was too late.

Some refusals are believed only when they are repeated, see `from_memory.py`.

With transactions v1, NONE proves nothing if a lost AddPartitionsToTxn or AddOffsetsToTxn may
arrive late. Such a request begins another transaction after the committed one, and the abort ends
that one instead. Nor does INVALID_TXN_STATE then, if the abort is a repeated one: the first one
may have aborted the transaction, and the lost commit have ended the other one.

With v1, a broker that was replaced as the coordinator, and does not know it, answers NONE from its
memory if the transaction before had the same epoch and ended likewise. So NONE has to be proven,
unless the broker that gave it has answered for this transaction before. The proof is a write: the
next epoch (InitProducerId), which only the coordinator can write. A broker that says it is not, or
another one, is asked for the end again. (Java believes NONE.)
"""

from __future__ import annotations

from typing import Final

from txnproducer._core.transactions import verdicts
from txnproducer._core.transactions.commit_evidence import ResolvedOutcome
from txnproducer._core.transactions.from_memory import (
    LATER_IDENTITY,
    NEW_TERM,
    may_be_from_memory,
)
from txnproducer._core.transactions.handler import (
    RequestPriority,
    TransactionActions,
    TxnRequestHandler,
    may_have_taken_effect,
)
from txnproducer._core.transactions.operation import TransactionalRequestResult
from txnproducer._core.transactions.verdicts import Action, Verdict
from txnproducer._protocol.events import ResponseFailure
from txnproducer._protocol.messages import (
    BrokerNode,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    Response,
)
from txnproducer.errors import (
    CommitOutcomeUnknownError,
    ErrorCode,
    IllegalStateError,
    KafkaError,
    TransactionAbortedError,
)
from txnproducer.records import ProducerIdAndEpoch

_REFUSED = (Action.ABORTABLE, Action.BUMP_OR_FATAL)
_OUTCOMES: Final[dict[bool, ResolvedOutcome]] = {True: "committed", False: "aborted"}


class EndTxnHandler(TxnRequestHandler):
    """EndTxn (key 26), v0-v4 with transactions v1, v5 with v2.

    Behavior:
    * It commits or aborts the ongoing transaction, and is the last request of it.
    * v5 answers with the producer id and epoch of the next transaction (KIP-890).
    * It names the identity and the version with which the transaction was begun.

    Retries: every retriable code; a lost coordinator is looked up again. The refusals that
    `may_be_from_memory` names count when the same broker repeats them in one term.
    """

    priority = RequestPriority.END_TXN
    answer_type = EndTxnResponse
    is_end_txn = True

    def __init__(
        self,
        actions: TransactionActions,
        result: TransactionalRequestResult,
        *,
        is_commit: bool,
        is_transaction_v2_enabled: bool,
    ) -> None:
        super().__init__(actions, result)
        self.is_commit = is_commit
        self.is_transaction_v2_enabled = is_transaction_v2_enabled
        # The transaction's own, whatever the producer's identity is at a later attempt.
        self._producer = actions.identity.producer_id_and_epoch
        self._is_commit_on_wire = False
        self._lost_commits = 0
        self._has_lost_abort = False
        self._asked_before: BrokerNode | None = None
        self._refusal_before: int | None = None
        # Whether a commit was answered, while the broker has yet to prove its word.
        self._unproven: bool | None = None
        self._is_proving = False
        # The broker of a proof without an answer, and whether a commit was to be proven.
        self._proof_lost_at: BrokerNode | None = None
        self._lost_word = False
        self._given_up: TransactionalRequestResult | None = None
        self._outcome: ResolvedOutcome = _OUTCOMES[is_commit]

    @property
    def may_be_committed(self) -> bool:
        """Whether a commit was sent and its outcome is still unknown."""
        return self._is_commit_on_wire or self._lost_commits > 0

    def turn_into_abort(self, result: TransactionalRequestResult) -> None:
        """Turn the commit into an abort of the same transaction.

        Args:
            result: of the abort; the commit's own result ends when the outcome is known.
        """
        self._given_up = self.result
        # First: if an exception comes between the two, the call that is made again repeats both.
        self.is_commit = False
        self.report_to(result)

    def inherit(self, failed: EndTxnHandler) -> None:
        """Take over the doubt and the caller of a commit that failed with its outcome unknown."""
        self._lost_commits = failed._lost_commits
        self._has_lost_abort = failed._has_lost_abort
        self._given_up = failed.result

    def skip(self) -> None:
        """End a transaction that the coordinator does not know."""
        self._outcome = "committed" if self.is_commit else "aborted"
        self._ended(ProducerIdAndEpoch.NONE)

    def complete_operation(self) -> None:
        """End the callers' results, once the transaction and its epoch bump have ended."""
        given_up = self._given_up
        if given_up is None:
            self.result.done()
        elif self._outcome == "unknown":
            unknown = CommitOutcomeUnknownError(
                "the commit was sent and its answer was lost. The coordinator's answer to the"
                " abort afterwards may be about another transaction, begun by a delayed request of"
                " this producer. Whether the commit succeeded is unknown: check the records before"
                " you write them again"
            )
            given_up.fail(unknown)
            self.result.fail(unknown)
        elif self._outcome == "committed":
            # The caller of the commit gets its success. Only the abort came too late.
            given_up.done()
            self.result.fail(
                IllegalStateError(
                    "the transaction could not be aborted: the commit that was tried before"
                    " has succeeded after all, and all its records are visible. Go on with the"
                    " next transaction"
                )
            )
        else:
            given_up.fail(TransactionAbortedError("the commit was given up by abort_transaction"))
            self.result.done()

    def _build(self) -> EndTxnRequest | InitProducerIdRequest:
        if self.asked != self._asked_before:
            # A broker that has become the coordinator again may resign a second time. And another
            # one may not know the end, and abort the transaction for the new epoch.
            self._asked_before, self._refusal_before, self._unproven = self.asked, None, None
        self._is_proving = self._unproven is not None
        if self._is_proving:
            return InitProducerIdRequest(
                self._actions.transactional_id,
                self._actions.transaction_timeout_ms,
                self._producer.producer_id,
                self._producer.producer_epoch,
            )
        # `is_commit` may change while this attempt is on the wire, so the attempt keeps its own.
        self._is_commit_on_wire = self.is_commit
        return EndTxnRequest(
            self.coordinator_key,
            self._producer.producer_id,
            self._producer.producer_epoch,
            self.is_commit,
            self.is_transaction_v2_enabled,
        )

    def on_failure(self, failure: ResponseFailure, error: KafkaError | None) -> None:
        """Note that there is no answer. A commit may have been executed nevertheless."""
        was_commit, self._is_commit_on_wire = self._is_commit_on_wire, False
        # The broker may have been away, have become the coordinator again and resigned once more.
        self._refusal_before = None
        if failure.was_sent and self._unproven is not None:
            self._proof_lost_at, self._lost_word = self.asked, self._unproven
            self._actions.init_request_lost()
        elif failure.was_sent:
            # Before `super`, which may call `fail`: that asks whether a commit is in doubt.
            self._note_lost(was_commit=was_commit)
        super().on_failure(failure, error)

    def _note_lost(self, *, was_commit: bool) -> None:
        if was_commit:
            self._lost_commits += 1
        else:
            self._has_lost_abort = True

    def _is_answer(self, response: Response) -> bool:
        if self._unproven is not None:
            return isinstance(response, InitProducerIdResponse)
        return super()._is_answer(response)

    @property
    def retry_backoff_ms(self) -> int:
        """The wait before the next attempt. A proof follows its broker's word at once."""
        # The less may happen in between, such as a return of the coordinator.
        is_first_proof = self._unproven is not None and not self._is_proving
        return 0 if is_first_proof else super().retry_backoff_ms

    @property
    def _request_name(self) -> str:
        return "InitProducerId" if self._is_proving else "EndTxn"

    def _handle(self, response: EndTxnResponse | InitProducerIdResponse) -> None:
        if isinstance(response, InitProducerIdResponse):
            self._handle_proof(response)
        else:
            self._handle_end(response)

    def _handle_end(self, response: EndTxnResponse) -> None:
        was_commit = self._is_commit_on_wire
        self._is_commit_on_wire = False
        # The same code means different things for a commit and for an abort.
        table = verdicts.END_TXN_COMMIT if was_commit else verdicts.END_TXN_ABORT
        code = response.error_code
        verdict = table.judge(code)
        is_ended = verdict.action is Action.COMPLETE
        is_in_doubt = self._actions.may_have_begun and not was_commit
        # A proof shows that nothing was open, and not by which of two ends.
        has_other_end = self._has_lost_abort if self._lost_word else self._lost_commits > 0
        if code in LATER_IDENTITY and self.asked == self._proof_lost_at and not has_other_end:
            # That proof may have written the identity. If so, this broker answers its repetition.
            self._unproven = self._lost_word
            self._actions.requests.retry(self)
            return
        # With v2 INVALID_TXN_STATE says that the log has a commit, perhaps by another process.
        is_unknown = code == ErrorCode.INVALID_TXN_STATE and not self.is_transaction_v2_enabled
        has_not_begun = is_in_doubt and (is_ended or is_unknown)
        if not has_not_begun and self._is_first_refusal(code, was_commit):
            # No doubt about the outcome: the coordinator judges before it writes.
            self._retry(looks_up=True)
            return
        self._forget(code)
        producer = ProducerIdAndEpoch(response.producer_id, response.producer_epoch)
        if may_have_taken_effect(verdict, code):
            self._note_lost(was_commit=was_commit)
        if (is_ended or has_not_begun) and self._may_be_from_before(was_commit, code):
            # Like a lost answer, until it is proven.
            self._note_lost(was_commit=was_commit)
            self._unproven = was_commit
            self._actions.requests.retry(self)
        elif has_not_begun:
            # No request has begun the transaction, so there is nothing to abort. (A v1 coordinator
            # also says this by telling how the previous transaction ended.) Its log may still have
            # kept a write that the next coordinator loads; after the bump that has an old epoch.
            # (Where epochs cannot be raised, such a transaction times out and fences this
            # producer. That is rarer, and no worse, than to refuse the next begin.)
            self._actions.identity.require_epoch_bump()
            self._end(producer, was_commit)
        elif is_ended:
            self._end(producer, was_commit)
        elif self._given_up is not None and self._goes_on(verdict, code, was_commit):
            self._actions.requests.retry(self)
        elif self._given_up is not None and self.is_commit and verdict.action in _REFUSED:
            self.fatal_error(
                KafkaError(
                    "the coordinator refused to repeat the commit, and before that the abort"
                    f" ({table.error(verdict, code)}). Whether the commit succeeded is unknown:"
                    " check the records before you write them again with a new producer"
                )
            )
        else:
            self._execute(verdict, table.error(verdict, code))

    def _is_first_refusal(self, code: int, was_commit: bool) -> bool:
        """Return whether a refusal may be from memory, and the broker has not repeated it."""
        is_v2 = self.is_transaction_v2_enabled
        if not may_be_from_memory(code, is_commit=was_commit, is_v2=is_v2):
            return False
        # CONCURRENT_TRANSACTIONS in between says nothing: fenced producers get it, too.
        before, self._refusal_before = self._refusal_before, code
        return before != code

    def _forget(self, code: int) -> None:
        """Forget the broker's words if it was not the coordinator, or has loaded its log."""
        if code not in NEW_TERM:
            return
        self._refusal_before = None
        if self.asked == self._proof_lost_at:
            self._proof_lost_at = None

    def _may_be_from_before(self, was_commit: bool, code: int) -> bool:
        """Return whether a broker that was replaced could give this answer from memory (v1)."""
        identity, outcome = self._actions.identity, _OUTCOMES[was_commit]
        # A broker that has answered for this transaction remembers nothing older. Where epochs
        # cannot be raised, nothing can be proven. That there is no such transaction, any broker
        # may remember.
        return (
            identity.must_bump_from_client
            and (code == ErrorCode.INVALID_TXN_STATE or identity.may_have_ended(outcome))
            and not self._actions.has_begun_at(self.asked)
        )

    def _handle_proof(self, response: InitProducerIdResponse) -> None:
        """Believe the end that the same broker has told, if it could write the next epoch."""
        was_commit, code = bool(self._unproven), response.error_code
        verdict = verdicts.INIT_PRODUCER_ID.judge(code)
        if verdict.action is Action.COMPLETE:
            self._unproven = None
            self._end(
                ProducerIdAndEpoch(response.producer_id, response.producer_epoch), was_commit
            )
        elif code in LATER_IDENTITY and not self._lost_commits and not self._actions.is_shared:
            # No commit can have succeeded, so it is aborted, perhaps by the other identity. The
            # bump that is due is refused likewise. (A commit is in doubt: the broker may have
            # become the coordinator again since its word, and the other identity, or this one's
            # proof, have aborted the transaction. So is an abort, if a lease was given.)
            self._unproven = None
            self._actions.identity.require_epoch_bump()
            self._end(ProducerIdAndEpoch.NONE, was_commit)
        elif code in NEW_TERM:
            self._unproven = None
            self._forget(code)
            self._execute(verdict, None)
        elif verdict.action.is_retry or code == ErrorCode.TRANSACTION_ABORTABLE:
            self._retry(looks_up=verdict.action is Action.LOOK_UP)
        else:
            self.fatal_error(verdicts.INIT_PRODUCER_ID.error(verdict, code) or KafkaError())

    def _goes_on(self, verdict: Verdict, code: int, was_commit: bool) -> bool:
        """Return whether a given-up commit has another question for the coordinator."""
        if was_commit:
            # After a refused commit the abort is next, unless that was refused before.
            is_refused = verdict.action in _REFUSED or code == ErrorCode.INVALID_TXN_STATE
            return is_refused and not self.is_commit
        if code == ErrorCode.INVALID_TXN_STATE and self._lost_commits:
            # The lost commit was executed: it is repeated once more, for its answer.
            self.is_commit = True
            return True
        return False

    def _end(self, producer: ProducerIdAndEpoch, was_commit: bool) -> None:
        self._outcome = _OUTCOMES[was_commit]
        if self._actions.has_begun_elsewhere(self.asked):
            # That broker may remember the transaction as open, and answer the next one's begin
            # under the same epoch without having written it (v1).
            self._actions.identity.require_epoch_bump()
        if self._lost_commits and (not was_commit or self._has_lost_abort):
            # With v1 the lost commit could still arrive during the next transaction, and end it.
            self._actions.identity.require_epoch_bump()
            if self._actions.identity.may_begin_again:
                self._outcome = "unknown"
        # The outcome is decided: a failure after this must not call it unknown again.
        self._lost_commits = 0
        self._ended(producer)

    def _ended(self, producer: ProducerIdAndEpoch) -> None:
        self._actions.transaction_ended(
            producer, self.result, self.complete_operation, self._outcome
        )

    def fail(self, error: KafkaError) -> None:
        """Fail the caller, with CommitOutcomeUnknownError if a commit may have been executed."""
        if self.may_be_committed:
            unknown = CommitOutcomeUnknownError(
                f"the commit was sent, and its answer was lost: {error}"
            )
            unknown.__cause__ = error
            error = unknown
        # The caller of the commit that was given up waits as well.
        if self._given_up is not None:
            self._given_up.fail(error)
        self.result.fail(error)
