"""The run of delivery callbacks, and the sends that were refused in them.

Why it exists: an exception that leaves a delivery callback is only logged. If it is the refusal of
a record, the record is lost without notice, and its transaction must not be committed. If the
callback catches the refusal, it handles the loss itself, as code on any other thread does.
Owns: the refusals of the callbacks that run now. Must not know: the loop.
Rules: only the I/O thread uses it. Callbacks are users' code, so they run without the core's lock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from txnproducer._shell import refusals
from txnproducer._shell.driven import DrivenCore, DueCallbacks
from txnproducer._sync.core_lock import CoreLock
from txnproducer._sync.held_logs import held_logger
from txnproducer.errors import KafkaError

__all__ = ["DeliveryCallbacks"]

_LOG = held_logger(__name__)


class DeliveryCallbacks:
    """The delivery callbacks that are due, and their calls.

    Args:
        name: the thread's name, for the log.
        lock: guards the core.

    Attributes:
        are_running: whether a callback runs now.
    """

    def __init__(self, name: str, lock: CoreLock) -> None:
        self._name = name
        self._lock = lock
        self._refused: list[tuple[refusals.Lost, BaseException]] = []
        self.are_running = False

    def note_refused(self, lost: refusals.Lost, error: BaseException) -> None:
        """Remember an error that a call is about to raise in a callback.

        Args:
            lost: what the transaction lacks if the error leaves the callback.
            error: the refusal.
        """
        self._refused.append((lost, error))

    def run(
        self, core: DrivenCore, batches: Sequence[DueCallbacks], notify: Callable[[], None]
    ) -> None:
        """Run callbacks, and complete the calls that waited for them.

        Args:
            core: the core that they belong to.
            batches: the callbacks of some batches.
            notify: wakes the waiting threads whose condition holds. Called with the lock held.
        """
        for batch in batches:
            self.are_running = True
            try:
                batch.run()
            except BaseException as error:  # noqa: BLE001 - logged; the loop goes on
                # Even sys.exit() in a callback must not end the thread: other threads wait for it.
                _LOG.exception(
                    "%s: a delivery callback raised %r, which does not end this thread: its loop"
                    " goes on",
                    self._name,
                    error,
                )
            finally:
                self.are_running = False
                with self._lock:
                    # Before the callbacks count as finished: a commit that waits for them must see
                    # that a record was lost.
                    if self._refused:
                        lost = self._take_lost(batch.raised)
                        if lost is not None:
                            core.lose_record(lost)
                    batch.on_finished()
                    notify()

    def run_all(
        self,
        core: DrivenCore,
        take: Callable[[], Sequence[DueCallbacks]],
        notify: Callable[[], None],
    ) -> None:
        """Run the callbacks that are due until none is: a callback can make others due.

        Args:
            core: the core that they belong to.
            take: returns those that are due, and forgets them. Called with the lock held.
            notify: as for `run`.
        """
        while True:
            with self._lock:
                batches = take()
            if not batches:
                return
            self.run(core, batches, notify)

    def _take_lost(self, raised: Sequence[BaseException]) -> KafkaError | None:
        """Forget all refusals. Return the error of the incomplete transaction, or None.

        Args:
            raised: the exceptions that have left the callbacks.
        """
        # Emptied in any case: a refusal that one batch's callback handled must not count in the
        # next one.
        refused, self._refused = self._refused, []
        left = _with_causes(raised)
        for lost, error in refused:
            # By identity: a callback may raise an equal error of its own, which loses nothing.
            if id(error) in left:
                return lost(error)
        return None


def _with_causes(errors: Sequence[BaseException]) -> set[int]:
    """Return the ids of errors, of their causes and contexts, and of the members of groups."""
    found: set[int] = set()
    rest: list[BaseException | None] = [*errors]
    while rest:
        error = rest.pop()
        # Contexts can form a circle, so each error is looked at once.
        if error is None or id(error) in found:
            continue
        found.add(id(error))
        rest += [error.__cause__, error.__context__]
        if isinstance(error, BaseExceptionGroup):
            rest += error.exceptions
    return found
