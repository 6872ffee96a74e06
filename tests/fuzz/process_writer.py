"""One process that writes transactions, is interrupted, forks, and ends in one of several ways.

`python -m tests.fuzz.process_writer ORDERS`. It notes each call, as the clusters' campaign does.

Rules:
* SIGINT raises KeyboardInterrupt at any bytecode of a library call, also at the last. Between
  calls it is ignored, so that the notes stay whole.
* A call that takes too long, that raises a foreign exception, or that leaves something behind ends
  the process with `BROKEN` and a text on stderr.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import json
import logging
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

from integration.chaos.history import ABORTED, COMMITTED, UNKNOWN, Notes
from txnproducer import TransactionalProducer
from txnproducer.errors import ForkedProducerError, IllegalStateError, KafkaError

BROKEN: Final = 70
RAISED: Final = 1
THE_END: Final = "the end of this process"
LEFT_OPEN, CLOSED, EXITED, RAISES, CUT_SHORT = "left open", "closed", "exit", "raises", "_exit"
ENDS: Final = (LEFT_OPEN, CLOSED, EXITED, RAISES, CUT_SHORT)
MAX_BLOCK_MS: Final = 3_000
# A busy machine is no failure: a hung call takes longer than this.
_MOST_CALL_S: Final = 30.0
PROOFS: Final = 2
_SETTLE_S: Final = 10.0
_PARTITIONS: Final = 3
_RECORDS: Final = 9


Value = tuple[str, int, str]
Make = Callable[[Callable[[], object]], BaseException | None]


class Orders(NamedTuple):
    """The work of one process.

    Attributes:
        settings: of its producer.
        writer: its name in the history.
        life_s: the seconds after the start within which a transaction may begin.
        is_calm: whether nothing disturbs it. It ends after `PROOFS` commits.
        end: one of `ENDS`.
        seed: decides the rest.
        history: the file for its notes.
    """

    settings: dict[str, Any]
    writer: str
    life_s: float
    is_calm: bool
    end: str
    seed: str
    history: str


def broken(text: str) -> NoReturn:
    """End the process: a rule is broken."""
    print(f"BROKEN: {text}", file=sys.stderr, flush=True)
    faulthandler.dump_traceback(all_threads=True)
    os._exit(BROKEN)


class Writer:
    """The work of one process."""

    def __init__(self, orders: Orders) -> None:
        self._is_in_call = False
        # Before the history is there: from then on interrupts may come.
        signal.signal(signal.SIGINT, self._interrupt)
        self._orders = orders
        self._rng = random.Random(orders.seed)
        self._notes = Notes(Path(orders.history))
        self._number = self._commits = 0
        self._before = _descriptors()
        self._until = time.monotonic() + orders.life_s
        self._producer = TransactionalProducer(**orders.settings)

    def _interrupt(self, *_: object) -> None:
        if self._is_in_call:
            self._is_in_call = False  # it may come before the line of `armed` that does this
            raise KeyboardInterrupt

    def run(self) -> None:
        """Write until it is time, and end."""
        self._note("init", "call")
        if self._repeat(self._producer.init_transactions) is not None:
            self._close()
            return
        self._note("init", "ok")
        while time.monotonic() < self._until and not self._has_proven:
            if not self._transaction():
                self._close()
                return
        self._end()

    @property
    def _has_proven(self) -> bool:
        return self._orders.is_calm and self._commits >= PROOFS

    # --- a transaction --------------------------------------------------------------------------

    def _transaction(self) -> bool:
        """Write a transaction. Return whether the producer can be used for another one."""
        self._number += 1
        self._note("begin", "call")
        error = self._call(self._producer.begin_transaction)
        if error is None:
            error = self._fill()
        if error is None and self._rng.random() < 0.1:
            self._fork()
        if error is not None or self._rng.random() < 0.2:
            self._tell(ABORTED)
            return self._repeat(self._producer.abort_transaction) is None
        self._note("commit", "call")
        error = self._repeat(self._producer.commit_transaction)
        outcome, goes_on = self._verdict(error)
        self._tell(outcome)
        self._commits += outcome == COMMITTED
        return goes_on

    def _verdict(self, error: BaseException | None) -> tuple[str, bool]:
        """Return the outcome after a commit, and whether the producer goes on."""
        if error is None:
            return COMMITTED, True
        recovery = getattr(error, "recovery", None)
        if recovery == "abort":
            return ABORTED, self._repeat(self._producer.abort_transaction) is None
        # An IllegalStateError: the interrupt came between the commit's return and the next step.
        is_known = isinstance(error, KafkaError) and recovery not in ("unknown", "resume")
        is_known = is_known and not isinstance(error, IllegalStateError)
        return (ABORTED if is_known else UNKNOWN), False

    def _fill(self) -> BaseException | None:
        """Send the records, from one or two threads, each to partitions of its own."""
        values = [
            ("t", i % _PARTITIONS, f"{self._orders.writer}:{self._number}:{i}:{_RECORDS}")
            for i in range(_RECORDS)
        ]
        self._note("write", "call", records=values)
        others = [value for value in values if value[1] == 0]
        if self._rng.random() < 0.5:
            return self._send(values, self._call)
        failures: list[BaseException | None] = []
        # Signals are the main thread's.
        thread = threading.Thread(target=lambda: failures.append(self._send(others, _error_of)))
        thread.start()
        failures.append(self._send([value for value in values if value[1] != 0], self._call))
        thread.join(_MOST_CALL_S)
        if thread.is_alive():
            broken("send does not return")
        return next((each for each in failures if each is not None), None)

    def _send(self, values: list[Value], make: Make) -> BaseException | None:
        for topic, partition, value in values:
            send = partial(self._producer.send, topic, value.encode(), partition=partition)
            error = make(send)
            if error is not None:
                return error
        return None

    # --- calls ----------------------------------------------------------------------------------

    def _call(self, call: Callable[[], object]) -> BaseException | None:
        """Make a call, which an interrupt may end, and return its error."""

        def armed() -> None:
            try:
                self._is_in_call = True
                call()
            finally:
                self._is_in_call = False

        return _error_of(armed)

    def _repeat(self, call: Callable[[], object]) -> BaseException | None:
        """Make a call again after an interrupt, and after an error that says so."""
        while True:
            error = self._call(call)
            again = isinstance(error, KeyboardInterrupt) or (
                getattr(error, "recovery", None) == "resume"
            )
            if not again or time.monotonic() > self._until + _SETTLE_S:
                return error

    # --- forks and ends -------------------------------------------------------------------------

    def _fork(self) -> None:
        """Let a child use the producer. It is refused, and ends as any process does."""
        child = os.fork()
        if child == 0:
            self._be_a_child()
        deadline = time.monotonic() + _MOST_CALL_S
        while (found := os.waitpid(child, os.WNOHANG)) == (0, 0):
            if time.monotonic() > deadline:
                os.kill(child, signal.SIGKILL)
                broken("a forked child does not end")
            time.sleep(0.01)  # until the child ends
        if found[1] != 0:
            broken(f"a forked child ended with {found[1]}")

    def _be_a_child(self) -> NoReturn:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        one = self._producer
        for call in (lambda: one.send("t", b"child"), one.commit_transaction, one.flush):
            try:
                call()
            except ForkedProducerError:
                continue
            except BaseException as error:  # noqa: BLE001 - it ends the process
                broken(f"a forked child's {call} raised {error!r}")
            broken(f"a forked child's {call} returned")
        one.close()
        sys.exit(0)

    def _end(self) -> None:
        end = self._orders.end
        if end == CLOSED:
            self._close()
            return
        self._number += 1
        self._note("begin", "call")
        if self._call(self._producer.begin_transaction) is None:
            self._fill()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if end == EXITED:
            sys.exit(0)
        if end == RAISES:
            raise RuntimeError(THE_END)
        if end == CUT_SHORT:
            os._exit(0)

    def _close(self) -> None:
        while isinstance(self._call(self._producer.close), KeyboardInterrupt):
            pass  # an interrupt ends the wait alone
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        del self._producer  # the descriptor for wake-ups lives as long as the object
        deadline = time.monotonic() + _SETTLE_S
        while threading.active_count() > 1 or _descriptors() - self._before:
            if time.monotonic() > deadline:
                left = threading.enumerate(), _descriptors() - self._before
                broken(f"closed, and left: {left}")
            gc.collect()
            time.sleep(0.01)  # until the threads have ended

    # --- notes ----------------------------------------------------------------------------------

    def _tell(self, outcome: str) -> None:
        self._note("told", "ok", outcome=outcome)

    def _note(self, call: str, at: str, **more: Any) -> None:
        orders = self._orders
        self._notes.note(
            writer=orders.writer,
            id=orders.settings["transactional_id"],
            txn=self._number,
            call=call,
            at=at,
            **more,
        )


def _error_of(call: Callable[[], object]) -> BaseException | None:
    """Make a call, and return its error if it is one that a producer may raise."""
    began = time.monotonic()
    try:
        call()
    except (KafkaError, KeyboardInterrupt) as error:
        return error
    except BaseException as error:  # noqa: BLE001 - it ends the process
        broken(f"{call} raised {error!r}")
    finally:
        if time.monotonic() - began > _MOST_CALL_S:
            broken(f"{call} took {time.monotonic() - began:.1f} s")
    return None


def _descriptors() -> Counter[str]:
    """Return the targets of the open descriptors."""
    links = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]  # noqa: PTH208
    found: Counter[str] = Counter()
    for link in links:
        # The listing of the folder had a descriptor of its own, which is closed again.
        with contextlib.suppress(OSError):
            found[os.readlink(link).partition(":")[0]] += 1  # noqa: PTH115
    return found


if __name__ == "__main__":
    orders = Orders(*json.loads(sys.argv[1]))
    if orders.is_calm:
        # Shown with a finding. Not where interrupts come: one that meets a log's handler between
        # its lock and its `try` leaves the lock taken, and the next thread that logs stands still.
        logging.basicConfig(level=logging.DEBUG, format="%(relativeCreated)d %(message)s")
    Writer(orders).run()
