"""Log records of this package go to the handlers on a thread of their own."""

from __future__ import annotations

import logging
import logging.config
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import wait_until
from txnproducer._shell import log_thread
from txnproducer._sync import held_logs
from txnproducer.testing import InMemoryKafka

ROOT = Path(__file__).parent.parent
LOGGER = held_logs.held_logger("txnproducer.tests.held")


class Loop:
    """A loop without a thread."""

    has_ended = False


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop()
    log_thread.watch(loop)
    yield loop
    log_thread.hand_out()


class Handler(logging.Handler):
    """A handler that calls a function of the test."""

    def __init__(self, emit: Callable[[logging.LogRecord], object], level: int = 0) -> None:
        super().__init__(level)
        self._emit = emit
        self.records: list[logging.LogRecord] = []
        self.threads: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)
        self.threads.append(threading.current_thread().name)
        self._emit(record)


@pytest.fixture
def add() -> Iterator[Callable[..., Handler]]:
    """Return a function that adds a handler of all records."""
    added: list[Handler] = []

    def add(emit: Callable[[logging.LogRecord], object], level: int = 0) -> Handler:
        added.append(Handler(emit, level))
        logging.getLogger().addHandler(added[-1])
        return added[-1]

    yield add
    for handler in added:
        logging.getLogger().removeHandler(handler)


def test_a_record_reaches_handlers_in_order_on_another_thread(
    loop: Loop, add: Callable[..., Handler]
) -> None:
    handler = add(lambda _: None)
    for number in range(20):
        LOGGER.warning("record %d", number)
    wait_until(lambda: len(handler.records) == 20)
    assert [record.getMessage() for record in handler.records] == [
        f"record {n}" for n in range(20)
    ]
    assert set(handler.threads) == {log_thread.THREAD_NAME}
    assert handler.records[0].funcName.startswith("test_a_record_reaches")


def test_arguments_keep_the_text_of_their_time(
    loop: Loop, caplog: pytest.LogCaptureFixture
) -> None:
    changing, error = [1], ValueError("kept for tools that look at it")
    with log_thread._courier.giving:  # as while another record is handed out
        LOGGER.warning("%s, %r, %d, %s", changing, changing, 7, error)
        LOGGER.warning("%(list)s", {"list": changing})
        changing.append(2)
    assert caplog.messages == [f"[1], [1], 7, {error}", "[1]"]
    assert caplog.records[0].args[3] is error  # type: ignore[index]


def test_once_all_loops_have_ended_records_go_out_at_once(
    loop: Loop, add: Callable[..., Handler]
) -> None:
    handler = add(lambda _: None)
    loop.has_ended = True
    LOGGER.warning("late")
    assert handler.threads == [threading.current_thread().name]


def test_a_loop_that_is_gone_is_forgotten(add: Callable[..., Handler]) -> None:
    handler = add(lambda _: None)
    loop = Loop()
    log_thread.watch(loop)
    del loop
    LOGGER.warning("alone")
    assert len(handler.records) == 1


