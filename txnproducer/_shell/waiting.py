"""The waits of the shell: for brokers, and for metadata or memory before an append.

Owns: how a wait is bounded, and what is left behind if it is interrupted. Must not know: the
records, or the condition to wait for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias, TypeVar

from txnproducer._core.batches.results import DeliveryCallback, FutureRecordMetadata
from txnproducer._core.producer_core import AppendBlocked, ProducerCore
from txnproducer._shell import refusals
from txnproducer._shell.io_thread import IoThread

__all__ = [
    "BlockedCall",
    "append_at_once",
    "append_in_loop",
    "append_when_possible",
    "end_append",
    "leave_append",
    "wait_in_loop",
    "wait_until_done",
]

_Done = TypeVar("_Done")
_Step: TypeAlias = Callable[
    [int, AppendBlocked | None], _Done | AppendBlocked | FutureRecordMetadata
]


def wait_until_done(
    io: IoThread, core: ProducerCore, is_done: Callable[[], bool], timeout_s: float
) -> bool:
    """Block until `is_done()` or the time-out. Return whether it is done.

    Args:
        io: the producer's loop.
        core: the producer's core.
        is_done: cheap; called with the lock held.
        timeout_s: in seconds.

    Raises:
        InvalidConfigurationError: no host of `bootstrap_servers` exists.
    """
    tries = core.failed_tries
    # Ends early for a host that does not exist: no time would help, and the setting is wrong.
    io.wait_until(lambda: is_done() or tries.has_no_host, timeout_s)
    return _is_done(io, core, is_done)


async def wait_in_loop(
    io: IoThread, core: ProducerCore, is_done: Callable[[], bool], timeout_s: float
) -> bool:
    """Let the running task of an event loop wait as `wait_until_done` does."""
    tries = core.failed_tries
    await io.wait_in_loop(lambda: is_done() or tries.has_no_host, timeout_s)
    return _is_done(io, core, is_done)


def _is_done(io: IoThread, core: ProducerCore, is_done: Callable[[], bool]) -> bool:
    with io.lock:
        # Asked first: a result that is there is better than the error.
        if is_done():
            return True
        if core.failed_tries.has_no_host:
            raise core.failed_tries.no_host_error()
    return False


@dataclass(slots=True)
class BlockedCall:
    """A call that appends, and may have to wait for metadata or memory.

    Attributes:
        topic: the topic of its records.
        partition: the records' partition; None if it is not chosen yet.
        on_delivery: called if the wait times out.
        blocked: the wait that the current step needs; None if it needs none.
    """

    topic: str
    partition: int | None = None
    on_delivery: DeliveryCallback | None = None
    blocked: AppendBlocked | None = None


def append_when_possible(
    io: IoThread,
    core: ProducerCore,
    call: BlockedCall,
    max_block_ms: int,
    step: _Step[_Done],
) -> _Done | FutureRecordMetadata:
    """Take a step until it is not blocked any more. All its waits last `max_block_ms` at most.

    Args:
        io: the producer's loop.
        core: the producer's core.
        call: the call that the step is part of.
        max_block_ms: the limit of the waits, in milliseconds.
        step: appends; called with the lock, the time, and the wait that has ended.

    Returns:
        The outcome of the last step; after a time-out a failed future.

    Raises:
        WaitInCallbackError: a delivery callback cannot wait.
        KafkaError: the step was refused.
    """
    try:
        # No loop here: from Python 3.12 on its jump back may lie outside the handler of the `try`.
        return _repeat(io, core, call, max_block_ms, step)
    except BaseException as error:
        # Refused, interrupted, or called where it cannot wait.
        leave_append(io, core, call.blocked)
        if isinstance(error, refusals.WaitInCallbackError):
            with io.lock:
                reason = core.reason_against(call.topic, call.partition)
            raise refusals.in_callback(reason) from None
        raise


async def append_in_loop(
    io: IoThread,
    core: ProducerCore,
    call: BlockedCall,
    max_block_ms: int,
    step: _Step[_Done],
) -> _Done | FutureRecordMetadata:
    """Take a step as `append_when_possible` does, in a task of an event loop."""
    began_ms, is_time_up = io.platform.monotonic_ms(), False
    try:
        while True:
            if call.blocked is not None:
                left_s = _left_s(io, began_ms + max_block_ms)
                can_proceed = partial(core.append_can_proceed, call.blocked)
                if not await wait_in_loop(io, core, can_proceed, left_s):
                    is_time_up = io.platform.monotonic_ms() >= began_ms + max_block_ms
            outcome = _take(io, core, call, began_ms, step, is_time_up=is_time_up)
            if not isinstance(outcome, AppendBlocked):
                return outcome
    except BaseException:
        leave_append(io, core, call.blocked)  # refused, or the task was cancelled
        raise


def append_at_once(
    io: IoThread, core: ProducerCore, call: BlockedCall, step: _Step[_Done]
) -> _Done | AppendBlocked | FutureRecordMetadata:
    """Take a step of a call once, without a wait.

    If the step is blocked, the call has its place in the queue for memory: it goes on by one of
    the two functions above, or leaves by `leave_append`.
    """
    outcome: _Done | AppendBlocked | FutureRecordMetadata
    with io.lock:
        outcome = step(io.platform.monotonic_ms(), call.blocked)
        call.blocked = outcome if isinstance(outcome, AppendBlocked) else None
        if core.needs_wakeup:
            end_append(io, core, outcome)
    return outcome


def _repeat(
    io: IoThread, core: ProducerCore, call: BlockedCall, max_block_ms: int, step: _Step[_Done]
) -> _Done | FutureRecordMetadata:
    began_ms = io.platform.monotonic_ms()
    while True:
        blocked = call.blocked
        is_time_up = blocked is not None and not _wait(io, core, blocked, began_ms + max_block_ms)
        outcome = _take(io, core, call, began_ms, step, is_time_up=is_time_up)
        if not isinstance(outcome, AppendBlocked):
            return outcome


def _wait(io: IoThread, core: ProducerCore, blocked: AppendBlocked, deadline_ms: int) -> bool:
    """Wait until the step can be repeated. Return False once the time is up."""
    left_s = _left_s(io, deadline_ms)
    can_proceed = wait_until_done(io, core, lambda: core.append_can_proceed(blocked), left_s)
    return can_proceed or io.platform.monotonic_ms() < deadline_ms


def _left_s(io: IoThread, deadline_ms: int) -> float:
    return max(0, deadline_ms - io.platform.monotonic_ms()) / 1000


def _take(
    io: IoThread,
    core: ProducerCore,
    call: BlockedCall,
    began_ms: int,
    step: _Step[_Done],
    *,
    is_time_up: bool,
) -> _Done | AppendBlocked | FutureRecordMetadata:
    """Take a step once, or end its wait if the time is up."""
    blocked = call.blocked
    if blocked is None or not is_time_up:
        return append_at_once(io, core, call, step)
    with io.lock:
        now_ms = io.platform.monotonic_ms()
        outcome = core.time_out_append(
            blocked, call.topic, call.partition, call.on_delivery, now_ms - began_ms, now_ms
        )
        call.blocked = None
        wake_sender(io, core)
    return outcome


def wake_sender(io: IoThread, core: ProducerCore) -> None:
    """Wake the loop if the core has work for it. The caller holds the lock."""
    if core.needs_wakeup:
        io.poke()
        # After the poke: an interrupt between the two costs a second poke, but no wake-up.
        core.needs_wakeup = False


def end_append(io: IoThread, core: ProducerCore, outcome: object) -> None:
    """Wake the loop after an append, and claim its outcome. The caller holds the lock.

    A record without memory always asks for the loop, so other appends need not come here.
    """
    core.claim_append(outcome)
    wake_sender(io, core)


def leave_append(io: IoThread, core: ProducerCore, outcome: object) -> None:
    """Leave no place in the queue for memory, and no half-made step, when a call raises.

    The queue is served in order, so a place that is left in it would block all later ones.

    Args:
        io: the producer's loop.
        core: the producer's core.
        outcome: what the call's last step returned, as far as the call has seen it.
    """
    with io.lock:
        if isinstance(outcome, AppendBlocked):
            core.give_up_append(outcome)
        core.give_up_unclaimed()
        core.finish_interrupted_call()
        io.poke()
        io.notify()  # another waiting thread may be the first in the queue now
