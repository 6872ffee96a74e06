"""The loop's system calls: the compiled ones do as Python's do."""

from __future__ import annotations

import os
import selectors
import socket
import time
from importlib import import_module
from typing import Any

import pytest

from tests.needs import NO_COMPILED_PARTS
from txnproducer._record.implementation import IMPL
from txnproducer._sync.core_lock import new_loop_priority
from txnproducer._wire import io_calls

HAS_COMPILED = IMPL == "cython" and hasattr(selectors, "EpollSelector")
READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


def make_calls(name: str) -> Any:
    if name == "python":
        return io_calls.IoCalls()
    if not HAS_COMPILED:
        pytest.skip(NO_COMPILED_PARTS)
    return import_module("txnproducer._wire._io_calls").IoCalls(new_loop_priority())


@pytest.fixture(params=["python", "cython"])
def calls(request):
    """Return the calls of one implementation."""
    return make_calls(request.param)


@pytest.fixture
def pair():
    """Return two connected sockets that do not block."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    with ours, theirs:
        yield ours, theirs


@pytest.fixture
def selector():
    """Return a selector."""
    with selectors.DefaultSelector() as selector:
        yield selector


def ready(calls, selector, timeout_ms=0):
    return [(key.data, mask) for key, mask in calls.wait(selector, timeout_ms)]


def test_the_compiled_ones_are_in_use_where_they_can_be():
    chosen = io_calls.io_calls(new_loop_priority())
    assert isinstance(chosen, io_calls.IoCalls) is not HAS_COMPILED


def test_a_wait_returns_the_ready_sockets_and_their_events(calls, selector, pair):
    ours, theirs = pair
    selector.register(ours, READ, "ours")
    selector.register(theirs, READ | WRITE, "theirs")
    assert ready(calls, selector) == [("theirs", WRITE)]

    ours.send(b"x")
    assert ready(calls, selector) == [("theirs", READ | WRITE)]

    theirs.send(b"y")
    assert dict(ready(calls, selector)) == {"ours": READ, "theirs": READ | WRITE}


def test_a_broken_connection_is_ready_for_the_requested_events(calls, selector, pair):
    ours, theirs = pair
    selector.register(ours, READ, "ours")
    theirs.close()
    assert ready(calls, selector) == [("ours", READ)]
    selector.modify(ours, WRITE, "ours")
    assert ready(calls, selector) == [("ours", WRITE)]


def test_a_wait_ends_with_its_time(calls, selector, pair):
    selector.register(pair[0], READ, "ours")
    began = time.monotonic()

    assert ready(calls, selector, 50) == []

    assert 0.04 <= time.monotonic() - began < 5


def test_more_sockets_than_fit_in_one_answer_come_with_the_next(calls, selector):
    pairs = [socket.socketpair() for _ in range(100)]
    for number, (ours, theirs) in enumerate(pairs):
        selector.register(ours, READ, number)
        theirs.send(b"x")
    seen = set()

    for _ in range(10):
        for key, _mask in calls.wait(selector, 0):
            seen.add(key.data)
            key.fileobj.recv(1)

    assert seen == set(range(100))
    for ours, theirs in pairs:
        ours.close()
        theirs.close()


def test_a_selector_that_is_closed_cannot_be_waited_for(calls, selector):
    selector.close()
    with pytest.raises((OSError, ValueError)):
        calls.wait(selector, 0)


def test_each_selector_has_sockets_of_its_own(calls, selector, pair):
    ours, theirs = pair
    with selectors.DefaultSelector() as other:
        selector.register(ours, WRITE, "first")
        other.register(theirs, WRITE, "second")
        assert ready(calls, selector) == [("first", WRITE)]
        assert ready(calls, other) == [("second", WRITE)]
        assert ready(calls, selector) == [("first", WRITE)]


def test_a_selector_is_asked_for_its_map_where_that_has_no_dict(calls, selector, pair):
    class Wrapped:
        fileno = selector.fileno
        select = selector.select
        get_map = selector.get_map

    selector.register(pair[0], WRITE, "ours")
    assert ready(calls, Wrapped()) == [("ours", WRITE)]


def test_a_descriptor_that_is_used_again_belongs_to_the_new_socket(calls, selector, pair):
    ours, theirs = pair
    selector.register(ours, WRITE, "old")
    assert ready(calls, selector) == [("old", WRITE)]
    number = ours.fileno()
    selector.unregister(ours)
    ours.close()

    with socket.socket(fileno=os.dup(theirs.fileno())) as again:
        assert again.fileno() == number
        selector.register(again, WRITE, "new")
        assert ready(calls, selector) == [("new", WRITE)]


def test_parts_go_out_in_one_piece(calls, pair):
    ours, theirs = pair
    parts = [memoryview(b"one"), memoryview(bytearray(b"two")), memoryview(b"")]

    assert calls.send_parts(ours, parts) == 6

    assert calls.receive(theirs, 100) == b"onetwo"


def test_only_so_many_parts_go_at_a_time(calls, pair):
    ours, theirs = pair
    assert calls.send_parts(ours, [memoryview(b"x")] * 100) == 64
    assert calls.receive(theirs, 1000) == b"x" * 64


def send_or_zero(calls, sock, part):
    try:
        return calls.send_parts(sock, [part])
    except BlockingIOError:
        return 0


def test_a_full_socket_takes_a_part_and_then_nothing(calls, pair):
    ours, theirs = pair
    content = memoryview(os.urandom(10_000_000))

    sent = calls.send_parts(ours, [content])
    assert 0 < sent < len(content)
    while (taken := send_or_zero(calls, ours, content[sent:])) > 0:
        sent += taken
    with pytest.raises(BlockingIOError):
        calls.send_parts(ours, [content[sent:]])

    received = b""
    while len(received) < sent:
        received += calls.receive(theirs, 65_536)
    assert received == content[:sent]


def test_receiving_without_data_raises_blocking_io_error(calls, pair):
    with pytest.raises(BlockingIOError):
        calls.receive(pair[0], 10)


def test_no_more_bytes_are_received_than_requested(calls, pair):
    ours, theirs = pair
    theirs.send(b"abcdef")
    assert calls.receive(ours, 4) == b"abcd"
    assert calls.receive(ours, 4) == b"ef"


def test_a_negative_number_of_bytes_is_refused(calls, pair):
    ours, theirs = pair
    theirs.send(b"abc")
    with pytest.raises(ValueError, match="negative buffersize"):
        calls.receive(ours, -1)
    assert calls.receive(ours, 10) == b"abc"


def test_the_end_of_the_stream_is_no_bytes(calls, pair):
    ours, theirs = pair
    theirs.send(b"last")
    theirs.close()
    assert calls.receive(ours, 10) == b"last"
    assert calls.receive(ours, 10) == b""


def test_sending_to_a_closed_socket_raises_and_does_not_kill_the_process(calls, pair):
    ours, theirs = pair
    theirs.close()
    with pytest.raises((BrokenPipeError, ConnectionResetError)):
        calls.send_parts(ours, [memoryview(b"x")])


def test_a_closed_socket_is_no_socket(calls, pair):
    ours, _ = pair
    ours.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        calls.send_parts(ours, [memoryview(b"x")])
    with pytest.raises(OSError, match="Bad file descriptor"):
        calls.receive(ours, 1)


def test_an_object_without_bytes_is_refused(calls, pair):
    with pytest.raises(TypeError):
        calls.send_parts(pair[0], ["text"])
    with pytest.raises(BlockingIOError):
        calls.receive(pair[1], 1)  # nothing was sent
