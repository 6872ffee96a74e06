"""Real signals at random moments: where CPython delivers them, and their effect on calls."""

from __future__ import annotations

import contextlib
import dis
import logging
import random
import signal
import threading
import time
from collections import Counter, defaultdict
from types import CodeType

import pytest

from tests.interrupts import IS_THOROUGH, Interrupt, is_checked
from tests.test_interrupted_calls import CLOSE_S, OFFSETS, PLACES, ModelProducer, is_at_rest
from txnproducer._shell import io_thread
from txnproducer._sync.core_lock import new_lock
from txnproducer._wire.platform import Platform
from txnproducer.errors import KafkaError, KafkaTimeoutError
from txnproducer.records import TopicPartition

pytestmark = pytest.mark.skipif(
    threading.current_thread() is not threading.main_thread(),
    reason="needs the main thread, on which signal handlers run",
)
CALLS = 100_000 if IS_THOROUGH else 10_000
LONGEST_S = 300.0 if IS_THOROUGH else 12.0


@pytest.fixture
def timer():
    """Return a function that sets a timer with a handler, which is called once, or repeatedly."""
    before = signal.getsignal(signal.SIGALRM)

    def arm(handler, delay_s, again_s=0.0):
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, delay_s, again_s)

    yield arm
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def only_wakeups(monkeypatch):
    """Let nobody look for himself."""
    monkeypatch.setattr(Platform, "wait_slice_s", 60.0)
    monkeypatch.setattr(io_thread, "_LONGEST_POLL_MS", 60_000)


class Thing:
    """Something with a bit of everything."""

    def __init__(self):
        self.numbers = [3, 1, 2]
        self.text = ""
        self.count = 0

    @property
    def total(self):
        return sum(number for number in self.numbers)

    def work(self, *arguments, **more):
        for number in sorted(self.numbers, key=lambda each: -each):
            self.count += number
            self.text = f"{number}, {number!r}, {self.numbers!s:>9}"
            if number in self.numbers and self.total:
                self.count -= len(arguments) + len(more)
        with contextlib.suppress(ValueError):
            int("x")
        while self.count > 5:
            self.count -= 3
        return max(*self.numbers, **{"default": 0} if False else {})


def test_signals_come_only_where_the_rule_says(timer):
    places: list[tuple[CodeType, int]] = []

    def note(_, frame):
        places.append((frame.f_code, frame.f_lasti))

    def seen() -> Counter[str]:
        return Counter(
            each.opname
            for code, offset in places
            for each in dis.get_instructions(code)
            if each.offset == offset
        )

    def has_seen_all() -> bool:
        names = seen()
        jumps = any("JUMP_BACKWARD" in opname for opname in names)
        return jumps and {"RESUME", "CALL"} <= set(names)

    thing, rng = Thing(), random.Random(1)
    # On a busy machine few signals come as late as at a jump back.
    for number in range(1, 30_001):
        timer(note, rng.uniform(1e-6, 2e-5))
        for _ in range(3):
            thing.work(1, *thing.numbers, key=2)
        if number % 3_000 == 0 and has_seen_all():
            break
    assert len(places) > 500
    assert [opname for opname in seen() if not is_checked(opname)] == []
    assert has_seen_all()


def test_a_signal_that_raises_leaves_no_lock_taken(timer):
    lock, rng = new_lock(), random.Random(1)

    def leave(*_):
        raise Interrupt

    def take_and_release():
        while True:
            with lock:
                pass

    left = 0
    for _ in range(2_000):
        with contextlib.suppress(Interrupt):
            # Again, since an exception is lost in a callback of the garbage collector, of which
            # Hypothesis has one.
            timer(leave, rng.uniform(1e-6, 2e-5), again_s=1.0)
            take_and_release()
        left += lock.is_mine()
        if lock.is_mine():
            lock.release()
    assert left == 0


class Book:
    """A record of the results that the calls gave for each transaction.

    Attributes:
        sent: of each, the records whose `send` has returned.
        doubtful: those whose `send` was interrupted.
        told: how it ended, where that is known.
    """

    def __init__(self):
        self.sent = defaultdict(set)
        self.doubtful = defaultdict(set)
        self.told = {}

    def compare(self, cluster):
        seen: dict[int, Counter[bytes]] = defaultdict(Counter)
        for place in (*PLACES, TopicPartition("new", 1)):
            for record in cluster.read(place, read_committed=True):
                seen[int(record.value.split(b":")[0])][record.value] += 1
        for number in self.sent.keys() | self.doubtful.keys():
            values = seen[number]
            assert all(count == 1 for count in values.values()), number
            if values:
                assert self.told.get(number) != "aborted", number
                assert self.sent[number] <= values.keys(), number
                assert values.keys() <= self.sent[number] | self.doubtful[number], number
            elif self.sent[number]:
                assert self.told.get(number) != "committed", number


