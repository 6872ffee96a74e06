"""One connection over a pair of sockets: pieces, order, time-outs, throttling, new logins."""

from __future__ import annotations

import contextlib
import math
import struct
import threading
from collections.abc import Callable
from itertools import islice

import pytest

from tests.wire import answers
from tests.wire.wire_pair import END_TXN, HERE, Wire
from txnproducer._protocol import messages as m
from txnproducer._protocol.events import (
    ClientEvent,
    ClientRequest,
    ClientResponse,
)
from txnproducer._wire import connector
from txnproducer._wire import kafka_python as kp
from txnproducer._wire.connection import NEVER_MS
from txnproducer.errors import DisconnectError, KafkaTimeoutError, SaslAuthenticationError
from txnproducer.records import TopicPartition


def bodies(events: list[ClientEvent]) -> list[object]:
    return [event.body for event in events if isinstance(event, ClientResponse)]


# --- bytes --------------------------------------------------------------------------------------


def test_a_request_and_its_answer(wire: Wire) -> None:
    request = wire.send()
    assert b"\x02x" in wire.read()
    wire.answer(answers.end_txn(10))
    assert wire.receive() == [ClientResponse(request, m.EndTxnResponse(0, 1, 2, 0))]
    assert wire.connection.in_flight_count == 0


def test_an_answer_may_come_byte_by_byte(wire: Wire) -> None:
    wire.send()
    data = answers.framed(answers.end_txn(10))
    events: list[ClientEvent] = []
    for number in range(len(data)):
        assert events == []
        wire.broker.sendall(data[number : number + 1])
        events += wire.receive()
    assert bodies(events) == [m.EndTxnResponse(0, 1, 2, 0)]


def test_several_answers_may_come_in_one_piece_with_half_of_the_next(wire: Wire) -> None:
    requests = [wire.send() for _ in range(3)]
    data = b"".join(answers.framed(answers.end_txn(10 + number)) for number in range(3))
    wire.broker.sendall(data[:-7])
    first = wire.receive()
    wire.broker.sendall(data[-7:])
    got = first + wire.receive()
    assert [event.request for event in got if isinstance(event, ClientResponse)] == requests
    assert len(first) == 2


def test_a_request_larger_than_the_sockets_buffer_goes_out_in_pieces(wire: Wire) -> None:
    records = bytes(range(256)) * 16_384  # 4 MiB
    part = m.ProducePartition(TopicPartition("t", 0), records)
    body = m.ProduceRequest("x", -1, 1000, (part,))
    wire.send(body, version=11)
    assert wire.connection.output
    received = bytearray()
    wire.broker.settimeout(0.002)
    while wire.connection.output:
        with contextlib.suppress(TimeoutError):
            while len(received) < 6_000_000:
                received += wire.broker.recv(1_000_000)
        wire.connection.flush()
    with contextlib.suppress(TimeoutError):
        while True:
            received += wire.broker.recv(1_000_000)
    assert records in received
    assert int.from_bytes(received[:4], "big") == len(received) - 4


def test_many_small_parts_go_out_whole(wire: Wire) -> None:
    parts = tuple(
        m.ProducePartition(TopicPartition("t", number), b"batch %d" % number)
        for number in range(200)
    )
    wire.send(m.ProduceRequest("x", -1, 1000, parts), version=11)
    request = wire.read()
    assert all(b"batch %d" % number in request for number in range(200))


# --- acks=0 -------------------------------------------------------------------------------------


PARTITION = TopicPartition("t", 0)


def without_acks(records: bytes = b"batch") -> m.ProduceRequest:
    return m.ProduceRequest(None, 0, 1000, (m.ProducePartition(PARTITION, records),))


def test_produce_without_acknowledgement_ends_once_the_socket_has_its_bytes(wire: Wire) -> None:
    request = ClientRequest(1, HERE, without_acks(), 0, 1000)
    wire.connection.send_request(request, 11, 0)
    assert not wire.connection.take_written()
    assert wire.connection.in_flight_count == 1
    wire.connection.flush()
    assert b"batch" in wire.read()
    expected = m.ProduceResponse((m.ProducePartitionResponse(PARTITION, 0, -1),))
    assert wire.connection.take_written() == [ClientResponse(request, expected)]
    assert wire.connection.in_flight_count == 0


