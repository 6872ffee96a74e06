"""EndTxn: the one request whose answer decides over a transaction.

Owns: `EndTxnHandler`; what is known of the outcome while answers are missing. Must not know: the
queue, the state machine.

A commit that was sent and got no answer may have been carried out, or not, or may still be on its
way. As long as it is only repeated, that does no harm: the coordinator answers a repeated commit
as the first. It matters in two cases:

* The producer ends before the answer comes, or the answer to the repetition is a refusal. Then
  nobody may say "not committed": whoever waits gets `CommitOutcomeUnknownError`. Without a lost
  attempt a refusal is certain.
* The application wants to abort. The handler turns into an abort of the same transaction, and the
  coordinator's answer to that tells the outcome. NONE: aborted, and the lost commit can't succeed
  any more. INVALID_TXN_STATE: only a transaction that was committed answers its abort like that.
  So the commit is repeated once more, for its answer (with transactions v2 the next epoch is in
  it), and the abort call is told that it came too late. With transactions v1 NONE proves nothing
  if a lost AddPartitionsToTxn or AddOffsetsToTxn may have come late: it begins another transaction
  behind the committed one, and the abort ends that.
"""

from __future__ import annotations

from txnproducer._core.transactions import verdicts
from txnproducer._core.transactions.commit_evidence import ResolvedOutcome
from txnproducer._core.transactions.handler import (
    Priority,
    TransactionActions,
    TxnRequestHandler,
    may_be_carried_out,
)
from txnproducer._core.transactions.result import TransactionalRequestResult
from txnproducer._core.transactions.verdicts import Action, Verdict
from txnproducer._protocol.events import ResponseFailure
from txnproducer._protocol.messages import EndTxnRequest, EndTxnResponse
from txnproducer.errors import (
    CommitOutcomeUnknownError,
    ErrorCode,
    IllegalStateError,
    KafkaError,
    TransactionAbortedError,
)
from txnproducer.records import ProducerIdAndEpoch

_REFUSED = (Action.ABORTABLE, Action.BUMP_OR_FATAL)