def test_the_thread_ends_after_the_loops_and_begins_again(
    add: Callable[..., Handler], monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_running() -> bool:
        return any(each.name == log_thread.THREAD_NAME for each in threading.enumerate())

    def has(count: int) -> bool:
        return len(handler.records) == count

    wait_until(lambda: not is_running())
    monkeypatch.setattr(log_thread, "_IDLE_S", 0.01)
    handler = add(lambda _: None)
    for count in (1, 2):
        loop = Loop()
        log_thread.watch(loop)
        LOGGER.warning("record %d", count)
        wait_until(partial(has, count))
        time.sleep(0.05)
        assert is_running(), "Python 3.12 may start no other one later"
        loop.has_ended = True
        wait_until(lambda: not is_running())


def test_the_record_of_a_handlers_own_call_does_not_come_back_to_it(
    loop: Loop, add: Callable[..., Handler]
) -> None:
    handler = add(lambda record: LOGGER.warning("of the handler, which got %s", record))
    LOGGER.warning("first")
    log_thread.hand_out()
    LOGGER.warning("second")
    log_thread.hand_out()
    assert [record.getMessage() for record in handler.records] == ["first", "second"]


def test_a_handler_that_raises_loses_one_record(
    loop: Loop, add: Callable[..., Handler], capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(record: logging.LogRecord) -> None:
        if record.msg == "first":
            raise ValueError("broken handler")

    handler = add(fail)
    LOGGER.warning("first")
    LOGGER.warning("second")
    log_thread.hand_out()
    assert len(handler.records) == 2
    assert "broken handler" in capsys.readouterr().err


def test_an_exit_in_a_handler_does_not_end_the_thread(
    loop: Loop, add: Callable[..., Handler], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging, "raiseExceptions", False)
    handler = add(lambda record: sys.exit(1) if record.msg == "first" else None)
    for text in ("first", "second", "third"):
        LOGGER.warning(text)
    wait_until(lambda: len(handler.records) == 3)
    LOGGER.warning("fourth")
    wait_until(lambda: len(handler.records) == 4)


def test_a_failure_that_cannot_be_printed_does_not_end_the_thread(
    loop: Loop, add: Callable[..., Handler], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    closed = (tmp_path / "errors").open("w")
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)

    def fail(_: logging.LogRecord) -> None:
        raise ValueError("broken handler")

    handler = add(fail)
    for count in (1, 2):
        LOGGER.warning("record %d", count)
        log_thread.hand_out()
        assert len(handler.records) == count


def test_an_argument_without_a_text_does_not_raise(
    loop: Loop, caplog: pytest.LogCaptureFixture
) -> None:
    class Unprintable:
        def __repr__(self) -> str:
            raise ValueError("no text")

    LOGGER.warning("%s", Unprintable())
    assert caplog.messages == ["<unprintable Unprintable>"]


def test_a_handler_that_hangs_costs_no_more_than_a_bound(
    loop: Loop, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_thread, "_MOST", 3)
    with log_thread._courier.giving:
        for number in range(5):
            LOGGER.warning("record %d", number)
    assert caplog.messages[:3] == ["record 0", "record 1", "record 2"]
    assert caplog.messages[3:] == ["2 log records were dropped, since the handlers were too slow"]


def test_a_record_after_the_last_loop_does_not_pass_those_before(
    loop: Loop, caplog: pytest.LogCaptureFixture
) -> None:
    with log_thread._courier.giving:
        LOGGER.warning("held")
        loop.has_ended = True
        LOGGER.warning("late")
    assert caplog.messages == ["held", "late"]


def test_where_no_thread_starts_handlers_get_the_record_at_once(
    loop: Loop, add: Callable[..., Handler], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(**_: object) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(log_thread, "_courier", log_thread._Courier())
    handler = add(lambda _: None)
    with monkeypatch.context() as patch:
        patch.setattr(threading, "Thread", fail)
        LOGGER.warning("at once")
        assert len(handler.records) == 1
    LOGGER.warning("by the thread")
    wait_until(lambda: len(handler.records) == 2)


def test_an_interrupt_of_the_threads_start_leaves_later_records_their_thread(
    loop: Loop, add: Callable[..., Handler], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(**_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(log_thread, "_courier", log_thread._Courier())
    handler = add(lambda _: None)
    with monkeypatch.context() as patch:
        patch.setattr(threading, "Thread", interrupt)
        with pytest.raises(KeyboardInterrupt):
            LOGGER.warning("interrupted")
    LOGGER.warning("next")
    wait_until(lambda: len(handler.records) == 2)


def test_the_warning_of_a_finalizer_within_a_handler_is_kept(
    loop: Loop, add: Callable[..., Handler]
) -> None:
    def finalize(record: logging.LogRecord) -> None:
        if record.msg == "first":
            LOGGER.warning("dropped with a transaction open", extra=log_thread.OF_FINALIZER)

    handler = add(finalize)
    LOGGER.warning("first")
    wait_until(lambda: len(handler.records) == 2)


def test_a_logger_class_of_the_program_stays_and_takes_no_lock() -> None:
    class OfTheProgram(logging.Logger):
        pass

    usual = logging.getLoggerClass()
    logging.setLoggerClass(OfTheProgram)
    try:
        logger = held_logs.held_logger("txnproducer.tests.of_the_program")
    finally:
        logging.setLoggerClass(usual)
    assert isinstance(logger, OfTheProgram)
    assert not logger._cache  # type: ignore[attr-defined]
    logger.isEnabledFor(logging.INFO)
    assert not logger._cache, "the usual one fills it under the lock"  # type: ignore[attr-defined]


def test_at_exit_a_slow_handler_gets_all_records(loop: Loop, add: Callable[..., Handler]) -> None:
    handler = add(lambda _: time.sleep(0.01))
    for number in range(60):
        LOGGER.warning("record %d", number)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_thread, "_EXIT_S", 0.1)
        log_thread._hand_out_at_exit()
    assert len(handler.records) == 60


def test_at_exit_a_handler_that_hangs_is_not_waited_for(
    loop: Loop, add: Callable[..., Handler], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_thread, "_EXIT_S", 0.1)
    hangs, ends = threading.Event(), threading.Event()

    def hang(_: logging.LogRecord) -> None:
        hangs.set()
        ends.wait(30)

    add(hang)
    LOGGER.warning("record")
    assert hangs.wait(10)
    log_thread._hand_out_at_exit()
    assert log_thread._courier.record is not None, "the handler still has it"
    ends.set()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform has no fork")
def test_the_child_of_a_fork_has_a_thread_of_its_own() -> None:
    program = """
import logging, os, sys, threading, time
from txnproducer._sync import held_logs
from txnproducer._shell import log_thread
class Loop: has_ended = False
loop = Loop(); log_thread.watch(loop)
log = held_logs.held_logger("a")
begun = threading.Event()
class Slow(logging.StreamHandler):
    def emit(self, record):
        begun.set()
        time.sleep(0.3)
        super().emit(record)
logging.basicConfig(handlers=[Slow(sys.stdout)], format="%(process)d %(message)s")
log.warning("the parent's")
begun.wait()
if os.fork() == 0:
    log.warning("the child's")
    log_thread.hand_out()
    sys.stdout.flush()
    os._exit(0)
os.wait()
print(os.getpid())
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True
    )
    lines = done.stdout.split("\n")
    parent = next(line for line in lines if line.isdigit())
    told = sorted(line.partition(" ")[2] for line in lines if " " in line)
    assert told == ["the child's", "the parent's"], done
    assert f"{parent} the parent's" in lines


def test_the_exit_hands_out_what_waits() -> None:
    program = """
import logging, sys
from txnproducer._shell import log_thread
from txnproducer._sync import held_logs
from txnproducer._shell import log_thread
class Loop: has_ended = False
loop = Loop(); log_thread.watch(loop)
logging.basicConfig(stream=sys.stdout, format="%(message)s")
for number in range(50): held_logs.held_logger("a").warning("record %d", number)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split("\n")[:-1] == [f"record {number}" for number in range(50)]


# --- handlers that send --------------------------------------------------------------------------


def test_a_handler_that_waits_for_its_own_producer_gets_its_answer(
    add: Callable[..., Handler],
) -> None:
    with InMemoryKafka(topics={"logs": 1}) as kafka:
        producer = kafka.producer()
        results: list[Any] = []

        def send(record: logging.LogRecord) -> None:
            if record.name == "app":  # it waits for a loop that logs meanwhile
                results.append(producer.send("logs", b"line").result(20))

        handler = add(send)
        logging.getLogger("txnproducer").setLevel(logging.DEBUG)
        try:
            logging.getLogger("app").warning("hello")
        finally:
            logging.getLogger("txnproducer").setLevel(logging.NOTSET)
        log_thread.hand_out()
        assert [result.offset for result in results] == [0]
        assert any(record.name.startswith("txnproducer._") for record in handler.records)


def test_a_handler_that_breaks_takes_no_delivery_callback_with_it(
    add: Callable[..., Handler], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging, "raiseExceptions", False)

    def fail(record: logging.LogRecord) -> None:
        raise ValueError(record)

    with InMemoryKafka(topics={"t": 1}) as kafka:
        producer = kafka.producer(transactional_id="x")
        producer.init_transactions()
        producer.begin_transaction()
        handler = add(fail, logging.INFO)
        monkeypatch.setattr(logging.getLogger("txnproducer"), "level", logging.INFO)
        kafka.fail_next("Produce", error="INVALID_RECORD", times=1)
        told: list[object] = []
        future = producer.send("t", b"v", on_delivery=lambda *ended: told.append(ended))
        assert future.exception(20) is not None
        producer.abort_transaction()
        assert len(told) == 1
        log_thread.hand_out()
        assert handler.records


def test_a_handler_whose_making_waits_for_a_producer_can_be_configured() -> None:
    with InMemoryKafka(topics={"logs": 1}) as kafka:

        def make() -> logging.Handler:
            root = logging.getLogger()
            root.setLevel(root.level)  # forgets which levels count
            with kafka.producer(max_block_ms=20_000) as producer:
                producer.send("logs", b"first").result(20)
            return logging.NullHandler()

        # `dictConfig` holds the lock of `logging` meanwhile.
        handlers = {"sending": {"()": make}}
        config = {"version": 1, "disable_existing_loggers": False, "handlers": handlers}
        thread = threading.Thread(target=logging.config.dictConfig, args=(config,), daemon=True)
        thread.start()
        thread.join(30)
        assert not thread.is_alive()


@pytest.mark.parametrize("room", ["_core", "_wire", "_shell"])
def test_code_that_must_not_wait_for_a_handler_logs_by_such_a_logger(room: str) -> None:
    direct = [
        path.name
        for path in (ROOT / "txnproducer" / room).rglob("*.py")
        if re.search(r"\blogging\.getLogger\(", path.read_text(encoding="utf-8"))
    ]
    assert direct == (["log_thread.py"] if room == "_shell" else [])
