"""A scheduler of named runs: any run at any time, also again, and beside others.

Owns: the runs that are begun and done, the choice of the next one, its drivers. Must not know: how
a run is written, what is judged.

Rules: a run that fails is repeated some time later, also after others. One that is refused because
another run has to be written first has that one written next. Every third batch has a number, and
numbers come in order.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from tests.spark.parts.query import Driver, Query
from tests.spark.parts.world import World
from txnproducer.spark.errors import TornBatchError

_MOST_JOBS = 3
_IS_TORN = re.compile(r"run run-(\d+) is decided")


class Scheduler(Query):
    """The runs of one query. See `Query`."""

    def __init__(self, world: World, name: str, *, takes_over: bool = False) -> None:
        super().__init__(world, name, takes_over=takes_over)
        self._begun: set[int] = set()
        self._done: set[int] = set()
        self._first: int | None = None

    @property
    def is_over(self) -> bool:
        """See `Query`."""
        return self.stopped is not None or len(self._done) >= self.world.options.batches

    @property
    def begun_batches(self) -> list[int]:
        """See `Query`."""
        return sorted(self._begun)

    @property
    def done_batches(self) -> list[int]:
        """See `Query`."""
        return sorted(self._done)

    def start(self) -> None:
        """See `Query`. There are not many jobs at once."""
        if len(self.drivers) < _MOST_JOBS:
            super().start()

    def make_driver(self, name: str) -> Driver:
        """See `Query`."""
        return _Worker(self, name)

    def failed(self, batch_id: int, error: Exception, done: Collection[int]) -> None:
        """See `Query`. A run that waits for another one is no failure."""
        torn = _IS_TORN.search(str(error)) if isinstance(error, TornBatchError) else None
        if torn is None:
            super().failed(batch_id, error, done)
            return
        self.world.count("run that has to wait")
        self._first = int(torn[1])
        # One that another job has completed meanwhile was waited for with reason.
        if self._first in done:
            self.world.violate("refused", f"batch {batch_id} waits for a run that is done")

    def begin(self) -> int:
        """Choose a run, and note that it is begun."""
        options, rng = self.world.options, self.rng
        left = [each for each in range(options.batches) if each not in self._done]
        numbers = [each for each in left if not options.is_named(each)]
        choice = [each for each in left if each not in numbers[1:]]
        again = [each for each in self._done if options.is_named(each)]
        if self._first is not None:
            found, self._first = self._first, None
        elif again and rng.random() < options.repeat_rate:
            found = rng.choice(again)
            self.world.count("repeat a run")
        else:
            found = rng.choice(choice)
        self._begun.add(found)
        return found

    def end(self, batch_id: int) -> None:
        """Note that a run is done."""
        self._done.add(batch_id)


class _Worker(Driver):
    """One job of the scheduler, with some runs."""

    query: Scheduler

    def _drive(self) -> None:
        query, options = self.query, self.query.world.options
        batches, settings = self._made()
        parts = self.rng.randint(1, options.most_parts)
        while not query.is_over:
            batch_id = query.begin()
            if not self._write(batches, batch_id, parts):
                return
            query.world.trace(f"batch {batch_id} is done")
            query.end(batch_id)
            if self.rng.random() < options.resize_rate:
                parts = self.rng.randint(1, options.most_parts)
            self._rest(batches, settings)
        batches.close()
