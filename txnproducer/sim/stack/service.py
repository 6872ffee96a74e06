"""A service in virtual time: a process that writes transactions as its users would.

Owns: the life of its producers, one after the other, and of the threads beside them. Must not
know: what is done in a transaction (`work`), the network, the logs.
"""

from __future__ import annotations

from typing import Final

from txnproducer.errors import KafkaTimeoutError
from txnproducer.producer import TransactionalProducer
from txnproducer.sim.stack.calls import FORCED_MS, InterruptError, ServiceCalls
from txnproducer.sim.stack.companion import Companion, Origin, TransactionSpans
from txnproducer.sim.stack.end_watch import WatchedProducer
from txnproducer.sim.stack.judge import PROOFS, StackJudge
from txnproducer.sim.stack.producers import StackProducers
from txnproducer.sim.stack.work import TransactionWork
from txnproducer.sim.stack.world import StackWorld

__all__ = ["Service"]

# A close that has taken so long has passed all its locks and waits for the end.
_BEGUN_MS: Final = 50


class Service:
    """One process.

    Args:
        world: where it runs.
        producers: make its producers.
        judge: of its calls.
        name: its name.
        transactional_id: the id of its producers.
        is_rival: whether it only disturbs another process of the id.

    Attributes:
        is_done: whether it has ended.
        made: the transactions that it has committed.
        proofs: those after the faults ended.
        incarnation: the number of its producer.
    """

    def __init__(
        self,
        world: StackWorld,
        producers: StackProducers,
        judge: StackJudge,
        name: str,
        transactional_id: str,
        *,
        is_rival: bool = False,
    ) -> None:
        self.name = name
        self.transactional_id = transactional_id
        self.is_rival = is_rival
        self.is_done = False
        self.made = self.proofs = self.incarnation = 0
        self._world = world
        self._producers = producers
        self._judge = judge
        self._rng = world.new_rng(name)
        self._calls = ServiceCalls(world, judge, name, self._rng)
        self._companion: Companion | None = None

    def main(self) -> None:
        """Make producers and transactions until the run has enough."""
        while self.wants_more:
            self.incarnation += 1
            producer = self._producers.open(self.transactional_id)
            try:
                self._use(producer)
            finally:
                self._close(producer)
            if not self._world.is_healed:
                self._calls.sleep(self._rng.random())
        self.is_done = True

    @property
    def wants_more(self) -> bool:
        """Whether the run needs more transactions of this service."""
        if self._world.history.violations:
            return False
        if not self._world.is_healed:
            return True
        return not self.is_rival and self.proofs < PROOFS

    def _use(self, producer: TransactionalProducer) -> None:
        if not self._open(producer):
            return
        was_calm = self._world.is_healed
        spans = TransactionSpans()
        origin = Origin(self.name, self.transactional_id, self.incarnation)
        work = TransactionWork(
            self._world, self._judge, self._calls, producer, origin, spans, self._committed
        )
        if self._world.options.has_companions:
            self._companion = Companion(self._world, self._judge, producer, origin, spans)
        while self.wants_more and work.transaction():
            # A producer from before the end of the faults proves with one transaction that it can
            # go on. The others are proofs of a new one.
            if self._world.is_healed and not was_calm:
                return

    def _committed(self) -> None:
        self.made += 1
        self.proofs += self._world.is_healed

    def _open(self, producer: TransactionalProducer) -> bool:
        """Wait for the first contact. Return whether the producer can be used."""
        self._calls.producer = producer
        watch = self._producers.watch_of(producer)
        watch.is_first_contact = True
        error = self._calls.repeat("init_transactions", producer.init_transactions)
        if isinstance(error, KafkaTimeoutError):
            # The last pause ends with the call: no later attempt to connect is judged.
            watch.judge_pause(self._world.baton.now_ms)
        watch.is_first_contact = False
        return error is None

    def _close(self, producer: WatchedProducer) -> None:
        self._calls.producer = None
        if self._calls.strikes("dropped"):
            # A thread that still used it would keep it.
            self._end_companion()
            self._producers.drop(producer)
            return
        timeout = 0.0 if self._calls.strikes("close at once") else None
        limit_ms = self._world.delivery_ms if timeout is None else 0.0
        error: BaseException | None = InterruptError()
        # An interrupt ends only the wait for the end, so the service waits again.
        while isinstance(error, InterruptError):
            began_ms = self._world.baton.now_ms
            _, error = self._calls.call(
                "close", limit_ms + FORCED_MS, lambda: producer.close(timeout)
            )
            has_waited = self._world.baton.now_ms - began_ms > _BEGUN_MS
            if isinstance(error, InterruptError) and has_waited and self._rng.random() < 0.5:
                self._await_end_without_a_call(producer, limit_ms + FORCED_MS)
        # Until then it makes its calls beside the close, and after it.
        self._end_companion()
        self._judge.closed(self.name, producer, self._producers.watch_of(producer).logins)

    def _end_companion(self) -> None:
        if self._companion is not None:
            self._companion.end()
            self._companion = None

    def _await_end_without_a_call(self, producer: TransactionalProducer, limit_ms: float) -> None:
        """Wait for the end of a producer after an interrupt of its `close`."""
        io = producer._io  # noqa: SLF001 - the judge looks inside
        if not self._world.baton.wait(lambda: io.has_ended, limit_ms / 1000):
            self._judge.violate(
                "hangs", f"{self.name}: an interrupted close does not end by itself"
            )
