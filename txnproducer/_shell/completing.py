"""How a prepared transaction ended: the judgement where EndTxn gives no clear answer.

Why it exists: another process may have completed the transaction before, and a newer producer of
the id may have begun others since. The coordinator then refuses, whatever has happened.
Owns: the new token, the reading of the entry, the texts of what follows. Must not know: how a
transaction is ended, connections.

The entry is an offset of the group `__txn.<transactional id>`, written in the transaction itself.
So it is there only if the transaction was committed:

* It is this transaction's own: committed.
* It is a later one's, which has replaced any earlier entry: not known.
* It is an earlier one's: not committed, since this one would have replaced it.
* There is none: not committed, unless the transaction is so old that the entry may have expired.

Numbers grow: each is above the latest entry, which is read once the id is initialized. Each is the
time in milliseconds as well, if that is more. So numbers do not begin again below those of old
tokens once all entries have expired.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Final, Protocol

from txnproducer._core.producer_core import ProducerCore
from txnproducer._protocol.messages import TransactionDescription
from txnproducer._sync.held_logs import held_logger
from txnproducer.errors import (
    ClaimRefusedError,
    CommitOutcomeUnknownError,
    IllegalStateError,
    KafkaError,
    KafkaTimeoutError,
    TransactionAbortedError,
    UnstableOffsetCommitError,
    UnsupportedVersionError,
)
from txnproducer.prepared import Completion, PreparedTransaction, Stored, StoredDecision
from txnproducer.records import OffsetAndMetadata, TopicPartition

__all__ = [
    "NO_TIMEOUT_MS",
    "Questions",
    "check_decision",
    "check_id",
    "end_stored",
    "held",
    "is_clear",
    "new_token",
    "newest",
    "refuse_other_end",
    "stored_entry",
    "told_by_end",
    "told_by_entry",
    "warn_of_timeout",
]

_LOG = held_logger(__name__)

# A transaction with this time-out is never aborted by the coordinator: it counts as a part of a
# two-phase commit (KIP-939).
NO_TIMEOUT_MS: Final = 2**31 - 1
# How long an entry is certain to stay where the brokers do not tell `offsets.retention.minutes`,
# and how far the clocks of two machines may differ.
_SHORT_MS: Final = 10 * 60_000


class Questions(Protocol):
    """The questions that are put to the cluster."""

    def ask_entries(
        self, group: str, place: TopicPartition | None, *, waits: bool
    ) -> Mapping[TopicPartition, OffsetAndMetadata]:
        """Return the committed entries of a group, by place.

        Args:
            group: its id.
            place: the only place to look at; None for all of them.
            waits: whether to wait until no transaction with an entry there is open.

        Raises:
            UnstableOffsetCommitError: one stayed open for all of the time.
            KafkaError: the cluster refused, or did not answer.
        """
        ...

    def ask_setting(self, name: str) -> str | None:
        """Return a setting of the brokers, or None if they do not tell it."""
        ...


# --- a transaction is prepared -------------------------------------------------------------------


def new_token(
    core: ProducerCore,
    offsets_place: TopicPartition | None,
    timeout_ms: int,
    now_ms: int,
    wall_clock_ms: int,
) -> PreparedTransaction:
    """Return the token of the open transaction, with the number 0. Call with the lock held.

    Args:
        core: of the producer.
        offsets_place: a partition whose offset was sent in the transaction, or None.
        timeout_ms: of the transaction.
        now_ms: the time by the core's clock.
        wall_clock_ms: the time in milliseconds since the epoch.

    Raises:
        IllegalStateError: no transaction is open, or nothing was sent in it.
        KafkaError: the transaction has failed, or the producer.
    """
    manager = core.transaction_to_prepare()
    if not manager.identity.is_transaction_v2_enabled:
        raise UnsupportedVersionError(
            f"{manager.name}: prepare_transaction() needs transactions v2 (Kafka 4.0 and newer,"
            " transaction.version=2). With v1 the epoch stays, so that a late request about this"
            " transaction could end a later one. Abort it"
        )
    progress, identity = manager.progress, manager.identity
    place = min(progress.open.partitions, default=offsets_place)
    if place is None:
        raise IllegalStateError(
            f"{manager.name}: prepare_transaction() of a transaction in which nothing was sent:"
            " abort it, and let the other system commit alone"
        )
    begun_ms = progress.open.started_ms
    left_ms = timeout_ms - (0 if begun_ms is None else now_ms - begun_ms)
    return PreparedTransaction(
        manager.transactional_id or "",
        identity.producer_id_and_epoch,
        2 if identity.is_transaction_v2_enabled else 1,
        core.cluster_id or "",
        place,
        0,
        None if timeout_ms == NO_TIMEOUT_MS else wall_clock_ms + left_ms,
    )


def newest(entries: Mapping[TopicPartition, OffsetAndMetadata]) -> int:
    """Return the number of the newest of a group's entries, or 0 if there is none."""
    return max((each.offset for each in entries.values()), default=0)