class Storm:
    """Calls that signals interrupt at random."""

    def __init__(self, run, arm, rng):
        self.one = run.one
        self.book = Book()
        self.calls = self.interrupted = 0
        self.timed_out: list[KafkaError] = []
        self._arm = arm
        self._rng = rng
        self._is_armed = False

    def _on_signal(self, _, frame):
        # Python's logging never gives its lock back if it is interrupted between two of its lines,
        # and then every other thread that logs hangs, in this test or in a later one.
        if self._is_armed and frame.f_code.co_filename != logging.__file__:
            self._is_armed = False
            raise Interrupt

    def interruptible(self, call, typical_s):
        """Make a call, and return whether it was interrupted."""
        self.calls += 1
        try:
            self._is_armed = True
            self._arm(self._on_signal, 1e-6 * (typical_s / 1e-6) ** self._rng.random())
            call()
            self._is_armed = False
        except Interrupt:
            self.interrupted += 1
            return True
        except KafkaTimeoutError as error:
            self.timed_out.append(error)
            raise
        finally:
            self._is_armed = False
        return False

    def transact(self, number):
        one, rng = self.one, self._rng
        while self.interruptible(one.begin_transaction, 0.0001):
            if one.transaction_state == "IN_TRANSACTION":
                break
        with contextlib.suppress(KafkaError):
            for index in range(rng.randrange(1, 8)):
                self.write(number, index)
        self.end(number)

    def write(self, number, index):
        one, partition = self.one, self._rng.randrange(2)
        topic = "topic" if number else "new"  # which has to be asked for
        values = [b"%d:%d" % (number, index)]
        calls = [
            lambda: one.send(topic, values[0], partition=partition),
            lambda: one.send_batch(topic, values, partitions=[0, 1, 0]),
            one.flush,
            lambda: one.send_offsets_to_transaction(*OFFSETS),
        ]
        kind = self._rng.choices(range(4), [12, 2, 1, 1])[0]
        if kind == 1:
            values += [b"%d:%d.%d" % (number, index, row) for row in (1, 2)]
        if kind < 2:
            self.book.doubtful[number].update(values)
        if not self.interruptible(calls[kind], 0.0001 if kind < 2 else 0.002) and kind < 2:
            self.book.sent[number].update(values)

    def end(self, number):
        one, rng = self.one, self._rng
        while not is_at_rest(one):
            is_commit = rng.random() < 0.7
            call = one.commit_transaction if is_commit else one.abort_transaction
            with contextlib.suppress(KafkaError):
                if not self.interruptible(call, 0.003):
                    self.book.told[number] = "committed" if is_commit else "aborted"


# A signal may come within a weak reference's callback, where the interpreter drops an exception.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.timeout(2 * LONGEST_S)
@pytest.mark.parametrize("version", [1, 2])
def test_calls_that_signals_interrupt_at_random_lose_and_double_nothing(
    timer, only_wakeups, version
):
    run = ModelProducer(version, max_block_ms=5_000).ready()
    storm = Storm(run, timer, random.Random(version))
    end_s = time.monotonic() + LONGEST_S / 2
    number = 0
    while storm.calls < CALLS and time.monotonic() < end_s:
        storm.transact(number)
        number += 1
    assert not storm.timed_out  # no wake-up was lost
    assert storm.interrupted > 100
    assert storm.calls >= CALLS / 10  # on a slow machine the time is over first
    metrics = run.one.metrics()
    assert metrics["waiting-threads"] == 0
    assert metrics["buffer-available-bytes"] == metrics["buffer-total-bytes"]
    run.one.begin_transaction()
    run.one.send("topic", b"%d:0" % number)
    began_s = time.monotonic()
    run.one.close(CLOSE_S)
    assert time.monotonic() - began_s < CLOSE_S
    assert not run.cluster.open_transactions
    storm.book.compare(run.cluster)
