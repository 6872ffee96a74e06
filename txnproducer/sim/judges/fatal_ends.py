"""Why a producer may fail for good, also in the midst of trouble.

Why it exists: a core that gives up at the first surprise loses no record, and every program that
uses it has to be started again. While there is trouble a call may fail; a producer that can do
nothing any more needs a reason that lasts.
Owns: the reasons. Must not know: the core's logic, the applications.

A producer may fail for good
* fenced: if the coordinator has another identity for its id, or none, and another process asked
  for one, or its time was up, or a request of its own arrived late, or the coordinator kept a
  write that it had refused, or shared its transactions; or behind the last epoch, where two
  answers were lost (see `excuses`)
* for lack of access: if access was refused while it lived; of a login, if the broker that refused
  it was needed
* for an error that nobody thought of: if the coordinator broke while it wrote, or at the end of
  the epochs, where brokers answer so
* on a cluster that cannot raise epochs, for what is in doubt there
* for what its own application did: closed it, or sent what this cluster cannot take
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
from txnproducer.sim.judges.excuses import FENCED_AFTER, LAST_EPOCH
from txnproducer.sim.world.faults import FaultKind

_KEPT: Final = (FaultKind.LOG_WRITE_LATE, FaultKind.LOG_WRITE_BROKEN)
_FORGETTING: Final = (FaultKind.COORDINATOR_MOVED, FaultKind.LOG_WRITE_LOST, *_KEPT)
_FIRST_THAT_CAN_BUMP: Final = 3


def needless_end(process: Process) -> str | None:
    """Return why a producer has failed for good, if it had no reason to; else None."""
    error = process.last_error
    if error is None or not process.has_failed:
        return None
    root: BaseException = error
    while isinstance(root.__cause__, KafkaError):
        root = root.__cause__
    is_excused = any(
        isinstance(root, kinds) and text in str(root) and holds(process)
        for kinds, text, holds in _REASONS
    )
    return None if is_excused else f"{process.name}.{process.incarnation}: {root!r}"


def _has_acted(process: Process, *kinds: FaultKind) -> bool:
    return any(process.world.faults.counts[kind] for kind in kinds)


def _is_overtaken(process: Process) -> bool:
    """Tell whether the coordinator has another identity than the producer, for a reason."""
    name = process.transactional_id or ""
    known = process.world.cluster.transaction_coordinator(name).find(name)
    if known is not None:
        described = ProducerIdAndEpoch(known.producer_id, known.producer_epoch)
        if described == process.manager.identity.producer_id_and_epoch:
            # It may have fenced the producer, and have forgotten that with a write or its office.
            return _is_disturbed(process) and _has_acted(process, *_FORGETTING)
    return _is_disturbed(process)


def _is_disturbed(process: Process) -> bool:
    """Tell whether anything but the producer's own present requests has moved its transactions."""
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


def _is_access_refused(process: Process) -> bool:
    return process.world.cluster.counts["refused"] > 0


def _is_login_refused(process: Process) -> bool:
    return process.network.is_needed_login_refused


def _is_coordinator_broken(process: Process) -> bool:
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
    (InvalidPidMappingError, "", _is_overtaken),
    (KafkaError, "INVALID_PRODUCER_ID_MAPPING", _is_overtaken),
    (InvalidTxnStateError, "", _is_disturbed),
    (AuthorizationError, "", _is_access_refused),
    (KafkaError, "TOPIC_AUTHORIZATION_FAILED", _is_access_refused),
    (AuthenticationError, "", _is_login_refused),
    (KafkaError, "UNKNOWN_SERVER_ERROR", _is_coordinator_broken),
    (KafkaError, "this cluster is too old", _cannot_bump),
    (UnsupportedVersionError, "group metadata", _cannot_bump),
    (ClaimRefusedError, "", _is_participant),
    (KafkaError, "the producer was closed", _is_closed),
)
