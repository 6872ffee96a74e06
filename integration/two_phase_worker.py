"""`python -m integration.two_phase_worker`: pays as examples/payment.py does, to be killed.

It reads commands from its standard input, and runs each in a fork of its own, so that a kill costs
no start of an interpreter:

* `line K AMOUNT`: start and pay, and kill the process at line K of the example and of the
  library's two-phase commit. The answer is `killed`, or `done` where there are fewer lines.
* `run SECONDS`: start and pay the next amounts, until SIGKILL comes after that time.
* `sleep A B C`: the same, with SIGSTOP after A seconds. Another one runs for B seconds, until it
  is killed. Then the first one wakes, and is killed after C seconds. The answer has both.
* `recover`: start. The answer is `done`.

Each answer is `killed` or `done`; `overtaken` if another process has taken the id over; `locked`
if SQLite has waited too long for a process that sleeps; or `failed`, or `hung`.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Self

import sqlalchemy as sa

from txnproducer import KafkaError, TransactionalProducer, two_phase
from txnproducer.admin import ProducerQuestions  # noqa: F401 - imported before the forks
from txnproducer.errors import InvalidProducerEpochError
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
        package = Path(two_phase.__file__).parent
        files = {self._payment.__file__, *map(str, package.glob("*.py"))}
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


class Fork:
    """A process that does work, and may be stopped and killed."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._ended: int | None = None
        self._pid = os.fork()
        if self._pid == 0:
            try:
                work()
                os._exit(0)
            except BaseException as error:  # noqa: BLE001 - a fork must not go on as its parent
                code = exit_code(error)
                if code == FAILED:
                    traceback.print_exc()
                os._exit(code)

    def after(self, seconds: float, number: signal.Signals) -> Self:
        """Send a signal after that time, unless it has ended."""
        wait_until(self._has_ended, seconds, _LOOK_S)
        if self._ended is None:  # not reaped, so the id is still its own
            os.kill(self._pid, number)
        return self

    def answer(self) -> str:
        """Return how it has ended. One that runs for too long is killed."""
        if not wait_until(self._has_ended, _LONGEST_S, _LOOK_S):
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            return "hung"
        assert self._ended is not None
        if os.WIFSIGNALED(self._ended):
            return "killed"
        return ANSWERS.get(os.waitstatus_to_exitcode(self._ended), "failed")

    def _has_ended(self) -> bool:
        if self._ended is None:
            found, status = os.waitpid(self._pid, os.WNOHANG)
            self._ended = status if found else None
        return self._ended is not None


FAILED, OVERTAKEN, LOCKED = 1, 3, 4
ANSWERS = {0: "done", OVERTAKEN: "overtaken", LOCKED: "locked"}


def exit_code(error: BaseException) -> int:
    """Return the code by which a fork tells of its error."""
    # With v2 a record of an older epoch is refused by the leader, which knows no reason.
    if isinstance(error, InvalidProducerEpochError):
        return OVERTAKEN
    if isinstance(error, KafkaError) and error.recovery in ("restart", "unknown"):
        return OVERTAKEN
    # SQLite waits for a process that holds its lock for a few seconds only.
    if isinstance(error, sa.exc.OperationalError) and "database is locked" in str(error):
        return LOCKED
    return FAILED


def sleep_through_a_take_over(work: Callable[[], None], times: list[float]) -> str:
    """Stop a process, let another one take over, and wake the first. Return both answers."""
    asleep_s, other_s, awake_s = times
    sleeper = Fork(work).after(asleep_s, signal.SIGSTOP)
    other = Fork(work).after(other_s, signal.SIGKILL)
    found = other.answer()
    return f"{sleeper.after(0, signal.SIGCONT).after(awake_s, signal.SIGKILL).answer()} {found}"


def main() -> None:
    servers, url, topic, name, timeout_ms = sys.argv[1:]
    worker = Worker(servers, url, topic, name, int(timeout_ms))
    for command in sys.stdin:
        word, *numbers = command.split()
        if word == "line":
            line, amount = map(int, numbers)
            answer = Fork(partial(worker.die_at_line, line, amount)).answer()
        elif word == "run":
            answer = Fork(worker.run).after(float(numbers[0]), signal.SIGKILL).answer()
        elif word == "sleep":
            answer = sleep_through_a_take_over(worker.run, [float(each) for each in numbers])
        else:
            answer = Fork(worker.recover).answer()
        print(answer, flush=True)


if __name__ == "__main__":
    main()
