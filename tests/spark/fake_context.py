"""A SparkContext that only knows whether somebody has stopped Spark or interrupted the thread."""

from __future__ import annotations

from types import SimpleNamespace


class FakeGateway:
    def __init__(self, sleep) -> None:
        thread = SimpleNamespace(sleep=sleep)
        self.jvm = SimpleNamespace(java=SimpleNamespace(lang=SimpleNamespace(Thread=thread)))


class FakeContext:
    def __init__(self) -> None:
        self.is_interrupted = False
        self.is_stopped = False
        self._jsc = SimpleNamespace(sc=lambda: SimpleNamespace(isStopped=lambda: self.is_stopped))
        self._gateway = FakeGateway(self._sleep)

    def _sleep(self, _):
        if self.is_interrupted:
            self.is_interrupted = False  # as Java does when it raises
            raise InterruptedError("java.lang.InterruptedException: sleep interrupted")
