"""When all is well, a producer fails only for what its own application did.

Why it exists: a core that gives up at the first refusal loses no record and tears no transaction.
It is safe, and of no use. Owns: what excuses a failure of a calm producer (one that was made after
the healing, with nobody beside it under its id). Must not know: the core, the faults.

What is left to go wrong then are moves of leaders and coordinators, a few lost connections, and
appends that are refused for the moment: all of it can be repeated, and time enough is given. So a
failure needs an excuse:
* a record that is too large, or invalid (with those of its batch), or waited in vain for memory or
  for a topic that does not exist; in a transaction all else follows from one of them
* a call that its application gave up, or interrupted
* an idempotent producer's records that others overtook while the broker did not know the producer,
  and what was renumbered on the wire for that, if its answer is lost
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import MappingProxyType
from typing import Final

from txnproducer.errors import (
    CommitOutcomeUnknownError,
    KafkaError,
    OutOfOrderSequenceError,
)
from txnproducer.sim.history import Attempt, SentRecord
from txnproducer.sim.options import LONGEST_DELIVERY_MS, SimOptions

# What a calm producer is set to: all that goes wrong is over long before.
TIME_ENOUGH: Final = MappingProxyType(
    {
        "delivery_timeout_ms": LONGEST_DELIVERY_MS,
        "transaction_timeout_ms": 60_000,
        "retries": 2**31 - 1,
    }
)
# An older cluster cannot raise epochs, so that after each lost answer a new producer is needed.
_CAN_BUMP = 3


def can_be_calm(options: SimOptions) -> bool:
    """Tell whether the cluster lets producers get over a lost answer at all."""
    return options.cluster.init_producer_id_version >= _CAN_BUMP


def unexcused(attempts: Iterable[Attempt]) -> Iterator[str]:
    """Yield what calm producers failed with for no reason of their own."""
    calm = [attempt for attempt in attempts if attempt.is_calm and not attempt.is_crashed]
    spoilt = {
        (attempt.owner_process, attempt.incarnation)
        for attempt in calm
        if _has_own_fault(attempt) or _was_overtaken(attempt)
    }
    for attempt in calm:
        if attempt.owner is not None:
            yield from _of_transaction(attempt)
        elif (attempt.owner_process, attempt.incarnation) not in spoilt:
            for record in attempt.records:
                error = _error_of(record)
                if error is not None:
                    yield f"{record.value!r}: {error}"


def _of_transaction(attempt: Attempt) -> Iterator[str]:
    if attempt.has_given_up or _has_own_fault(attempt):
        return
    for error in attempt.errors:
        # Perhaps of a call that was interrupted before.
        if not isinstance(error, CommitOutcomeUnknownError):
            yield f"{attempt.name}: {type(error).__name__}: {error}"


def _was_overtaken(attempt: Attempt) -> bool:
    errors = [_error_of(record) for record in attempt.records]
    return attempt.owner is None and any(isinstance(e, OutOfOrderSequenceError) for e in errors)


def _error_of(record: SentRecord) -> KafkaError | None:
    future = record.future
    return future.error if future is not None and future.done() else None


def _has_own_fault(attempt: Attempt) -> bool:
    return attempt.is_mistaken or any(record.waited_in_vain for record in attempt.records)
