"""The report of `txnproducer send` on its transactions: the closing JSON line, and how to go on.

Owns: the counts, the texts. Must not know: how records are sent.

Rules:
* Transactions that the JSON line calls committed were committed. A transaction whose commit was
  begun, and whose end was not seen, is counted as unknown.
* A transaction is counted as aborted when the coordinator has answered the abort, and as open
  before: its readers wait until then.
* A transaction is counted once, when its outcome is settled. After a failure that is after the
  producer was closed: an abort, and `close` too, may find that a commit has succeeded.
* A run that failed prints how to go on: `--skip` leaves out the committed records, `--run-id` goes
  on with the same ids. If a commit's outcome is unknown, it gives no such advice.
"""

from __future__ import annotations

import json
import signal
import time
from dataclasses import dataclass, field

from txnproducer._core.batches.results import FutureRecordMetadata
from txnproducer.errors import CommitOutcomeUnknownError, KafkaError
from txnproducer.transaction import Transaction

_ENDINGS = {
    "committed": "the open transaction was committed: its commit was already on its way.",
    "aborted": "the open transaction was aborted; what was committed before stays.",
    "open": "the open transaction could not be aborted; the broker does it at its time-out.",
}


def _name(error: BaseException) -> str:
    """Return the name of an error by which a script can choose its next step."""
    if isinstance(error, SystemExit):
        # The handler of the signal raises it, and nothing else does.
        return signal.SIGTERM.name
    named: BaseException | None = error
    # The plain class says only that the transaction has failed.
    while type(named) is KafkaError:
        named = named.__cause__
    return type(named if isinstance(named, KafkaError) else error).__name__


@dataclass
class LastTransaction:
    """The transaction that is not counted yet.

    Attributes:
        size: its number of records when complete.
        is_commit_tried: whether its commit may have been begun.
        abort_failure: why it could not be aborted.
        is_end_seen: whether the end of the producer was seen, so that an abort was answered.
    """

    transaction: Transaction
    size: int
    futures: list[FutureRecordMetadata] = field(default_factory=list)
    is_commit_tried: bool = False
    abort_failure: Exception | None = None
    is_end_seen: bool = True

    @property
    def outcome(self) -> str:
        """The outcome, in the words of the JSON line."""
        outcome = self.transaction.outcome
        if outcome == "aborted" and not self.is_end_seen:
            return "open"  # to the coordinator
        return "unknown" if outcome == "open" and self.is_commit_tried else outcome


@dataclass
class Report:
    """The state of the records so far."""

    topic: str
    transactional_id: str
    run_id: str
    skipped: int = 0
    taken: int = 0  # from the source
    records: int = 0
    transactions: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("committed", "aborted", "open", "unknown"), 0)
    )
    partitions: dict[str, list[int]] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)
    last: LastTransaction | None = None
    ending: str = "no transaction was open; what was committed before stays."

    def count_last(self, *, has_failed: bool = False) -> None:
        """Count the last transaction, and its records unless they have to be sent again."""
        last = self.last
        if last is None:
            return
        outcome = last.outcome
        if outcome == "committed":
            self._note_offsets(last.futures)
        size = last.size if outcome == "committed" or not has_failed else 0
        # No calls between these lines, so no signal is handled between them.
        self.transactions[outcome] += 1
        self.records += size
        self.last = None

    def break_off(self, error: BaseException) -> CommitOutcomeUnknownError | None:
        """Count the last transaction after a failure, and describe its end.

        Args:
            error: the failure; gets a note.

        Returns:
            The error to raise in its place, if the outcome of a commit is unknown.
        """
        last = self.last
        if last is None:
            return None
        self.count_last(has_failed=True)
        outcome = last.outcome
        if outcome == "unknown":
            return CommitOutcomeUnknownError(self._unknown(last.size, error))
        # A known outcome leaves the error as it is, with a note at most: the exit code follows its
        # class.
        self.ending = _ENDINGS[outcome]
        if outcome == "committed":
            error.add_note("The transaction was committed all the same, and is counted so.")
        elif outcome == "open" and last.abort_failure is not None:
            error.add_note(f"The transaction could not be aborted: {last.abort_failure}")
        return None

    def going_on(self) -> str:
        """Return the options that go on with this run."""
        done = self.skipped + self.records
        return (
            f"The first {done} records are dealt with. To go on, add --skip {done} --run-id"
            f" {self.run_id}; the same command would write them again."
        )

    def line(self, error: BaseException | None) -> str:
        """Return the closing JSON line."""
        seconds = time.monotonic() - self.began
        return json.dumps(
            {
                "topic": self.topic,
                "transactional_id": self.transactional_id,
                "run_id": self.run_id,
                "records": self.records,
                "transactions": self.transactions,
                "partitions": dict(sorted(self.partitions.items())),
                "seconds": round(seconds, 3),
                # An empty run may end within one tick of the clock.
                "records_per_s": round(self.records / seconds) if seconds > 0 else 0,
                # Only its class: its text goes to standard error, and is not printed twice.
                "error": None if error is None else _name(error),
            }
        )

    def _unknown(self, size: int, error: BaseException) -> str:
        done = self.skipped + self.records
        why = str(error) if isinstance(error, Exception) else "interrupted"
        return (
            f"whether records {done + 1} to {done + size} are committed is not known: their commit"
            f" was begun, and its end was not seen ({why.removesuffix('.')}). Look with"
            f" `txnproducer verify` once the topic has no open transaction. If they are in, go on"
            f" with --skip {done + size}, otherwise with --skip {done}; add --run-id"
            f" {self.run_id} to either"
        )

    def _note_offsets(self, futures: list[FutureRecordMetadata]) -> None:
        for future in futures:
            # No time to wait: a committed transaction has the answers for all of its records.
            metadata = future.result(0)
            place = f"{metadata.topic}-{metadata.partition}"
            first_last = self.partitions.setdefault(place, [metadata.offset, metadata.offset])
            first_last[0] = min(first_last[0], metadata.offset)
            first_last[1] = max(first_last[1], metadata.offset)
