"""The life of a producer: it opens, its calls wait for the core, it closes.

Why it exists: a producer and a participant in another process's transaction live in the same way,
in all that does not depend on records or on transactions.
Owns: the core and the I/O thread, the time-outs of calls, the refusal of calls before and after
the life. Must not know: how records are written (`record_writer`), how a transaction is begun or
ended (`TransactionalProducer`).
Rules:
* The core is called under the I/O thread's lock. Users' code (serializers, callbacks) never is.
* Nothing waits without a bound. A call that timed out has not failed: its operation goes on, and
  the same call made again waits for the same result.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import NoReturn, Self

from txnproducer._core.producer_core import ProducerCore
from txnproducer._core.sending.loss_inquiry import LONGEST_MS
from txnproducer._core.transactions.operation import TransactionalRequestResult
from txnproducer._record.compression import codec_for
from txnproducer._shell import live_producers, refusals
from txnproducer._shell.arguments import to_seconds
from txnproducer._shell.io_thread import IoThread
from txnproducer._shell.log_thread import OF_FINALIZER
from txnproducer._shell.waiting import wait_until_done
from txnproducer._sync.core_lock import new_loop_priority, refuse_reentry
from txnproducer._sync.held_logs import held_logger
from txnproducer._wire.network_client import NetworkClient
from txnproducer._wire.platform import SYSTEM, Platform
from txnproducer.config import ProducerConfig
from txnproducer.errors import KafkaError, KafkaTimeoutError
from txnproducer.records import TransactionLease

__all__ = ["BaseProducer"]

_LOG = held_logger(__name__)

# Names of the totals of time spent in the calls that wait.
_TIMES = {
    "init_transactions": "txn-init",
    "send_offsets_to_transaction": "txn-send-offsets",
    "commit_transaction": "txn-commit",
    "abort_transaction": "txn-abort",
    "lease": "txn-lease",
    "join": "txn-join",
}
# They wait for records, too: an abort for those that a broker may have.
_ENDS = frozenset({"commit_transaction", "abort_transaction"})
# After an exception in its block, a producer does not get minutes to deliver.
_CLOSE_AFTER_ERROR_S = 30.0
# The state of a producer that refuses its calls, for its `repr`.
_ENDED: Mapping[Callable[[str], KafkaError] | None, str] = {
    refusals.forked: "forked",
    refusals.closed: "closed",
}
# Added to a time-out of the core, so that its answer can reach the caller.
_MOMENT_S = 2.0


class BaseProducer:
    """The part of a producer that opens, waits and closes.

    Args:
        config: the settings, checked.
    """

    _refusal: Callable[[str], KafkaError] | None
    # A test's cluster replaces it in a subclass.
    _platform: Platform = SYSTEM
    # The wait for the coordinator's answer why a transaction was lost, before its error is raised.
    _evidence_s = LONGEST_MS / 1000

    def __init__(self, config: ProducerConfig) -> None:
        self._open(config)

    def _open(self, config: ProducerConfig) -> None:
        # First: if a line below raises, the producer refuses every call and can be finalized.
        self._refusal = refusals.not_open
        given: object = config
        if not isinstance(given, ProducerConfig):
            kind = type(given).__name__
            raise TypeError(f"config must be a ProducerConfig, not {kind}: call its build()")
        self._config = config
        self._max_block_s = config.max_block_ms / 1000
        self._delivery_s = config.delivery_timeout_ms / 1000 + _MOMENT_S
        # Before anything is opened and another producer fenced: is the codec's library installed?
        codec_for(
            config.compression_type, config.compression_level, config.compression_lz4_block_bytes
        )
        priority = new_loop_priority()
        platform = self._platform
        client = NetworkClient(config, platform.monotonic_ms, priority=priority, platform=platform)
        self._io = IoThread(client, f"txnproducer-{config.client_id}", priority, platform)
        self._core = ProducerCore(
            config,
            client,
            self._io,
            platform.rng(),
            platform.monotonic_ms(),
        )
        self._lock = self._io.lock
        self._prepare(config)
        # The thread starts when all attributes are set. The refusal goes last: from here on an
        # interrupted constructor leaves a producer that can be closed.
        self._io.start(self._core)
        self._refusal = None
        live_producers.remember(self, self._io)

    def _prepare(self, config: ProducerConfig) -> None:
        """Make the parts of a subclass. The core exists, and its thread has not started yet."""

    @property
    def transaction_state(self) -> str:
        """The name of the transaction state at this moment, for logs and tests, such as "READY".

        Raises:
            ForkedProducerError: this process is a fork; it cannot learn of a change.
        """
        if self._refusal is refusals.forked:
            raise self._refusal("read transaction_state")
        # Without the lock: the warning of a finalizer shows the state, perhaps on a thread that
        # has it.
        manager = self._core.transaction_manager
        return "UNINITIALIZED" if manager is None else manager.machine.state.name

    def metrics(self) -> dict[str, float]:
        """Return the counters and rates, under the Java client's names."""
        if self._refusal is refusals.forked:
            # Before the lock, which a thread that is not in the fork may have held at that moment.
            raise self._refusal("metrics")
        # A signal handler that has interrupted a call with the lock held would wait for itself.
        refuse_reentry(self._lock, "metrics")
        with self._lock:
            return self._core.metrics()

    # --- the end -------------------------------------------------------------------------------

    def close(self, timeout: float | None = None) -> None:
        """Deliver all sent records, abort an open transaction, finish a commit under way, and end.

        A second call, on another thread or at the end of a `with`, waits for the same end with a
        time-out of its own; after that end it does nothing. In a delivery callback the first call
        acts as with a time-out of 0, and a second one does nothing. In a signal handler or a
        finalizer that has interrupted another call of this producer, `close` waits for nothing:
        the producer goes on to its end in good order, and that call ends with it.

        An interrupt (Ctrl-C, an exception out of a signal handler) ends only this call. The
        producer goes on to the same end within the same time-out; call `close` again to wait.

        Args:
            timeout: seconds after which everything that is left fails by force. None for
                `delivery_timeout_ms`, after which the outcome of each record is known; 0 for at
                once. A delivery callback that blocks then is waited for, but for 5 s at most.

        Raises:
            ValueError: the time-out is negative.
        """
        self._close(self._delivery_s if timeout is None else to_seconds(timeout))

    def initiate_close(self) -> None:
        """Begin to close at the interpreter's exit, without waiting.

        Several producers can then end at the same time.
        """
        # Also one that is closed: an interrupted `close` has left its thread at work.
        if self._refusal in (None, refusals.closed) and not self._io.has_ended:
            self._refuse(refusals.closed)
            self._io.initiate_close_at_exit()

    def close_by(self, deadline_ms: int) -> None:
        """Close at the interpreter's exit.

        Args:
            deadline_ms: when everything that is left fails by force. A callback that still blocks
                a moment later is not waited for.
        """
        self._close(*live_producers.exit_limits(deadline_ms))

    def _close(self, limit_s: float, *forced_s: float) -> None:
        if self._refusal not in (None, refusals.closed):
            return
        is_first = self._refusal is None
        self._refuse(refusals.closed)
        # Here no thread may wait: a finalizer that runs while its thread holds the lock, or on the
        # loop's own thread. A later call waits, at the latest the one at the interpreter's exit.
        if self._lock.is_mine() or (self._io.is_current and not self._io.callbacks.are_running):
            self._io.orphan()
            return
        if not is_first and not self._io.can_wait_for_end:
            return
        try:
            if not self._io.has_ended:
                self._io.close(limit_s, *forced_s)
        finally:
            # Also after an interrupt: the outcome of the transaction may be known already.
            with self._lock:
                self._settle()
            # Until then a fork and the exit still have to find the producer.
            if self._io.has_ended:
                live_producers.forget(self)

    def _refuse(self, refusal: Callable[[str], KafkaError]) -> None:
        """Refuse every call from now on."""
        self._refusal = refusal

    def __enter__(self) -> Self:
        if self._refusal is not None:
            raise self._refusal("enter a `with` block")
        refuse_reentry(self._lock, "__enter__")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(self.limit_of_close_s(after_error=error is not None))

    def limit_of_close_s(self, *, after_error: bool = False) -> float:
        """Return the seconds for an end in good order, at the end of a `with` block."""
        return min(_CLOSE_AFTER_ERROR_S, self._delivery_s) if after_error else self._delivery_s

    async def __aenter__(self) -> NoReturn:
        """Refuse an `async with`.

        Raises:
            TypeError: always.
        """
        raise TypeError(
            f"a {type(self).__name__} is entered by `with`; for `async with` use"
            " txnproducer.aio.AsyncTransactionalProducer"
        )

    async def __aexit__(self, *_: object) -> None:
        """Do nothing: `__aenter__` refuses."""

    def disown(self) -> None:
        """Refuse every call from now on, because this process is a fork."""
        self._refuse(refusals.forked)
        self._io.disown()

    def __del__(self) -> None:
        # No name of this module is used: at the interpreter's end they may be gone. A producer
        # that is open at that time has been closed before (`live_producers`). An object whose
        # constructor failed early has no `_refusal`.
        try:
            if getattr(self, "_refusal", True) is None:
                self._warn_of_drop()
        finally:
            # Also if the warning is an error, or the constructor or `close` was interrupted: the
            # thread may not know about the end.
            if (io := getattr(self, "_io", None)) is not None and not io.has_ended:
                io.orphan()

    def _warn_of_drop(self) -> None:
        manager = self._core.transaction_manager
        if manager is not None and manager.machine.has_ongoing_transaction:
            _LOG.warning(
                "%s was dropped with a transaction open, which is aborted: use `with`, or call"
                " close()",
                repr(self),  # not itself: a handler that keeps records would keep the producer
                extra=OF_FINALIZER,
            )
        warnings.warn(f"unclosed {self!r}: use `with`, or call close()", ResourceWarning, 3)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"a {type(self).__name__} cannot be pickled: its thread and connections belong to this"
            " process. Send its settings instead, and make the producer where it is used."
        )

    def __repr__(self) -> str:
        config = self._config
        name = config.transactional_id or config.client_id
        state = _ENDED.get(self._refusal) or self.transaction_state
        return f"<{type(self).__name__} {name!r} {state}>"

    # --- how calls wait ------------------------------------------------------------------------

    def _check_usable(self, call: str) -> None:
        if self._refusal is not None:
            raise self._refusal(call)
        refuse_reentry(self._lock, call)

    @property
    def _is_in_callback(self) -> bool:
        """Whether a delivery callback of this producer calls."""
        # A producer whose constructor has failed has no thread.
        return self._refusal is not refusals.not_open and self._io.is_current

    def _check_can_wait(self, call: str) -> None:
        """Refuse a call that would have to wait where it cannot, before it begins anything."""
        self._check_usable(call)
        self._io.refuse_in_callback()

    def _check_not_overtaken(self, call: str) -> None:
        """Refuse a call that `close()` on another thread has overtaken. Call with the lock held.

        `close()` ends in good order all work that it finds under the lock. A call that comes later
        would wait for a thread that has ended, or begin an operation without an end.
        """
        if self._refusal is not None:
            raise self._refusal(call)

    def _await(self, call: str, begin: Callable[[], TransactionalRequestResult]) -> None:
        """Begin an operation, wait for its end, and raise its error if it has one."""
        self._check_can_wait(call)
        began_ns = self._platform.monotonic_ns()
        try:
            result = self._begin_operation(call, begin)
        except KafkaError as refusal:
            # Without the lock, since this waits for the answer of the coordinator.
            raise self._explained(refusal) from refusal.__cause__
        if not self._wait_until_done(lambda: result.is_completed):
            raise self._timed_out(call, began_ns)
        error = None if result.error is None else self._explained(result.error)
        self._note_end(call, error, began_ns)
        # Last, and no signal can interrupt the lines below: either the caller sees the end, or the
        # same call made again does.
        result.is_acked = True
        if error is not None:
            raise error

    # The steps of a call that waits, which a task of an event loop takes as well.

    def _begin_operation(
        self, call: str, begin: Callable[[], TransactionalRequestResult]
    ) -> TransactionalRequestResult:
        with self._lock:
            self._check_not_overtaken(call)
            try:
                return begin()
            finally:
                # Also after an interrupt: an operation that has begun goes on.
                self._io.poke()
                self._io.notify()

    def _timed_out(self, call: str, began_ns: int) -> KafkaTimeoutError:
        causes = self._causes(began_ns // 1_000_000, of_records=call in _ENDS)
        return refusals.timed_out(call, self._config.max_block_ms, *causes)

    def _note_end(self, call: str, error: KafkaError | None, began_ns: int) -> None:
        with self._lock:
            # Until the end is acknowledged, no other thread can begin the next transaction. Any
            # other call may find the transaction ended by a close, or by a fatal error.
            self._settle(is_own_end=call in _ENDS and error is None)
            self._core.add_time(_TIMES[call], self._platform.monotonic_ns() - began_ns)

    def _wait_until_done(self, is_done: Callable[[], bool]) -> bool:
        return wait_until_done(self._io, self._core, is_done, self._max_block_s)

    def _failed_tries(self, began_ms: int) -> tuple[tuple[KafkaError, ...], bool]:
        with self._lock:
            tries = self._core.failed_tries
            return tries.last, tries.are_cause(began_ms)

    def _causes(
        self, began_ms: int, *, of_records: bool
    ) -> tuple[tuple[KafkaError, ...], bool, KafkaError | None]:
        """Return the failed tries, whether they are the cause, and the last refusal if not."""
        tries, are_cause = self._failed_tries(began_ms)
        # All connections were lost after the refusal, which says nothing any more.
        if tries and are_cause:
            return tries, True, None
        with self._lock:
            now_ms = self._platform.monotonic_ms()
            return tries, are_cause, self._core.last_refusal(now_ms, of_records=of_records)

    def _explained(self, error: KafkaError) -> KafkaError:
        """Return a call's error, with the coordinator's account of it if the transaction is lost.

        The core has already asked. This waits for the answer, for a second at most.
        """
        core = self._core
        self._io.wait_until(lambda: core.is_loss_explained, self._evidence_s)
        with self._lock:
            return core.explained(error)

    def _check_cluster(self, lease: TransactionLease, call: str) -> None:
        """Refuse a lease of another cluster, where producer ids could be equal by chance."""
        core = self._core
        if lease.cluster_id is None:
            return
        began_ms = self._platform.monotonic_ms()
        if not self._wait_until_done(lambda: core.cluster_id is not None):
            tries = self._failed_tries(began_ms)
            raise refusals.cluster_unknown(call, self._config.max_block_ms, *tries)
        with self._lock:
            cluster_id = core.cluster_id
        if cluster_id != lease.cluster_id:
            raise refusals.of_another_cluster(lease, cluster_id)

    def _settle(self, *, is_own_end: bool = False) -> None:
        """Note the end of a call that may know the transaction's outcome. Call with the lock."""
