"""A second thread that ends a transaction, and the block that a thread owns.

Why it exists: a transaction without a block belongs to no thread, so any may end it, also while
another does. A block belongs to the thread that has entered it, and every other one is refused.
Owns: the second thread's call, the times of a block's begin and end. Must not know: the claims
that follow from the results (`work`).
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Final

from txnproducer.errors import KafkaError
from txnproducer.producer import TransactionalProducer
from txnproducer.sim.stack.calls import InterruptError, ServiceCalls
from txnproducer.sim.stack.judge import StackJudge
from txnproducer.sim.stack.world import StackWorld
from txnproducer.sim.world.history import Attempt
from txnproducer.transaction import Transaction

__all__ = ["ANOTHER_ENDS", "ENDS", "INTRUSIONS", "OtherThread", "TimedBlock"]

ANOTHER_ENDS: Final = "another thread ends"
ENDS: Final = ("commit_transaction", "abort_transaction")
# Of a thread that does not own the block.
INTRUSIONS: Final = (*ENDS, "begin_transaction")
# The coordinator's account of a loss, for which the commit in a block's end may wait as well.
_ACCOUNT_MS: Final = 1_000


class TimedBlock:
    """A transaction block, of which the begin and the end are judged as calls.

    Args:
        world: of the service.
        judge: of the calls.
        service: its name.
        transaction: the block.

    Attributes:
        is_inside: whether a thread is in it.
        is_left_open: whether its end may have failed. Any thread may repeat it then.
    """

    def __init__(
        self, world: StackWorld, judge: StackJudge, service: str, transaction: Transaction
    ) -> None:
        self._world = world
        self._judge = judge
        self._service = service
        self._transaction = transaction
        self.is_inside = self.is_left_open = False

    def __enter__(self) -> None:
        # The abort of the block before may have timed out, and is waited for.
        self._timed("enter block", self._world.max_block_ms, self._transaction.__enter__)
        self.is_inside = True

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # A commit that fails is followed by an abort.
        ends = 1 if error is not None else 2
        limit_ms = ends * self._world.max_block_ms + (ends - 1) * _ACCOUNT_MS
        try:
            self._timed(
                "leave block", limit_ms, lambda: self._transaction.__exit__(kind, error, trace)
            )
        except BaseException:
            self.is_left_open = True
            raise
        finally:
            # A failure of the abort that follows an error does not show.
            self.is_left_open |= error is not None
            self.is_inside = False

    def _timed(self, name: str, limit_ms: float, call: Callable[[], Any]) -> None:
        begin = self._judge.begun()
        try:
            call()
        # Not the end of the process or of the run, which is no result.
        except (KafkaError, InterruptError) as error:
            self._judge.returned(self._service, name, begin, limit_ms, error)
            raise
        self._judge.returned(self._service, name, begin, limit_ms, None)


class OtherThread:
    """A thread that makes one call to end a transaction of another one, some time later.

    Args:
        world: of the service.
        judge: of the call.
        producer: has the transaction.
        name: the thread's, unique in the run.
        calls: of which one is made.
        attempt: the transaction.
        block: the block that it is, which the other thread owns; None for none.

    Attributes:
        call: that is made.
        has_begun: whether it was made.
        has_ended: whether it has returned, if it ends the transaction.
        has_begun_another: whether it has begun a transaction after the end of the block.
        error: of it, when it has returned.
    """

    def __init__(
        self,
        world: StackWorld,
        judge: StackJudge,
        producer: TransactionalProducer,
        name: str,
        calls: tuple[str, ...],
        attempt: Attempt,
        block: TimedBlock | None = None,
    ) -> None:
        rng = world.new_rng(name)
        self._judge = judge
        self._producer = producer
        self._name = name
        self._attempt = attempt
        self._block = block
        self._calls = ServiceCalls(world, judge, name, rng)
        self.call = rng.choice(calls)
        self._delay_s = 10 ** rng.uniform(-3.5, 0)
        self.has_begun = self.has_ended = self.has_begun_another = False
        self.error: BaseException | None = None
        self._thread = world.platform.thread(self._run, name)

    def start(self) -> None:
        """Begin to wait, and then to call."""
        self._thread.start()

    def join(self) -> None:
        """Wait for the end of the call."""
        self._thread.join()

    def _run(self) -> None:
        self._calls.sleep(self._delay_s)
        call = getattr(self._producer, self.call)
        if self._block is None:
            self._attempt.is_commit_asked |= self.call == "commit_transaction"
            self.has_begun = True
            self.error = self._calls.repeat(self.call, call)
            self.has_ended = True
        else:
            self._intrude(self._block, call)

    def _intrude(self, block: TimedBlock, call: Callable[[], object]) -> None:
        was_inside, is_begin = block.is_inside, self.call == "begin_transaction"
        self.has_begun = True
        self.error = self._calls.repeat(self.call, call)
        # The block may have been left before the call took effect. Then another transaction may
        # begin, and one is open only if the block's end has failed.
        is_owned = block.is_inside or not (is_begin or block.is_left_open)
        if was_inside and is_owned and self.error is None:
            self._judge.violate("state", f"{self._name}: {self.call} in another thread's block")
        if self.error is None and is_begin:
            self.has_begun_another = True
            self._calls.repeat("abort_transaction", self._producer.abort_transaction)