class EndTxnHandler(TxnRequestHandler):
    """EndTxn (key 26), v0-v4 with transactions v1, v5 with v2.

    Behavior:
    * Commits or aborts the ongoing transaction; must be the last request of it.
    * v5 answers with the producer id and epoch of the next transaction (KIP-890).
    * Goes out under the identity, and the version, that the transaction was begun with.

    Retries: every retriable code; a lost coordinator is looked up again.
    """

    priority = Priority.END_TXN
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
        self._producer = actions.producer_id_and_epoch
        self._is_commit_on_wire = False
        self._lost_commits = 0
        self._given_up: TransactionalRequestResult | None = None
        self._outcome: ResolvedOutcome = "committed" if is_commit else "aborted"

    @property
    def may_be_committed(self) -> bool:
        """Whether a commit was sent of which nobody knows what became."""
        return self._is_commit_on_wire or self._lost_commits > 0

    def turn_into_abort(self, result: TransactionalRequestResult) -> None:
        """Abort what was to be committed.

        Args:
            result: of the abort; the commit's own result ends when the outcome is known.
        """
        self._given_up = self.result
        self.result = result
        self.is_commit = False

    def inherit(self, failed: EndTxnHandler) -> None:
        """Abort a transaction whose commit has failed with its outcome unknown."""
        self._lost_commits = failed._lost_commits
        self._given_up = failed.result

    def skip(self) -> None:
        """End a transaction that the coordinator does not know."""
        self._outcome = "committed" if self.is_commit else "aborted"
        self._ended(ProducerIdAndEpoch.NONE)

    def complete_operation(self) -> None:
        """Tell whoever waits, now that the transaction and all that follows it has ended."""
        given_up = self._given_up
        if given_up is None:
            self.result.done()
        elif self._outcome == "unknown":
            unknown = CommitOutcomeUnknownError(
                "the commit was sent, and its answer is lost; an abort was carried out, but"
                " perhaps of what a delayed request of this producer began behind the commit"
            )
            given_up.fail(unknown)
            self.result.fail(unknown)
        elif self._outcome == "committed":
            given_up.done()
            self.result.fail(
                IllegalStateError(
                    "the transaction could not be aborted: the commit that had timed out was"
                    " carried out, all of it is visible; go on with the next transaction"
                )
            )
        else:
            given_up.fail(TransactionAbortedError("the commit was given up by abort_transaction"))
            self.result.done()

    def _build(self) -> EndTxnRequest:
        self._is_commit_on_wire = self.is_commit
        return EndTxnRequest(
            self.coordinator_key,
            self._producer.producer_id,
            self._producer.producer_epoch,
            self.is_commit,
            self.is_transaction_v2_enabled,
        )

    def on_failure(self, failure: ResponseFailure, error: KafkaError | None) -> None:
        """Take in that there is no answer; a commit may have been carried out all the same."""
        was_commit, self._is_commit_on_wire = self._is_commit_on_wire, False
        if was_commit and failure.was_sent:
            self._lost_commits += 1
        super().on_failure(failure, error)

    def _handle(self, response: EndTxnResponse) -> None:
        was_commit = self._is_commit_on_wire
        self._is_commit_on_wire = False
        table = verdicts.END_TXN_COMMIT if was_commit else verdicts.END_TXN_ABORT
        code = response.error_code
        verdict = table.judge(code)
        if was_commit and may_be_carried_out(verdict, code):
            self._lost_commits += 1
        is_in_doubt = self._actions.may_have_begun and not was_commit
        is_ended = verdict.action is Action.COMPLETE
        if is_in_doubt and (is_ended or code == ErrorCode.INVALID_TXN_STATE):
            # What could have begun the transaction did not: there is nothing to abort (with v1 a
            # coordinator says that as well by telling how the one before ended). What its log may
            # have kept for the next one to load is of an old epoch then. (Where epochs cannot be
            # raised it would time out, and fence this producer. That is rarer, and no worse, than
            # to refuse the next begin.)
            self._actions.identity.require_epoch_bump()
            self._end(response, was_commit)
        elif is_ended:
            self._end(response, was_commit)
        elif self._given_up is not None and self._goes_on(verdict, code, was_commit):
            self._actions.requests.retry(self)
        elif self._given_up is not None and self.is_commit and verdict.action in _REFUSED:
            self.fatal_error(
                KafkaError(
                    "the coordinator refuses the commit, which may have been carried out, and the"
                    f" abort as well: {table.error(verdict, code)}"
                )
            )
        else:
            self._carry_out(verdict, table.error(verdict, code))

    def _goes_on(self, verdict: Verdict, code: int, was_commit: bool) -> bool:
        """Return whether a given-up commit has another question for the coordinator."""
        if was_commit:
            # The commit was refused, so the abort's turn has come, unless that was refused before.
            is_refused = verdict.action in _REFUSED or code == ErrorCode.INVALID_TXN_STATE
            return is_refused and not self.is_commit
        if code == ErrorCode.INVALID_TXN_STATE and self._lost_commits:
            self.is_commit = True
            return True
        return False

    def _end(self, response: EndTxnResponse, was_commit: bool) -> None:
        self._outcome = "committed" if was_commit else "aborted"
        if not was_commit and self._lost_commits:
            # With v1 the lost commit could still arrive, in the midst of the next transaction.
            self._actions.identity.require_epoch_bump()
            if self._actions.identity.may_begin_again:
                self._outcome = "unknown"
        self._lost_commits = 0
        self._ended(ProducerIdAndEpoch(response.producer_id, response.producer_epoch))

    def _ended(self, producer: ProducerIdAndEpoch) -> None:
        self._actions.transaction_ended(
            producer, self.result, self.complete_operation, self._outcome
        )

    def fail(self, error: KafkaError) -> None:
        """Fail for whoever waits; not known is what it says where it is not known."""
        if self.may_be_committed:
            unknown = CommitOutcomeUnknownError(
                f"the commit was sent, and its answer is lost: {error}"
            )
            unknown.__cause__ = error
            error = unknown
        if self._given_up is not None:
            self._given_up.fail(error)
        self.result.fail(error)
