"""Broken and hostile brokers: the connection is given up, in bounded time and memory."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable

import pytest

from tests.wire import answers
from tests.wire.client_driver import BOOTSTRAP, Driver, clock_ms
from tests.wire.fake_broker import FakeBroker
from tests.wire.test_handshake import ask_versions, log_in
from tests.wire.test_network_client import obliging
from tests.wire.wire_pair import Wire
from txnproducer._protocol import messages as m
from txnproducer._protocol.events import ResponseFailure
from txnproducer._wire import kafka_python as kp
from txnproducer._wire.codec import ResponseDecodeError, WireCodec
from txnproducer.errors import DisconnectError, SaslAuthenticationError

CHUNK = 65_536
LARGEST_ANSWER = 1024 * 1024


# --- reading ------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [LARGEST_ANSWER + 1, 2**31 - 1, 3, 0, -1])
def test_a_size_is_judged_when_its_four_bytes_are_in(wire: Wire, size: int) -> None:
    wire.send()
    wire.broker.sendall(struct.pack(">i", size))
    with pytest.raises(DisconnectError, match=f"a frame of {size} bytes"):
        wire.receive()


def test_the_largest_answer_is_waited_for(wire: Wire) -> None:
    wire.send()
    wire.broker.sendall(struct.pack(">ii", LARGEST_ANSWER, 10))
    assert wire.receive() == []


def test_metadata_may_be_large(wire: Wire) -> None:
    wire.send(m.MetadataRequest(("t",)), 12)
    wire.broker.sendall(struct.pack(">ii", 16 * LARGEST_ANSWER, 10))
    assert wire.receive() == []


def test_metadata_has_a_bound_of_its_own(wire: Wire) -> None:
    wire.send(m.MetadataRequest(("t",)), 12)
    wire.broker.sendall(struct.pack(">i", 16 * LARGEST_ANSWER + 1))
    with pytest.raises(DisconnectError, match="a frame of"):
        wire.receive()


@pytest.mark.parametrize("number", [11, -1])
def test_a_large_frame_without_a_request_is_refused_by_its_header(wire: Wire, number: int) -> None:
    wire.send()
    wire.broker.sendall(struct.pack(">ii", LARGEST_ANSWER, number))
    with pytest.raises(DisconnectError, match=f"answered request {number}"):
        wire.receive()


def test_a_frame_without_any_request_is_refused_by_its_head(wire: Wire) -> None:
    wire.broker.sendall(struct.pack(">ii", LARGEST_ANSWER, 10))
    with pytest.raises(DisconnectError, match="the client did not ask for"):
        wire.receive()


def test_a_sender_that_never_pauses_leaves_the_loop_its_turn(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    wire.send()
    chunks = [struct.pack(">ii", LARGEST_ANSWER, 10).ljust(CHUNK, b"\0")]
    chunks += [bytes(CHUNK)] * 63
    unread = iter(chunks)
    monkeypatch.setattr(wire.connection, "_receive", lambda size: next(unread))
    assert wire.receive() == []
    assert len(list(unread)) == 48
    assert len(wire.connection._received) == 16 * CHUNK


def test_no_more_than_one_frame_is_held(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    wire.send()
    good = answers.framed(answers.end_txn(10))
    # After the answer: frames without an end, of which the first is already too much.
    unread = iter([good + good, *[bytes(CHUNK)] * 63])
    monkeypatch.setattr(wire.connection, "_receive", lambda size: next(unread))
    with pytest.raises(DisconnectError, match="the client did not ask for"):
        wire.receive()
    assert len(list(unread)) == 63


# --- logins -------------------------------------------------------------------------------------


def test_nulls_in_a_new_login_end_the_connection(open_wire: Callable[..., Wire]) -> None:
    wire = open_wire(lifetime_ms=10_000)
    due = wire.connection.next_deadline_ms()
    wire.connection.tick(due)
    wire.read()
    wire.answer(answers.sasl_handshake(10))
    wire.go_on(due)
    wire.read()
    good = answers.sasl_authenticate(11, auth_bytes=b"x")
    assert good.count(b"\x02x") == 1
    wire.answer(good.replace(b"\x02x", b"\0"))
    with pytest.raises(ResponseDecodeError, match="AuthBytes has the length -1"):
        wire.go_on(due)


def test_a_login_takes_no_large_frames(open_wire: Callable[..., Wire]) -> None:
    wire = open_wire(lifetime_ms=10_000)
    due = wire.connection.next_deadline_ms()
    wire.connection.tick(due)
    wire.broker.sendall(struct.pack(">i", 1_000_001))
    with pytest.raises(DisconnectError, match="1000001 bytes"):
        wire.receive(due)


def test_null_mechanisms_and_padded_handshakes_are_refused() -> None:
    refused = answers.sasl_handshake(0, error_code=33, mechanisms=())
    for damaged in (refused[:-4] + b"\xff" * 4, refused + b"\0"):
        with pytest.raises(ResponseDecodeError):
            log_in().answer(damaged)


def test_versions_that_do_not_follow_the_schema_are_refused() -> None:
    good = answers.api_versions(0, features={"f": 1}, epoch=3)
    for damaged in (good + b"\0", good[:-1], good[:6] + b"\0" + good[7:]):
        with pytest.raises(ResponseDecodeError, match="not Kafka's"):
            ask_versions().answer(damaged)


def test_a_negative_version_of_logins_is_the_oldest() -> None:
    talk = ask_versions().answer(answers.api_versions(0, offer={18: 4, 36: -5}))
    assert talk.result.sasl_authenticate_version == 0


def first_message(asked: bytes, iterations: bytes) -> bytes:
    nonce = asked[asked.index(b",r=") + 3 :].rstrip(b"\0")
    return b"r=" + nonce + b"server,s=c2FsdA==,i=" + iterations


@pytest.mark.parametrize(
    "iterations",
    [b"4095", b"1", b"0", b"-4096", b"1000001", b"9" * 5000, b"many", b"", b"4096,i=1"],
    ids=lambda text: text[:10].decode(),
)
@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_scram_takes_neither_few_iterations_nor_endless_ones(
    mechanism: str, iterations: bytes
) -> None:
    talk = log_in(mechanism).answer(answers.sasl_handshake(0))
    message = first_message(talk.asked, iterations)
    with pytest.raises(SaslAuthenticationError, match="but 4096 to 1000000 are accepted"):
        talk.answer(answers.sasl_authenticate(1, auth_bytes=message))


def test_scram_takes_the_least_number_of_iterations() -> None:
    talk = log_in("SCRAM-SHA-256").answer(answers.sasl_handshake(0))
    talk.answer(answers.sasl_authenticate(1, auth_bytes=first_message(talk.asked, b"4096")))
    assert b",p=" in talk.asked


# --- the loop -----------------------------------------------------------------------------------


def test_an_unexpected_error_costs_the_connection_and_not_the_loop(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise TypeError("a bug")

    with FakeBroker(obliging) as broker, contextlib.closing(Driver(broker.address)) as driver:
        driver.connect()
        with monkeypatch.context() as patch:
            patch.setattr(WireCodec, "decode", fail)
            (answer,) = driver.answers_to(driver.send())
        assert answer.failure is ResponseFailure.DISCONNECTED
        assert isinstance(answer.error, DisconnectError)
        assert isinstance(answer.error.__cause__, TypeError)
        assert "an unexpected error" in caplog.text
        driver.events.clear()
        driver.until(lambda: driver.client.is_ready(BOOTSTRAP, clock_ms()))
        (answer,) = driver.answers_to(driver.send())
        assert answer.failure is None


def test_an_unexpected_error_in_a_tick_costs_the_connection_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with FakeBroker() as broker, contextlib.closing(Driver(broker.address)) as driver:
        driver.connect()
        request = driver.send(timeout_ms=60_000)

        def fail(now_ms: int) -> None:
            raise TypeError("a bug")

        connection = driver.client._links[BOOTSTRAP].connection
        monkeypatch.setattr(connection, "tick", fail)
        driver.client._due_ms = 0
        (answer,) = driver.answers_to(request)
        assert answer.failure is ResponseFailure.DISCONNECTED


def test_an_answer_of_another_api_costs_the_connection() -> None:
    def confused(api_key: int, correlation_id: int, request: bytes) -> bytes | None:
        answer = kp.InitProducerIdResponse(
            version=5, throttle_time_ms=0, error_code=0, producer_id=1, producer_epoch=0
        )
        return answers.payload(answer, correlation_id) + b"\0"

    with FakeBroker(confused) as broker, contextlib.closing(Driver(broker.address)) as driver:
        driver.connect()
        (answer,) = driver.answers_to(driver.send())
        assert answer.failure is ResponseFailure.DISCONNECTED
        assert isinstance(answer.error, ResponseDecodeError)
