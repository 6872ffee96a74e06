"""`python -m integration.two_phase_worker`: pays as examples/payment.py does, to be killed.

It reads commands from its standard input, and runs each in a fork of its own, so that a kill costs
no start of an interpreter:

* `line K AMOUNT`: start and pay, and kill the process at line K of the example and of the
  library's two-phase commit. The answer is `killed`, or `done` where there are fewer lines.
* `run SECONDS`: start and pay the next amounts, until SIGKILL comes after that time. The answer is
  `killed`, or `failed` if the process has ended by itself.
* `recover`: start. The answer is `done`, or `failed`.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import sqlalchemy as sa

from txnproducer import TransactionalProducer, two_phase
from txnproducer.admin import ProducerQuestions  # noqa: F401 - imported before the forks
from txnproducer.testing._polling import wait_until
from txnproducer.two_phase import SqlAlchemyDecisions

EXAMPLES = Path(__file__).parents[1] / "examples"
_LOOK_S = 0.005
_LONGEST_S = 60.0


def _example() -> Any:
    sys.path.insert(0, str(EXAMPLES))
    spec = importlib.util.spec_from_file_location("payment", EXAMPLES / "payment.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Worker:
    """The work of each fork."""

    def __init__(self, servers: str, url: str, topic: str, name: str, timeout_ms: int) -> None:
        self._servers, self._url, self._topic, self._name = servers, url, topic, name
        self._timeout_ms = timeout_ms
        self._payment = _example()

    def _opened(self) -> tuple[sa.Engine, SqlAlchemyDecisions]:
        engine = sa.create_engine(self._url)
        decisions = SqlAlchemyDecisions(engine, self._name)
        self._payment.create_tables(engine, decisions)
        return engine, decisions

    def _started(self, decisions: SqlAlchemyDecisions) -> TransactionalProducer:
        producer = TransactionalProducer(
            self._servers, self._name, transaction_timeout_ms=self._timeout_ms
        )
        producer.init_transactions(recover=decisions.recover)
        return producer

    def die_at_line(self, number: int, amount: int) -> None:
        _, decisions = self._opened()
        files = {two_phase.__file__, self._payment.__file__}
        left = number

        def trace(frame: FrameType, event: str, _: object) -> Any:
            nonlocal left
            if frame.f_code.co_filename not in files:
                return None
            left -= event == "line"
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return trace

        sys.settrace(trace)
        with self._payment.start(self._servers, decisions, self._name) as producer:
            self._payment.pay(producer, decisions, self._topic, amount)
        sys.settrace(None)

    def run(self) -> None:
        engine, decisions = self._opened()
        with self._started(decisions) as producer:
            with engine.connect() as connection:
                newest = connection.execute(sa.text("SELECT MAX(amount) FROM payments")).scalar()
            amount = newest or 0
            while True:
                amount += 1
                with decisions.transaction(producer) as connection:
                    connection.execute(sa.text("INSERT INTO payments VALUES (:n)"), {"n": amount})
                    producer.send(self._topic, b"%d" % amount)

    def recover(self) -> None:
        _, decisions = self._opened()
        self._started(decisions).close()


def in_fork(work: Callable[[], None], kill_after_s: float | None = None) -> str:
    """Do work in a fork. Return how it has ended."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        except BaseException:  # noqa: BLE001 - a fork must not go on with its parent's work
            traceback.print_exc()
            os._exit(1)
    if kill_after_s is not None:
        time.sleep(kill_after_s)
        # Ours and not reaped yet, so the id is still its own.
        os.kill(pid, signal.SIGKILL)
    ended: list[int] = []

    def has_ended() -> bool:
        found, status = os.waitpid(pid, os.WNOHANG)
        ended.extend([status] * bool(found))
        return bool(found)

    if not wait_until(has_ended, _LONGEST_S, _LOOK_S):
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        return "hung"
    if os.WIFSIGNALED(ended[0]):
        return "killed"
    return "failed" if ended[0] else "done"


def main() -> None:
    servers, url, topic, name, timeout_ms = sys.argv[1:]
    worker = Worker(servers, url, topic, name, int(timeout_ms))
    for command in sys.stdin:
        word, *numbers = command.split()
        if word == "line":
            line, amount = map(int, numbers)
            answer = in_fork(partial(worker.die_at_line, line, amount))
        elif word == "run":
            answer = in_fork(worker.run, float(numbers[0]))
        else:
            answer = in_fork(worker.recover)
        print(answer, flush=True)


if __name__ == "__main__":
    main()