def stored_entry(prepared: PreparedTransaction) -> OffsetAndMetadata:
    """Return the entry of a transaction."""
    producer = prepared.producer
    # Two producers may choose one number, if the first of them was fenced.
    return OffsetAndMetadata(prepared.number, f"{producer.producer_id}:{producer.producer_epoch}")


def warn_of_timeout(
    prepared: PreparedTransaction, timeout_ms: int, longest: Callable[[], str | None]
) -> None:
    """Log that the coordinator aborts prepared transactions after a while, if it does.

    Args:
        prepared: one of them.
        timeout_ms: of the transactions.
        longest: returns the brokers' limit, or None if it is not known.
    """
    if timeout_ms == NO_TIMEOUT_MS:
        return
    limit = longest()
    # A limit that only the brokers' owner can raise is no mistake of this program.
    level = logging.INFO if limit == str(timeout_ms) else logging.WARNING
    _LOG.log(
        level,
        "transactional id %r: a prepared transaction is aborted after %g s, also if the other"
        " system has decided to commit. transaction_timeout_ms=%d lets it wait for ever, if"
        " transaction.max.timeout.ms of the brokers allows it (it is %s)",
        prepared.transactional_id,
        timeout_ms / 1000,
        NO_TIMEOUT_MS,
        limit or "not known",
    )


def held(found: Stored | AbstractContextManager[Stored]) -> AbstractContextManager[Stored]:
    """Return the result of a recovery as a context manager."""
    return found if isinstance(found, AbstractContextManager) else nullcontext(found)


def end_stored(found: Stored, complete: Callable[..., Completion]) -> None:
    """Complete a stored transaction, and note its outcome.

    Raises:
        TypeError: it is no token with a decision.
        TransactionAbortedError, CommitOutcomeUnknownError, IllegalStateError: see
            `refuse_other_end`.
    """
    if found is None:
        return
    if not isinstance(found, tuple) or len(found) not in (2, 3):
        raise TypeError(
            f"recover() returned {found!r:.60}: it must return (token, commit), a StoredDecision,"
            " or None"
        )
    stored = StoredDecision(*found)
    token = PreparedTransaction.of(stored.prepared)
    outcome = complete(token, commit=stored.commit)
    is_dealt_with = stored.completed is not None and stored.completed(outcome) is True
    if not is_dealt_with:
        refuse_other_end(token, outcome, commit=stored.commit)


# --- a transaction is completed ------------------------------------------------------------------


def is_clear(error: KafkaError) -> bool:
    """Return whether an end has failed so that nothing is known about the transaction yet.

    Then the same call can be made again, once its reason is mended.
    """
    is_mistake = isinstance(error, ClaimRefusedError | IllegalStateError)
    return is_mistake or error.recovery in ("resume", "fix")


def check_decision(commit: bool) -> None:
    """Refuse a decision that is not a bool: "abort" is true, and would commit.

    Raises:
        TypeError: it is none.
    """
    if not isinstance(commit, bool):
        raise TypeError(f"the decision (commit) must be True or False, not {commit!r:.40}")


def told_by_end(*, is_committed: bool, commit: bool) -> Completion:
    """Return the outcome of a transaction that was ended here, as decided or otherwise."""
    if is_committed:
        return "committed"
    return "lost" if commit else "aborted"


def check_id(prepared: PreparedTransaction, transactional_id: str | None) -> None:
    """Refuse another id's transaction.

    Raises:
        ValueError: it is one.
    """
    if prepared.transactional_id != transactional_id:
        raise ValueError(
            f"a producer with transactional_id={transactional_id!r} cannot complete the prepared"
            f" transaction {prepared}: they need one id"
        )


