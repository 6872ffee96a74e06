"""Excuses for the failures of a producer after the faults have ended.

Why it exists: a core that gives up at the first refusal loses no record and tears no transaction.
It is safe, and of no use. Owns: the excuses for a failure of a calm producer (one that was made
after the faults ended, without another producer with its id). Must not know: the core, the faults.

A few mild events remain: moves of leaders and coordinators, a few lost connections, and appends
and log writes that are refused for a moment. A producer can repeat all of this, and has the time
for it. So a failure needs one of these excuses:
* a record that is too large or invalid (its batch fails with it), or that waited too long for
  memory or for a missing topic; in a transaction other failures follow from this one, but the
  abort must succeed and the producer must continue
* offsets that the application sent twice with different numbers, with a lost answer: a late copy
  of the first request could overwrite the second
* a call that the application gave up or interrupted; the outcome is unknown only if an answer was
  also lost and the transaction was not aborted (with transactions v1, a late request may have
  begun the transaction that the abort ended; in a leased transaction it may be a participant's
  request, and the producer does not know of its lost answers)
* with transactions v1, a leased transaction that ended while a participant's request was in
  flight: the request begins a transaction under the same epoch, and aborting that one fences the
  producer
* on a cluster that cannot raise epochs: a lost answer, even if it only said that the leader had
  moved, before the record failed through its own fault; and a record of an idempotent producer in
  doubt, since such brokers answer UNKNOWN_PRODUCER_ID for a producer from which they have written
  nothing yet
* records of an idempotent producer after one that failed through its own fault, if an answer left
  open whether they are written: they cannot get other numbers
* a lost answer to the request for the last epoch: a broker answers the repeated request with
  UNKNOWN_SERVER_ERROR, and a producer that must not fence another one needs the answer
* two lost answers to the request after the last epoch: a broker gives the new producer id once
  more, and takes a third request for that of a fenced producer
  (`integration/conformance/cases/last_epochs.py`)
* a lost answer to a request for the next epoch, and a move of the coordinator after it: the log
  does not say who has got that epoch, so the repeated request counts as a fenced producer's; and
  if the request was the proof of a commit (with transactions v1), the outcome is unknown
* a partition that has forgotten a producer which was idle for too long: for the producer this
  looks like lost records, and records in doubt cannot get their sequences any more
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from txnproducer.errors import (
    CommitOutcomeUnknownError,
    ErrorCode,
    KafkaError,
    OutOfOrderSequenceError,
    ProducerFencedError,
    UnknownProducerIdError,
)
from txnproducer.records import ProducerIdAndEpoch
from txnproducer.sim.world.history import LAST_EPOCH, Attempt, History, SentRecord
from txnproducer.sim.world.options import SimOptions

# Clusters with an older version of InitProducerId cannot raise epochs. After a lost answer a new
# producer is needed.
CAN_BUMP = 3
# After this many unanswered requests beyond the last epoch, the next one is fenced.
FENCED_AFTER = 2
_PASSING = ("abort", "resume", "fix")


def unexcused(
    attempts: Iterable[Attempt],
    history: History,
    options: SimOptions,
    outcomes: Mapping[str, bool | None],
    is_asker_forgotten: Callable[[ProducerIdAndEpoch], bool],
) -> Iterator[str]:
    """Yield the failures of calm producers that have no excuse.

    Args:
        attempts: the attempts to judge.
        history: knows the producers that lost requests with a connection, and the records in
            doubt.
        options: the options of the run.
        outcomes: whether each transaction is visible, by its name; None if nothing shows it.
        is_asker_forgotten: see `World`.
    """
    can_bump = options.cluster.init_producer_id_version >= CAN_BUMP
    shaken = history.shaken
    raced: set[tuple[str, int]] = set()
    calm = [
        attempt
        for attempt in attempts
        # On a cluster that cannot raise epochs a lost answer may be the end of a producer.
        if attempt.is_calm and not attempt.is_crashed and (can_bump or _who(attempt) not in shaken)
    ]
    for attempt in calm:
        if attempt.owner is not None:
            is_shaken = _who(attempt) in shaken
            is_v1 = options.cluster.transaction_version == 1
            # With v2 a transaction that was aborted leaves no doubt: its end raised the epoch.
            is_open = outcomes[attempt.name] is not False or is_v1
            # The holder does not see which answers its participants have lost.
            may_be_late = is_shaken or (attempt.is_leased and is_v1)
            is_doubtful = may_be_late and is_open if can_bump else True
            # A late copy of the first offsets could be written after the second ones.
            is_undone = is_shaken and bool(attempt.earlier_offsets)
            is_faulty = (
                _has_own_fault(attempt)
                or _is_forgotten(attempt)
                or _is_forgotten_in_doubt(attempt, history)
                or is_undone
            )
            is_stuck = not can_bump and (
                _is_in_doubt(attempt, history) or _is_forgotten_in_doubt(attempt, history)
            )
            # Without a new epoch only a new producer gets rid of records in doubt.
            passing = (*_PASSING, "restart") if is_stuck else _PASSING
            if is_v1 and attempt.is_leased and attempt.has_stragglers:
                # For all later transactions of this producer: the fence may show only when the
                # next one begins.
                raced.add(_who(attempt))
            yield from _of_transaction(
                attempt,
                passing if is_faulty else (),
                is_doubtful=is_doubtful,
                is_raced=_who(attempt) in raced,
                inits_in_doubt=history.inits_in_doubt[attempt.identity],
                is_asker_forgotten=is_asker_forgotten(attempt.identity),
                is_proof_forgotten=is_v1 and is_asker_forgotten(attempt.identity),
            )
        # A fault of its own can leave records after it in doubt, which cannot get other numbers.
        elif not _has_own_fault(attempt):
            for record in attempt.records:
                error, at = _error_of(record), (attempt.name, record.place)
                # By partition: doubt in one of them says nothing of the others' records.
                is_excused = not can_bump and at in history.doubtful_at
                if error is not None and not is_excused:
                    yield f"{record.value!r}: {error}"


def _who(attempt: Attempt) -> tuple[str, int]:
    return attempt.owner_process, attempt.incarnation


def _of_transaction(
    attempt: Attempt,
    passing: Collection[str],
    *,
    is_doubtful: bool,
    is_raced: bool,
    inits_in_doubt: int,
    is_asker_forgotten: bool,
    is_proof_forgotten: bool,
) -> Iterator[str]:
    told = [*attempt.errors, *([attempt.abort_error] if attempt.abort_error else [])]
    for error in told:
        if isinstance(error, CommitOutcomeUnknownError):
            # The application gave up and an answer was lost, or on an old cluster a copy can come
            # late.
            # Or the proof has no answer, and the new coordinator does not know whose epoch it is.
            is_excused = (is_doubtful and attempt.has_timed_out) or is_proof_forgotten
        elif is_raced and isinstance(error, ProducerFencedError):
            is_excused = True  # when it aborts or begins the next transaction
        elif is_asker_forgotten and isinstance(error, ProducerFencedError):
            is_excused = True  # by the coordinator that took the id over
        elif _is_refused_an_epoch(attempt, error, inits_in_doubt):
            is_excused = True
        elif error is attempt.abort_error:
            is_excused = attempt.has_given_up
        elif passing:
            # The transaction fails through its own fault, and the producer continues.
            is_excused = error.recovery in passing
        else:
            is_excused = attempt.has_given_up
        if not is_excused:
            yield f"{attempt.name}: {type(error).__name__} ({error.recovery}): {error}"


def _is_refused_an_epoch(attempt: Attempt, error: KafkaError, inits_in_doubt: int) -> bool:
    """Return whether a request for an epoch was refused after lost answers at the last epochs."""
    epoch = attempt.identity.producer_epoch
    if epoch == LAST_EPOCH:
        return inits_in_doubt >= FENCED_AFTER and isinstance(error, ProducerFencedError)
    # By its text, so that no other error at these epochs is excused with it.
    refusal = f"InitProducerId was answered {ErrorCode.UNKNOWN_SERVER_ERROR.name}"
    return epoch == LAST_EPOCH - 1 and inits_in_doubt > 0 and refusal in str(error)


def _is_forgotten(attempt: Attempt) -> bool:
    # The partition may know only a later marker of a producer that it forgot.
    return any(
        isinstance(_error_of(record), UnknownProducerIdError | OutOfOrderSequenceError)
        and record.place in attempt.forgotten_at
        for record in attempt.records
    )


def _is_forgotten_in_doubt(attempt: Attempt, history: History) -> bool:
    # The sequences begin at 0 again, so records in doubt cannot be sent under theirs.
    places = {(attempt.name, record.place) for record in attempt.records}
    return bool(places & history.forgotten_at & history.doubtful_at)


def _error_of(record: SentRecord) -> KafkaError | None:
    future = record.future
    return future.error if future is not None and future.done() else None


def _is_in_doubt(attempt: Attempt, history: History) -> bool:
    """Return whether it had a fault of its own, and an answer that left its records in doubt."""
    return _has_own_fault(attempt) and attempt.name in history.doubtful


def _has_own_fault(attempt: Attempt) -> bool:
    return attempt.is_mistaken or any(record.has_timed_out for record in attempt.records)
