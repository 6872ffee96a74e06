"""A SparkContext that only knows whether somebody has stopped Spark or interrupted the thread."""

from __future__ import annotations

from types import SimpleNamespace


class FakeGateway:
    def __init__(self, acquire) -> None:
        concurrent = SimpleNamespace(Semaphore=lambda permits: SimpleNamespace(acquire=acquire))
        util = SimpleNamespace(concurrent=concurrent)
        self.jvm = SimpleNamespace(java=SimpleNamespace(util=util))


class FakeContext:
    def __init__(self) -> None:
        self.is_interrupted = False
        self.is_stopped = False
        self._jsc = SimpleNamespace(sc=lambda: SimpleNamespace(isStopped=lambda: self.is_stopped))
        self._gateway = FakeGateway(self._acquire)

    def _acquire(self, _):
        if self.is_interrupted:
            self.is_interrupted = False  # as Java does when it raises
            raise InterruptedError("java.lang.InterruptedException")