def told_by_entry(
    prepared: PreparedTransaction,
    questions: Questions,
    describe: Callable[[], TransactionDescription | None],
    now_ms: int,
    *,
    commit: bool,
) -> Completion:
    """Return how a transaction ended, after the coordinator has refused to end it.

    Args:
        prepared: its token.
        questions: ask the cluster.
        describe: returns the coordinator's description of the id, or None if there is none.
        now_ms: the time in milliseconds since the epoch.
        commit: the end that was refused.

    Raises:
        KafkaTimeoutError: the transaction is still open, or the cluster does not answer.
        KafkaError: the cluster refuses to answer.
    """
    entry = _ask(prepared, questions, waits=False)
    if not _is_own(prepared, entry):
        # The next transaction of the id begins when this one is over, with its entry if it was
        # committed. The next one may be open for long, and is not waited for.
        is_over = _is_followed(prepared, describe())
        entry = _ask(prepared, questions, waits=not is_over)
    if _is_own(prepared, entry):
        return "committed"
    if entry is None:
        is_known = not _may_have_expired(prepared, questions, now_ms)
    else:
        is_known = entry.offset <= prepared.number
    if not is_known:
        return "unknown"
    return "lost" if commit else "aborted"


def _ask(
    prepared: PreparedTransaction, questions: Questions, *, waits: bool
) -> OffsetAndMetadata | None:
    try:
        entries = questions.ask_entries(prepared.group, prepared.place, waits=waits)
    except UnstableOffsetCommitError as error:
        raise KafkaTimeoutError(
            f"complete(): the prepared transaction {prepared}, or a later one of its id, is still"
            " open: call complete() again"
        ) from error
    return entries.get(prepared.place)


def _is_own(prepared: PreparedTransaction, entry: OffsetAndMetadata | None) -> bool:
    # Without the leader's epoch, which the broker may add.
    own = stored_entry(prepared)
    return entry is not None and (entry.offset, entry.metadata) == (own.offset, own.metadata)


def _is_followed(
    prepared: PreparedTransaction, description: TransactionDescription | None
) -> bool:
    """Return whether another transaction of the id is open, so that this one has ended."""
    if description is None or description.state != "Ongoing":
        return False
    if description.producer_id != prepared.producer.producer_id:
        return True
    # The next epoch alone proves nothing. A fence raises it in the coordinator's memory before the
    # abort is written, and if that fails this transaction may go on under its own epoch.
    return description.producer_epoch > prepared.producer.producer_epoch + 1


def _may_have_expired(prepared: PreparedTransaction, questions: Questions, now_ms: int) -> bool:
    # The number is the time at which the transaction was prepared, or a little later.
    age_ms = now_ms - prepared.number
    minutes = questions.ask_setting("offsets.retention.minutes")
    # Half of it, since the clocks of two machines may differ. A number that lies in the future
    # says nothing about an age.
    longest_ms = _SHORT_MS if minutes is None else int(minutes) * 60_000 // 2
    return not -_SHORT_MS <= age_ms <= longest_ms


def refuse_other_end(prepared: PreparedTransaction, outcome: Completion, *, commit: bool) -> None:
    """Raise if a recovered transaction has not ended as it was decided.

    Raises:
        TransactionAbortedError: it should be committed, and is aborted.
        CommitOutcomeUnknownError: its outcome is not known.
        IllegalStateError: it should be aborted, and is committed.
    """
    name = f"the prepared transaction {prepared}"
    if outcome == "lost":
        raise TransactionAbortedError(
            f"{name} was decided to be committed, and is aborted: its time-out"
            " (transaction_timeout_ms) has ended it, or a producer that was initialized without a"
            " recovery. Nothing of it is visible. Write its records again, and drop its token",
            recovery="fix",
        )
    if outcome == "unknown":
        raise CommitOutcomeUnknownError(
            f"the outcome of {name} is not known: its entry has expired or was replaced. Look for"
            " its records, and then drop its token"
        )
    if outcome == "committed" and not commit:
        raise IllegalStateError(
            f"{name} was decided to be aborted, and is committed: two parties have decided about"
            " one transaction. Drop its token"
        )
