"""Log records that are made with the core's lock go to handlers without it."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from txnproducer._sync import held_logs
from txnproducer._sync.core_lock import new_lock
from txnproducer.testing import InMemoryKafka

ROOT = Path(__file__).parent.parent
LOGGER = held_logs.held_logger("txnproducer.tests.held")


class Loop:
    """A loop with a lock, and no thread."""

    def __init__(self) -> None:
        self.lock = new_lock()
        self.has_ended = False
        self.pokes = 0

    def must_hold_logs(self) -> bool:
        return self.lock.is_mine() and not self.has_ended

    def poke(self) -> None:
        assert self.lock.is_mine()
        self.pokes += 1


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop()
    held_logs.watch(loop)
    yield loop
    assert not held_logs.held


def test_a_record_made_with_the_lock_waits_and_wakes_the_loop(
    loop: Loop, caplog: pytest.LogCaptureFixture
) -> None:
    with loop.lock:
        LOGGER.warning("first %s", "record")
        LOGGER.warning("second")
        held_logs.hand_out()
        assert not caplog.messages
        assert loop.pokes == 2
    held_logs.hand_out()
    assert caplog.messages == ["first record", "second"]
    assert caplog.records[0].funcName.startswith("test_a_record_made_with_the_lock")


def test_a_record_of_a_thread_without_the_lock_goes_out_at_once(
    loop: Loop, caplog: pytest.LogCaptureFixture
) -> None:
    LOGGER.warning("mine")
    with loop.lock:
        thread = threading.Thread(target=LOGGER.warning, args=("another thread's",))
        thread.start()
        thread.join()
    assert caplog.messages == ["mine", "another thread's"]


def test_once_the_loop_has_ended_nothing_waits_for_it(
    loop: Loop, caplog: pytest.LogCaptureFixture
) -> None:
    loop.has_ended = True
    with loop.lock:
        LOGGER.warning("late")
    assert caplog.messages == ["late"]


def test_a_loop_that_is_gone_is_forgotten(caplog: pytest.LogCaptureFixture) -> None:
    loop = Loop()
    held_logs.watch(loop)
    lock = loop.lock
    del loop
    with lock:
        LOGGER.warning("alone")
    assert caplog.messages == ["alone"]


class SendingHandler(logging.Handler):
    """A handler that sends each line, while a broker goes away."""

    def __init__(self, kafka: InMemoryKafka) -> None:
        super().__init__(logging.WARNING)
        self._kafka = kafka
        self._producer = kafka.producer()
        self._producer.send("logs", b"first").result()
        self.told: list[str] = []
        self.has_told = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.told.append(record.name)
        if record.name == "app":
            # The loop's thread warns of the outage, and its record waits for this handler.
            self._kafka.stop_node(0)
            self.has_told.wait(0.3)
        else:
            self.has_told.set()
        self._producer.send("logs", b"line")


def test_a_handler_that_sends_does_not_stand_against_the_loops_own_record() -> None:
    with InMemoryKafka(topics={"logs": 1}) as kafka:
        handler = SendingHandler(kafka)
        logging.getLogger().addHandler(handler)
        try:
            app = logging.getLogger("app")
            thread = threading.Thread(target=app.warning, args=("hello",), daemon=True)
            thread.start()
            thread.join(10)
            assert not thread.is_alive()
            assert handler.has_told.wait(10)
        finally:
            logging.getLogger().removeHandler(handler)
        kafka.start_node(0)
    assert "txnproducer._core.failed_tries" in handler.told


@pytest.mark.parametrize("room", ["_core", "_wire", "_shell"])
def test_code_that_may_have_the_lock_logs_by_such_a_logger(room: str) -> None:
    direct = [
        path.name
        for path in (ROOT / "txnproducer" / room).rglob("*.py")
        if re.search(r"\blogging\.getLogger\(", path.read_text(encoding="utf-8"))
    ]
    assert direct == []
