"""When all is well, a producer fails only for what its own application did.

Why it exists: a core that gives up at the first refusal loses no record and tears no transaction.
It is safe, and of no use. Owns: what excuses a failure of a calm producer (one that was made after
the healing, with nobody beside it under its id). Must not know: the core, the faults.

What is left to go wrong then are moves of leaders and coordinators, a few lost connections, and
appends and log writes that are refused for the moment: all of it can be repeated, and time enough
is given. So a failure needs an excuse:
* a record that is too large, or invalid (with those of its batch), or waited in vain for memory or
  for a topic that does not exist; in a transaction the rest follows from one of them, but the
  abort has to succeed, and the producer to go on
* offsets that its application sent again with other numbers, after a lost answer: a late copy of
  the first could overwrite the second
* a call that its application gave up, or interrupted; the outcome is unknown only if an answer was
  lost besides, and the transaction not aborted (with transactions v1 what the abort ended may have
  been begun by a late request, and one that was leased by that of a participant, of whose lost
  answers its producer does not know)
* with transactions v1 a leased transaction that was ended while a participant's request was on its
  way: what that begins under the same epoch is aborted by a new one, which fences the producer
* on a cluster that cannot raise epochs: a lost answer, also one that only said that the leader had
  moved, before the record failed for its own fault; and an idempotent producer's record in doubt,
  since brokers of that age call a producer unknown of which they were told to write nothing yet
* an idempotent producer's records behind one that failed for its own fault, if an answer left open
  whether they are written: they cannot get other numbers
* a lost answer to the request for the last epoch: a broker that is asked again gives
  UNKNOWN_SERVER_ERROR, and a producer that must not fence another one cannot do without
* two lost answers to the request behind the last epoch: a broker gives the new producer id once
  more, and then takes whoever asks for a fenced producer
  (`integration/conformance/cases/last_epochs.py`)
* a partition that has forgotten a producer which was idle for too long: the producer cannot tell
  that from lost records, and has no place any more for what is in doubt
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from txnproducer.errors import (
    CommitOutcomeUnknownError,
    ErrorCode,
    KafkaError,
    OutOfOrderSequenceError,
    ProducerFencedError,
    UnknownProducerIdError,
)
from txnproducer.sim.world.history import Attempt, History, SentRecord
from txnproducer.sim.world.options import SimOptions

# Below this version of InitProducerId a cluster cannot raise epochs: after a lost answer a new
# producer is needed.
CAN_BUMP = 3
# The last one that a client may get.
LAST_EPOCH = 2**15 - 2
# So often it may have been given a new producer id behind that one; whoever asks again is fenced.
FENCED_AFTER = 2
_PASSING = ("abort", "resume", "fix")


def unexcused(
    attempts: Iterable[Attempt],
    history: History,
    options: SimOptions,
    outcomes: Mapping[str, bool | None],
) -> Iterator[str]:
    """Yield what calm producers failed with for no reason of their own.

    Args:
        attempts: all that is to be judged.
        history: knows the producers that lost requests with a connection, and what was in doubt.
        options: of the run.
        outcomes: whether a transaction is visible, by its name; None where nothing shows it.
    """
    can_bump = options.cluster.init_producer_id_version >= CAN_BUMP
    shaken = history.shaken
    raced: set[tuple[str, int]] = set()
    calm = [
        attempt
        for attempt in attempts
        if attempt.is_calm and not attempt.is_crashed and (can_bump or _who(attempt) not in shaken)
    ]
    for attempt in calm:
        if attempt.owner is not None:
            is_shaken = _who(attempt) in shaken
            is_v1 = options.cluster.transaction_version == 1
            is_open = outcomes[attempt.name] is not False or is_v1
            may_be_late = is_shaken or (attempt.is_leased and is_v1)
            is_doubtful = may_be_late and is_open if can_bump else True
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
            passing = (*_PASSING, "restart") if is_stuck else _PASSING
            if is_v1 and attempt.is_leased and attempt.has_stragglers:
                raced.add(_who(attempt))
            yield from _of_transaction(
                attempt,
                passing if is_faulty else (),
                is_doubtful=is_doubtful,
                is_raced=_who(attempt) in raced,
                inits_in_doubt=history.inits_in_doubt[attempt.identity],
            )
        elif not _has_own_fault(attempt):
            for record in attempt.records:
                error, at = _error_of(record), (attempt.name, record.place)
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
) -> Iterator[str]:
    told = [*attempt.errors, *([attempt.abort_error] if attempt.abort_error else [])]
    for error in told:
        if isinstance(error, CommitOutcomeUnknownError):
            # Given up, and its answer lost, or the cluster can't rule out that a copy comes late.
            is_excused = is_doubtful and attempt.has_timed_out
        elif is_raced and isinstance(error, ProducerFencedError):
            is_excused = True  # when it aborts, or begins the next one
        elif _is_refused_an_epoch(attempt, error, inits_in_doubt):
            is_excused = True
        elif error is attempt.abort_error:
            is_excused = attempt.has_given_up
        elif passing:
            # It fails for its own fault, and the producer goes on.
            is_excused = error.recovery in passing
        else:
            is_excused = attempt.has_given_up
        if not is_excused:
            yield f"{attempt.name}: {type(error).__name__} ({error.recovery}): {error}"


def _is_refused_an_epoch(attempt: Attempt, error: KafkaError, inits_in_doubt: int) -> bool:
    """Tell whether it fails since answers were lost where the epochs of a producer id end."""
    epoch = attempt.identity.producer_epoch
    if epoch == LAST_EPOCH:
        return inits_in_doubt >= FENCED_AFTER and isinstance(error, ProducerFencedError)
    refusal = f"InitProducerId was answered {ErrorCode.UNKNOWN_SERVER_ERROR.name}"
    return epoch == LAST_EPOCH - 1 and inits_in_doubt > 0 and refusal in str(error)


def _is_forgotten(attempt: Attempt) -> bool:
    # Of one that was forgotten a later marker may be all that is known.
    return any(
        isinstance(_error_of(record), UnknownProducerIdError | OutOfOrderSequenceError)
        and record.place in attempt.forgotten_at
        for record in attempt.records
    )


def _is_forgotten_in_doubt(attempt: Attempt, history: History) -> bool:
    # The numbers begin at 0 again: what may be written under others has no place any more.
    places = {(attempt.name, record.place) for record in attempt.records}
    return bool(places & history.forgotten_at & history.doubtful_at)


def _error_of(record: SentRecord) -> KafkaError | None:
    future = record.future
    return future.error if future is not None and future.done() else None


def _is_in_doubt(attempt: Attempt, history: History) -> bool:
    """Tell whether it had a fault of its own, and an answer that left open what was written."""
    return _has_own_fault(attempt) and attempt.name in history.doubtful


def _has_own_fault(attempt: Attempt) -> bool:
    return attempt.is_mistaken or any(record.waited_in_vain for record in attempt.records)
