"""A SparkContext that only knows whether somebody has stopped Spark or interrupted the thread."""

from __future__ import annotations

from types import SimpleNamespace


class FakeContext:
    def __init__(self) -> None:
        self.is_interrupted = False
        self.is_stopped = False
        self._jsc = SimpleNamespace(sc=lambda: SimpleNamespace(isStopped=lambda: self.is_stopped))
        thread = SimpleNamespace(sleep=self._sleep)
        self._jvm = SimpleNamespace(java=SimpleNamespace(lang=SimpleNamespace(Thread=thread)))

    def _sleep(self, _):
        if self.is_interrupted:
            self.is_interrupted = False  # as Java does when it raises
            raise InterruptedError("java.lang.InterruptedException: sleep interrupted")
