"""The reasons for which a producer may fail for good, even during faults.

Why it exists: a core that gives up at the first surprise loses no record, but every program that
uses it has to be started again. During faults a call may fail. A producer may fail for good only
for a lasting reason.
Owns: the reasons. Must not know: the core's logic, the applications.

A producer may fail for good
* because it is fenced: the coordinator has another identity for its id, or none. The reason must
  be one of these: another process asked for an identity, the transaction timed out, a request of
  its own arrived late, the coordinator kept a write that it had refused, or the transactions are
  shared. Or two answers were lost after the last epoch (see `excuses`). Or one answer to its
  request for the next epoch was lost and the coordinator has moved: the log does not tell the new
  one who asked. Or a former coordinator has told of a begin from its memory
  But never because only a coordinator that had resigned refused an end
* because access was refused during its life; a refused login counts only if that broker was needed
* because of an unexpected error of the broker: the coordinator failed during a write, or the
  epochs are used up, where brokers answer with this error
* because records are in doubt on a cluster that cannot raise epochs
* because its application closed it, or sent something that this cluster does not support
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from txnproducer.errors import (
    AuthenticationError,
    AuthorizationError,
    ClaimRefusedError,
    InvalidPidMappingError,
    InvalidTxnStateError,
    KafkaError,
    ProducerFencedError,
    UnsupportedVersionError,
)
from txnproducer.records import ProducerIdAndEpoch
from txnproducer.sim.apps.process import Process
from txnproducer.sim.judges.excuses import FENCED_AFTER
from txnproducer.sim.world.faults import FaultKind
from txnproducer.sim.world.history import LAST_EPOCH

_REFUSED_ENDS: Final = (ProducerFencedError, InvalidPidMappingError, InvalidTxnStateError)
_KEPT: Final = (FaultKind.LOG_WRITE_LATE, FaultKind.LOG_WRITE_BROKEN)
# A moved coordinator knows what its log has; a refused write never got there.
_FORGETTING: Final = (FaultKind.COORDINATOR_MOVED, FaultKind.LOG_WRITE_LOST, *_KEPT)
_FIRST_THAT_CAN_BUMP: Final = 3


def needless_end(process: Process) -> str | None:
    """Return the error of a producer that failed for good without a reason, or None."""
    error = process.last_error
    if error is None or not process.has_failed:
        return None
    root: BaseException = error
    # Later errors are consequences of the first one, which has the reason.
    while isinstance(root.__cause__, KafkaError):
        root = root.__cause__
    identity = process.manager.identity.producer_id_and_epoch
    refusals = process.world.history.ends_refused[identity]
    if isinstance(root, _REFUSED_ENDS) and refusals == {False}:
        return f"{process.name}.{process.incarnation}: its end was refused wrongly: {root!r}"
    is_excused = any(
        # All three: a broad class alone would excuse any error of the run.
        isinstance(root, kinds) and text in str(root) and holds(process)
        for kinds, text, holds in _REASONS
    )
    return None if is_excused else f"{process.name}.{process.incarnation}: {root!r}"


def _has_acted(process: Process, *kinds: FaultKind) -> bool:
    return any(process.world.faults.counts[kind] for kind in kinds)


def _is_overtaken(process: Process) -> bool:
    """Return whether the coordinator may have another identity than the producer, for a reason."""
    name = process.transactional_id or ""
    known = process.world.cluster.transaction_coordinator(name).find(name)
    if known is not None:
        described = ProducerIdAndEpoch(known.producer_id, known.producer_epoch)
        # The same identity excuses nothing by itself: only a fence that was lost does.
        if described == process.manager.identity.producer_id_and_epoch:
            # It may have fenced the producer and lost this with a write or with a move.
            return _is_disturbed(process) and _has_acted(process, *_FORGETTING)
    return _is_disturbed(process)


def _is_disturbed(process: Process) -> bool:
    """Return whether anything but the producer's own present requests changed its transactions."""
    world, name = process.world, process.transactional_id or ""
    return (
        world.cluster.acts_of_time[name] > 0
        or bool(world.history.asked_for_identity[name] - {process.name})
        or _has_acted(process, FaultKind.REQUEST_LATE, FaultKind.CLIENT_CRASHED, *_KEPT)
        or world.options.is_shared
    )


def _is_behind_the_last_epoch(process: Process) -> bool:
    identity = process.manager.identity.producer_id_and_epoch
    is_last = identity.producer_epoch == LAST_EPOCH
    return is_last and process.world.history.inits_in_doubt[identity] >= FENCED_AFTER


def _is_asker_forgotten(process: Process) -> bool:
    return process.world.is_asker_forgotten(process.manager.identity.producer_id_and_epoch)


def _is_misled(process: Process) -> bool:
    return process.manager.identity.producer_id_and_epoch in process.world.cluster.misled


def _is_access_refused(process: Process) -> bool:
    return process.world.cluster.counts["refused"] > 0


def _is_login_refused(process: Process) -> bool:
    return process.network.is_needed_login_refused


def _is_coordinator_broken(process: Process) -> bool:
    # With its epochs used up, a broker answers UNKNOWN_SERVER_ERROR to a repeated request.
    is_near_the_end = process.world.options.initial_epoch >= 0
    return is_near_the_end or _has_acted(process, FaultKind.LOG_WRITE_BROKEN)


def _cannot_bump(process: Process) -> bool:
    return process.world.options.cluster.init_producer_id_version < _FIRST_THAT_CAN_BUMP


def _is_participant(process: Process) -> bool:
    return process.holder is not None


def _is_closed(process: Process) -> bool:
    return process.is_closing


_REASONS: Final[tuple[tuple[type[KafkaError], str, Callable[[Process], bool]], ...]] = (
    (ProducerFencedError, "", _is_overtaken),
    (ProducerFencedError, "", _is_behind_the_last_epoch),
    (ProducerFencedError, "", _is_asker_forgotten),
    (InvalidPidMappingError, "", _is_overtaken),
    (KafkaError, "INVALID_PRODUCER_ID_MAPPING", _is_overtaken),
    (InvalidTxnStateError, "", _is_disturbed),
    (InvalidTxnStateError, "", _is_misled),
    (AuthorizationError, "", _is_access_refused),
    (KafkaError, "TOPIC_AUTHORIZATION_FAILED", _is_access_refused),
    (AuthenticationError, "", _is_login_refused),
    (KafkaError, "UNKNOWN_SERVER_ERROR", _is_coordinator_broken),
    (KafkaError, "this cluster is too old", _cannot_bump),
    (UnsupportedVersionError, "group metadata", _cannot_bump),
    # A participant takes part in one transaction: refused there, it has nothing to go on with.
    (ClaimRefusedError, "", _is_participant),
    (KafkaError, "the producer was closed", _is_closed),
)