def test_requests_without_acknowledgement_end_in_turn_as_the_peer_reads(wire: Wire) -> None:
    requests = [ClientRequest(n, HERE, without_acks(bytes(1_000_000)), 0, 1000) for n in range(3)]
    for request in requests:
        wire.connection.send_request(request, 11, 0)
    size = sum(map(len, wire.connection.output)) // 3
    wire.broker.settimeout(0.002)
    told: list[ClientRequest] = []
    while wire.connection.output:
        wire.connection.flush()
        left = sum(map(len, wire.connection.output))
        told += [end.request for end in wire.connection.take_written()]
        assert told == requests[: 3 - math.ceil(left / size)]
        with contextlib.suppress(TimeoutError):
            wire.broker.recv(100_000)
    assert told == requests


def test_a_peer_that_does_not_read_gets_no_more_requests_than_allowed(wire: Wire) -> None:
    for _ in range(5):
        wire.send(without_acks(bytes(2_000_000)), version=11)
    assert not wire.connection.take_written()
    assert not wire.connection.can_send(0)
    assert wire.connection.next_deadline_ms() == 1000
    with pytest.raises(KafkaTimeoutError, match="did not take a request"):
        wire.connection.tick(1000)
    assert len(wire.connection.close(1000)) == 5


def test_the_requests_that_are_left_come_back_in_the_order_of_their_sending(wire: Wire) -> None:
    first = wire.send()
    second = wire.send(without_acks(bytes(2_000_000)), version=11)
    third = wire.send()
    assert wire.connection.close(0) == [(first, False), (second, False), (third, False)]


# --- the connection ends ------------------------------------------------------------------------


def test_answers_that_came_before_the_end_of_file_are_not_lost(wire: Wire) -> None:
    for _ in range(2):
        wire.send()
        wire.read()
    wire.answer(answers.end_txn(10))
    wire.broker.close()
    assert len(wire.receive()) == 1
    with pytest.raises(DisconnectError, match="closed"):
        wire.receive()
    assert len(wire.connection.close(0)) == 1


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (answers.framed(answers.end_txn(11)), "answered request 11"),
        (struct.pack(">ii", -5, 10), "-5 bytes"),
        (b"HTTP/1.1 400 Bad Request", "bytes: giving up"),
        (struct.pack(">ii", 2**30, 10), "bytes: giving up"),
        (answers.framed(answers.end_txn(10)[:-6]), "cannot decode"),
    ],
    ids=["another-number", "negative-size", "http", "huge", "cut"],
)
def test_bytes_that_cannot_be_the_answer_end_the_connection(
    wire: Wire, data: bytes, says: str
) -> None:
    request = wire.send()
    wire.broker.sendall(data)
    with pytest.raises(DisconnectError, match=says):
        wire.receive()
    assert wire.connection.close(0) == [(request, False)]


def test_an_answer_without_a_request_ends_the_connection(wire: Wire) -> None:
    wire.answer(answers.end_txn(10))
    with pytest.raises(DisconnectError, match="the client did not ask for"):
        wire.receive()


def test_writing_to_a_closed_socket_ends_the_connection(wire: Wire) -> None:
    wire.broker.close()
    with pytest.raises(DisconnectError, match="cannot write"):
        wire.send()


# --- time ---------------------------------------------------------------------------------------


def test_the_deadline_of_each_request_counts_not_only_the_first_ones(wire: Wire) -> None:
    slow = wire.send(timeout_ms=5000)
    quick = wire.send(now_ms=100, timeout_ms=300)
    assert wire.connection.next_deadline_ms() == 400
    wire.connection.tick(399)
    with pytest.raises(KafkaTimeoutError):
        wire.connection.tick(400)
    assert wire.connection.close(400) == [(slow, False), (quick, True)]


def test_no_more_requests_than_may_be_in_flight(open_wire: Callable[..., Wire]) -> None:
    wire = open_wire(max_in_flight=2)
    wire.send()
    assert wire.connection.can_send(0)
    wire.send()
    assert not wire.connection.can_send(0)
    wire.answer(answers.end_txn(10))
    wire.receive()
    assert wire.connection.can_send(0)


def test_a_throttled_answer_mutes_the_connection_for_its_time(wire: Wire) -> None:
    wire.send()
    wire.answer(answers.end_txn(10, throttle_ms=250))
    (event,) = wire.receive(now_ms=1000)
    assert isinstance(event, ClientResponse)
    assert wire.connection.muted_until_ms == 1250
    assert not wire.connection.can_send(1249)
    assert wire.connection.can_send(1250)


def test_a_later_and_smaller_throttle_does_not_lift_an_earlier_one(wire: Wire) -> None:
    wire.send()
    wire.send()
    wire.answer(answers.end_txn(10, throttle_ms=500))
    wire.receive(now_ms=1000)
    wire.answer(answers.end_txn(11, throttle_ms=20))
    wire.receive(now_ms=1100)
    assert wire.connection.muted_until_ms == 1500
    assert not wire.connection.can_send(1499)


