"""Blocking calls of simulated applications, and closing a producer.

Why it exists: like a call of `TransactionalProducer`, a call begins, waits up to `max_block_ms`,
and then acknowledges its result or raises. After a time-out the application repeats it.
Owns: `call`, `Patience`, `close`. Must not know: transactions' scripts (`workload.py`), the
contents of the logs.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial

from txnproducer._core.batches.append_blocked import AppendBlocked
from txnproducer._core.transactions.operation import TransactionalRequestResult
from txnproducer.errors import KafkaError, KafkaTimeoutError, TransactionAbortedError
from txnproducer.sim.apps.interrupts import Interrupted
from txnproducer.sim.apps.process import Condition, Process, Script
from txnproducer.sim.apps.sending import LONGEST_INTERRUPT_MS, append, begin_append

_PATIENCE = 6
# By the seed and not by the rng, so that all other seeds stay as they are.
_SEEDS_WITH_WAITERS = 50


@dataclass(slots=True)
class Ended:
    """The outcome of a call.

    Attributes:
        error: the error, or None for success.
        is_refused: whether it was refused before it began.
        is_timed_out: whether its caller stopped waiting while the operation goes on.
        result: the operation.
    """

    error: KafkaError | None
    is_refused: bool = False
    is_timed_out: bool = False
    result: TransactionalRequestResult | None = None


def call(
    process: Process, begin: Callable[[], TransactionalRequestResult]
) -> Generator[tuple[Condition, int], bool, Ended]:
    """Call an operation and wait for its result, as a blocking call does."""
    try:
        result = process.interrupts.run(begin)
    except Interrupted:
        # An interrupted call is like one that timed out: it may have begun, and can be repeated.
        return Ended(KafkaTimeoutError(), is_timed_out=True)
    except KafkaError as error:
        # Told apart from an error of the operation: a refused call has begun nothing.
        return Ended(error, is_refused=True)
    limit_ms = process.config.max_block_ms
    # An interrupted call looks like one with an early time-out: the operation goes on.
    if process.rng.random() < process.world.options.impatience:
        limit_ms = min(limit_ms, 1 + process.rng.randrange(LONGEST_INTERRUPT_MS))
    is_done = yield (lambda: result.is_completed), process.now_ms + limit_ms
    if not is_done:
        process.judge.timed_out(process, limit_ms)
        return Ended(KafkaTimeoutError(), is_timed_out=True, result=result)
    # Only here: a call that timed out acknowledges nothing, so that it can be repeated.
    result.acknowledge()
    return Ended(result.error, result=result)


class Patience:
    """Decides how long an application repeats a call that times out.

    While faults are on, an application sometimes gives up. After they end it waits as long as any
    call may take. The call must end within that time.
    """

    def __init__(self, process: Process) -> None:
        self._process = process
        self._begun_ms = process.now_ms
        self._calls = 0

    def lasts(self) -> bool:
        """Return whether to call again. The first call counts, too."""
        self._calls += 1
        world = self._process.world
        # A call that began during faults has the whole bound from their end on.
        since_ms = max(self._begun_ms, world.healed_ms)
        is_waiting = self._process.now_ms <= since_ms + world.longest_call_ms
        return self._calls <= _PATIENCE or (world.is_ending and is_waiting)

    def gave_up(self, call: str) -> None:
        """Report that the call did not end."""
        if self._process.world.is_ending and self._calls > _PATIENCE:
            self._process.judge.gave_up(self._process, call)


def close(process: Process) -> Script:
    """Close the producer, in good order or by force, and check the state that it leaves."""
    core, checkers = process.core, process.judge
    process.is_closing = True
    world = process.world
    limit_ms = process.config.delivery_timeout_ms
    is_hasty = process.rng.random() < 0.2
    if is_hasty:
        # Often too short for the records that are left, so that `force_close` meets records and
        # requests that are in flight.
        limit_ms = process.rng.randrange(100)
    elif world.is_ending:
        limit_ms = world.longest_call_ms
    # Before the close, which has to end this wait.
    blocked = _begin_to_wait(process) if process.rng.random() < 0.1 else None
    _insist(process, partial(core.initiate_close, process.now_ms))
    if blocked is not None:
        _wait_no_longer(process, blocked)
    if process.rng.random() < 0.1:
        _send_too_late(process)
    is_closed = yield (lambda: core.is_closed), process.now_ms + limit_ms
    if is_closed:
        checkers.closed_in_time(process)
    else:
        if not is_hasty and limit_ms == world.longest_call_ms:
            checkers.gave_up(process, "close")
        _insist(process, partial(core.force_close, process.now_ms))
    if process.rng.random() < 0.1:
        core.force_close(process.now_ms)  # a second time has no effect
    for event in process.network.close():
        core.handle(event, process.now_ms)
    for batch in core.take_callbacks():
        batch.run()
        batch.on_finished()
    # Last: the memory of batches in flight comes back only with their failures.
    checkers.closed(process)


def _insist(process: Process, entry: Callable[[], None]) -> None:
    """Repeat a call until no exception interrupts it."""
    # An application that closes has nothing else to do: it calls again until the producer is
    # closed.
    while True:
        try:
            process.interrupts.run(entry)
        except Interrupted:
            continue
        return


def let_a_send_wait(process: Process) -> None:
    """In a few seeds, let another thread's send wait while the transaction ends."""
    if process.world.options.seed % _SEEDS_WITH_WAITERS == 0:
        process.waiting = process.core, _begin_to_wait(process)


def check_waiting_send_is_refused(process: Process) -> None:
    """Check that a send which waited since an earlier transaction is refused in this one."""
    (core, blocked), process.waiting = process.waiting, (None, None)
    # The producer in which it waited is gone, and its wait with it.
    if blocked is None or core is not process.core:
        return
    try:
        told = begin_append(process, "nowhere", b"waits", blocked)
    except TransactionAbortedError:
        return
    process.world.history.violate(
        "state", f"{process.name} sends in another transaction what came in an earlier one: {told}"
    )


def _begin_to_wait(process: Process) -> AppendBlocked | None:
    """Send a record that has to wait for metadata, as if from another thread."""
    try:
        outcome = begin_append(process, "nowhere", b"waits")
    except KafkaError:
        return None
    return outcome if isinstance(outcome, AppendBlocked) else None


def _wait_no_longer(process: Process, blocked: AppendBlocked) -> None:
    """Check that a waiting send fails at once when the producer is closed."""
    # The condition has to hold at once, or the thread would sleep on to the end of `max_block_ms`.
    if process.core.append_can_proceed(blocked):
        try:
            begin_append(process, "nowhere", b"waits", blocked)
        except KafkaError:
            return
    process.world.history.violate("state", f"{process.name} is being closed: somebody waits")


def _send_too_late(process: Process) -> None:
    """Check that a send is refused while the producer is being closed."""
    try:
        told = append(process, b"too late")
    except KafkaError:
        return
    process.world.history.violate("state", f"{process.name} is being closed, and sends: {told}")