def test_a_version_in_which_the_broker_itself_waited_does_not_mute(wire: Wire) -> None:
    request = ClientRequest(1, HERE, END_TXN, 0, 1000)
    wire.connection.send_request(request, 0, 0)
    answer = kp.EndTxnResponse(version=0, throttle_time_ms=250, error_code=0)
    wire.answer(answers.payload(answer, 10))
    wire.receive(now_ms=1000)
    assert wire.connection.can_send(1000)


# --- re-authentication (KIP-368) ----------------------------------------------------------------


def test_a_session_without_an_end_needs_no_second_login(wire: Wire) -> None:
    assert wire.connection.next_deadline_ms() == NEVER_MS


def test_the_login_is_repeated_before_the_session_ends(open_wire: Callable[..., Wire]) -> None:
    wire = open_wire(lifetime_ms=10_000)
    due = wire.connection.next_deadline_ms()
    assert 8_500 <= due <= 9_500
    wire.connection.tick(due - 1)
    assert wire.connection.can_send(due - 1)
    wire.connection.tick(due)
    assert not wire.connection.can_send(due)
    assert b"PLAIN" in wire.read()
    wire.answer(answers.sasl_handshake(10))
    wire.go_on(due)
    assert b"u\0u\0p" in wire.read()
    assert not wire.connection.can_send(due)
    wire.answer(answers.sasl_authenticate(11, lifetime_ms=10_000))
    wire.go_on(due + 700)
    assert wire.connection.can_send(due + 700)
    next_due = wire.connection.next_deadline_ms()
    assert due + 8_500 <= next_due <= due + 9_500, "counted from the question, not the answer"


def test_the_first_session_is_counted_from_the_login_itself(
    open_wire: Callable[..., Wire],
) -> None:
    wire = open_wire(lifetime_ms=10_000, login_ms=-2_000)
    assert 6_500 <= wire.connection.next_deadline_ms() <= 7_500


def test_the_second_login_waits_for_answers_and_lets_no_request_in(
    open_wire: Callable[..., Wire],
) -> None:
    wire = open_wire(lifetime_ms=10_000)
    wire.send(timeout_ms=60_000)
    wire.read()
    wire.connection.tick(9_600)
    assert not wire.connection.can_send(9_600)
    wire.broker.settimeout(0.05)
    with pytest.raises(TimeoutError):
        wire.broker.recv(1)
    wire.answer(answers.end_txn(10))
    assert len(wire.receive(9_700)) == 1
    wire.connection.tick(9_700)
    assert b"PLAIN" in wire.read()
    assert not wire.connection.can_send(9_700)


def test_a_refused_second_login_ends_the_connection_as_a_refusal(
    open_wire: Callable[..., Wire],
) -> None:
    wire = open_wire(lifetime_ms=10_000)
    wire.connection.tick(9_600)
    wire.answer(answers.sasl_handshake(10))
    wire.go_on(9_600)
    wire.answer(answers.sasl_authenticate(11, error_code=58, error_message="revoked"))
    with pytest.raises(SaslAuthenticationError, match="revoked"):
        wire.go_on(9_600)


def test_a_second_login_without_an_answer_times_out(open_wire: Callable[..., Wire]) -> None:
    wire = open_wire(lifetime_ms=10_000)
    wire.connection.tick(9_600)
    deadline = wire.connection.next_deadline_ms()
    assert deadline < NEVER_MS
    with pytest.raises(KafkaTimeoutError, match="re-authentication"):
        wire.connection.tick(deadline)


def test_a_second_login_that_our_side_holds_up_times_out_and_says_so(
    open_wire: Callable[..., Wire], monkeypatch: pytest.MonkeyPatch
) -> None:
    may_go_on = threading.Event()
    monkeypatch.setattr(
        "txnproducer._wire.handshake.make_mechanism", lambda *_: may_go_on.wait(10)
    )
    wire = open_wire(lifetime_ms=10_000)
    wire.connection.tick(9_600)
    wire.answer(answers.sasl_handshake(10))
    wire.receive(9_600)
    deadline = wire.connection.next_deadline_ms()
    with pytest.raises(KafkaTimeoutError, match="token provider"):
        wire.connection.tick(deadline)
    may_go_on.set()


def test_the_numbers_of_requests_begin_again_after_the_largest(monkeypatch):
    monkeypatch.setattr(connector, "_LARGEST_CORRELATION_ID", 2)
    assert list(islice(connector.new_correlation_ids(), 7)) == [0, 1, 2, 0, 1, 2, 0]
    monkeypatch.undo()
    # An int32 takes no more.
    assert connector._LARGEST_CORRELATION_ID == 2**31 - 1
