"""Why a broker closed a connection is found out beside the retry, which does not wait for it."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from tests.wire import answers
from tests.wire.client_driver import BOOTSTRAP, Driver, clock_ms
from tests.wire.fake_broker import HANG_UP, FakeBroker, Handler, silence
from txnproducer._protocol.events import Channel, ConnectionId, ConnectionState, ResponseFailure
from txnproducer._protocol.messages import BrokerNode, InitProducerIdRequest
from txnproducer._wire import diagnosis
from txnproducer._wire.connect_settings import ConnectSettings
from txnproducer._wire.connector import Suspicion
from txnproducer._wire.diagnosis import PAUSE_MS, Diagnoses
from txnproducer.errors import IllegalSaslStateError, KafkaError

HANDSHAKE_FAILURE = b"\x15\x03\x03\x00\x02\x02\x28"  # a TLS alert: fatal, 40
LONG_MS = 30_000  # the limit of an attempt: a test that waits for it fails
WANTS_TLS, WANTS_NO_TLS, WANTS_SASL = Suspicion
Open = Callable[..., Driver]


@pytest.fixture
def drive() -> Iterator[Open]:
    with contextlib.ExitStack() as stack:

        def make(address: str, **settings: object) -> Driver:
            slow = {"socket_connection_setup_timeout_ms": LONG_MS}
            driver = Driver(address, **slow | settings)
            stack.callback(driver.close)
            return driver

        yield make


class CuttingBroker(FakeBroker):
    """Cut the first connections during their handshake. Leave a TLS greeting without an answer.

    Attributes:
        greetings: how many TLS greetings have come.
    """

    def __init__(self, cuts: int, handle: Handler = silence) -> None:
        super().__init__(handle)
        self.cuts = cuts
        self.greetings = 0

    def _talk(self, sock: socket.socket) -> None:
        if sock.recv(1, socket.MSG_PEEK) == b"\x16":
            self.greetings += 1
            sock.recv(100_000)
            sock.recv(1)  # until the other side hangs up
        elif self.cuts:
            self.cuts -= 1
        else:
            super()._talk(sock)


class TlsBroker(FakeBroker):
    """Cut each connection without TLS, and refuse each TLS greeting, once it may answer."""

    def __init__(self) -> None:
        super().__init__()
        self.may_answer = threading.Event()

    def _talk(self, sock: socket.socket) -> None:
        if sock.recv(1, socket.MSG_PEEK) != b"\x16":
            return
        self.may_answer.wait(30)
        sock.sendall(HANDSHAKE_FAILURE)


def cut(driver: Driver, times: int) -> None:
    """Let so many attempts end. Each must end by a cut."""
    driver.until(
        lambda: driver.client.is_ready(BOOTSTRAP, clock_ms()) or len(driver.ends()) >= times
    )
    assert len(driver.ends()) == times
    assert {end.state for end in driver.ends()} == {ConnectionState.DISCONNECTED}


# --- the retry ----------------------------------------------------------------------------------


def test_a_cut_is_reported_and_mended_while_the_peer_is_silent_to_the_question(
    drive: Open,
) -> None:
    with CuttingBroker(cuts=2) as broker:
        driver = drive(broker.address)
        cut(driver, 2)
        driver.until(lambda: driver.client.is_ready(BOOTSTRAP, clock_ms()))
        assert broker.greetings == 1


def test_a_cut_during_the_tls_handshake_is_mended_likewise(drive: Open) -> None:
    """Here the question is an ordinary request without TLS, which the peer keeps."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        driver = drive(f"127.0.0.1:{listener.getsockname()[1]}", security_protocol="SSL")
        driver.client.is_ready(BOOTSTRAP, clock_ms())
        listener.accept()[0].close()
        cut(driver, 1)
        with listener.accept()[0] as asking:
            assert asking.recv(1) == b"\x00"
            cut_again = threading.Thread(target=lambda: listener.accept()[0].close())
            cut_again.start()
            cut(driver, 2)
            cut_again.join(5)


def test_the_question_about_sasl_holds_no_attempt_up(drive: Open) -> None:
    asked = threading.Event()

    def handle(api_key: int, correlation_id: int, request: bytes) -> bytes | None:
        if api_key != 17:
            return HANG_UP
        asked.set()
        return None

    with FakeBroker(handle) as broker:
        driver = drive(broker.address)
        driver.connect()
        (answer,) = driver.answers_to(driver.send())
        assert answer.failure is ResponseFailure.DISCONNECTED
        assert asked.wait(5)
        driver.until(lambda: driver.client.is_ready(BOOTSTRAP, clock_ms()))


@pytest.mark.parametrize("cuts", [0, 1])
def test_a_listener_that_wants_a_login_is_reported_once_it_has_said_so(
    drive: Open, cuts: int
) -> None:
    """A first attempt that is cut by chance asks about TLS, which must not hide this question."""

    def handle(api_key: int, correlation_id: int, request: bytes) -> bytes | None:
        if api_key != 17:
            return HANG_UP
        return answers.sasl_handshake(correlation_id, 33, ("SCRAM-SHA-512",))

    with CuttingBroker(cuts, handle) as broker:
        driver = drive(broker.address)
        driver.until(lambda: driver.client.is_ready(BOOTSTRAP, clock_ms()))
        driver.answers_to(driver.send())
        refusal = driver.refusal()
    assert isinstance(refusal.error, IllegalSaslStateError)


# --- which addresses are asked ------------------------------------------------------------------


def test_an_address_that_has_spoken_the_protocol_is_not_asked(drive: Open) -> None:
    with CuttingBroker(cuts=0, handle=lambda _, number, __: answers.end_txn(number)) as broker:
        driver = drive(broker.address)
        driver.connect()
        driver.answers_to(driver.send())
        broker.cuts = 3
        broker.hang_up()
        driver.until(lambda: driver.client.is_ready(BOOTSTRAP, clock_ms()) and not broker.cuts)
        assert broker.greetings == 0
        # A connection that is cut before its first answer, where others have been answered.
        broker.handle = lambda *_: HANG_UP
        driver.answers_to(driver.send())
        driver.until(lambda: driver.client.is_ready(BOOTSTRAP, clock_ms()))
        assert 17 not in {api_key for api_key, _ in broker.requests}


def test_an_address_that_answers_on_another_connection_is_not_asked(drive: Open) -> None:
    def handle(api_key: int, correlation_id: int, request: bytes) -> bytes | None:
        return answers.end_txn(correlation_id) if api_key == 26 else HANG_UP

    other = ConnectionId(-1, Channel.COORDINATOR)
    with FakeBroker(handle) as broker:
        driver = drive(broker.address)
        driver.connect()
        driver.answers_to(driver.send())
        driver.connect(other)
        driver.answers_to(driver.send(InitProducerIdRequest("x", 60_000), other))
        assert driver.client.is_connected(BOOTSTRAP)
        assert not driver.client._diagnoses.are_awaited
        assert 17 not in {api_key for api_key, _ in broker.requests}


def test_a_connection_that_ends_without_a_request_is_no_reason_to_ask(drive: Open) -> None:
    with FakeBroker() as broker:
        driver = drive(broker.address)
        driver.connect()
        broker.hang_up()
        driver.until(lambda: bool(driver.ends()))
        assert not driver.client._diagnoses.are_awaited


def test_a_client_that_has_logged_in_does_not_ask_for_a_login(drive: Open) -> None:
    def handle(api_key: int, correlation_id: int, request: bytes) -> bytes | None:
        if api_key == 17:
            return answers.sasl_handshake(correlation_id)
        return answers.sasl_authenticate(correlation_id) if api_key == 36 else HANG_UP

    with FakeBroker(handle) as broker:
        driver = drive(
            broker.address,
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="PLAIN",
            sasl_plain_username="me",
            sasl_plain_password="secret",
        )
        driver.connect()
        driver.answers_to(driver.send())
        assert not driver.client._diagnoses.are_awaited


def test_a_connection_rules_out_every_question_about_tls(drive: Open) -> None:
    with FakeBroker() as broker:
        driver = drive(broker.address)
        driver.connect()
        for suspicion in (WANTS_TLS, WANTS_NO_TLS):
            driver.client._suspect(BOOTSTRAP, suspicion, clock_ms())
            assert not driver.client._diagnoses.are_awaited


def test_an_address_is_asked_once_a_minute_at_most(drive: Open) -> None:
    with CuttingBroker(cuts=4) as broker:
        driver = drive(broker.address)
        driver.until(lambda: driver.client.is_ready(BOOTSTRAP, clock_ms()))
        assert broker.greetings == 1


class Questions:
    """The diagnoses of a client that is not there."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.diagnoses = Diagnoses(ConnectSettings("me"), clock_ms, self.done.set)

    def suspect(self, broker: FakeBroker, suspicion: Suspicion, now_ms: int = 0) -> None:
        node = BrokerNode(-1, "127.0.0.1", broker.port)
        self.diagnoses.suspect(BOOTSTRAP, node, suspicion, now_ms)

    def verdicts(self) -> list[KafkaError]:
        """Wait for an outcome, and return its value."""
        assert self.done.wait(5)
        self.done.clear()
        return [refusal for *_, refusal in self.diagnoses.verdicts()]


def test_after_a_minute_an_address_is_asked_again() -> None:
    questions = Questions()
    with FakeBroker() as broker:
        for now_ms in (0, PAUSE_MS - 1, PAUSE_MS):
            questions.suspect(broker, WANTS_NO_TLS, now_ms)
            if now_ms != PAUSE_MS - 1:
                assert "does not speak TLS" in str(questions.verdicts()[0])
        assert not questions.diagnoses.are_awaited
        assert broker.connections == 2


def test_every_connection_that_is_cut_gets_the_verdict_of_its_address() -> None:
    questions = Questions()
    with FakeBroker() as broker:
        node = BrokerNode(3, "127.0.0.1", broker.port)
        for channel in Channel:
            questions.diagnoses.suspect(ConnectionId(3, channel), node, WANTS_NO_TLS, 0)
        assert questions.done.wait(5)
        told = {connection for connection, *_ in questions.diagnoses.verdicts()}
        assert told == {ConnectionId(3, channel) for channel in Channel}
        # One that is cut afterwards has the same verdict.
        questions.diagnoses.suspect(BOOTSTRAP, node, WANTS_NO_TLS, PAUSE_MS - 1)
        assert [connection for connection, *_ in questions.diagnoses.verdicts()] == [BOOTSTRAP]
        assert broker.connections == 1


def test_a_coordinator_that_wants_tls_refuses_though_another_connection_asked(
    drive: Open,
) -> None:
    with FakeBroker(tls=ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)) as broker:
        driver = drive(broker.address)
        assert "speaks TLS" in str(driver.refusal().error)
        coordinator = ConnectionId(-1, Channel.COORDINATOR)
        driver.fail_to_connect(coordinator)  # once
        driver.until(lambda: len(driver.ends(coordinator)) == 2)
        cut_off, refused = driver.ends(coordinator)
    assert cut_off.state is ConnectionState.DISCONNECTED
    assert refused.state is ConnectionState.AUTHENTICATION_FAILED
    assert "speaks TLS" in str(refused.error)


def test_a_coordinator_that_wants_a_login_refuses_though_another_connection_asked(
    drive: Open,
) -> None:
    def handle(api_key: int, correlation_id: int, request: bytes) -> bytes | None:
        return answers.sasl_handshake(correlation_id, 33) if api_key == 17 else HANG_UP

    def refusal(driver: Driver, connection: ConnectionId) -> KafkaError | None:
        driver.connect(connection)
        driver.answers_to(driver.send(connection=connection))
        driver.until(lambda: len(driver.ends(connection)) == 2)
        return driver.ends(connection)[1].error

    with FakeBroker(handle) as broker:
        driver = drive(broker.address)
        assert isinstance(refusal(driver, BOOTSTRAP), IllegalSaslStateError)
        coordinator = ConnectionId(-1, Channel.COORDINATOR)
        assert isinstance(refusal(driver, coordinator), IllegalSaslStateError)


def test_two_addresses_are_asked_apart() -> None:
    questions = Questions()
    with FakeBroker() as one, FakeBroker() as other:
        questions.suspect(one, WANTS_NO_TLS)
        questions.verdicts()
        questions.suspect(other, WANTS_NO_TLS)
        assert len(questions.verdicts()) == 1


# --- verdicts -----------------------------------------------------------------------------------


def test_a_verdict_is_void_if_the_address_has_connected_meanwhile() -> None:
    questions = Questions()
    with FakeBroker() as broker:
        questions.suspect(broker, WANTS_NO_TLS)
        questions.diagnoses.rule_out(BrokerNode(5, "127.0.0.1", broker.port), WANTS_NO_TLS)
        assert questions.verdicts() == []


def test_a_verdict_about_sasl_is_void_if_the_address_has_answered_meanwhile(drive: Open) -> None:
    asked, may_answer = threading.Event(), threading.Event()

    def handle(api_key: int, correlation_id: int, request: bytes) -> bytes | None:
        if api_key == 17:
            asked.set()
            assert may_answer.wait(5)
            return answers.sasl_handshake(correlation_id, 33)
        return answers.end_txn(correlation_id) if asked.is_set() else HANG_UP

    with FakeBroker(handle) as broker:
        driver = drive(broker.address)
        driver.connect()
        driver.answers_to(driver.send())
        assert asked.wait(5)
        driver.until(lambda: driver.client.is_ready(BOOTSTRAP, clock_ms()))
        driver.answers_to(driver.send())
        may_answer.set()
        driver.until(lambda: not driver.client._diagnoses.are_awaited)
    assert [end.state for end in driver.ends()] == [ConnectionState.DISCONNECTED]


@pytest.mark.parametrize("suspicion", Suspicion)
def test_a_peer_that_is_silent_is_no_verdict_and_ends_the_question_in_time(
    suspicion: Suspicion, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diagnosis, "LONGEST_MS", 60)
    questions = Questions()
    with socket.create_server(("127.0.0.1", 0)) as mute:
        node = BrokerNode(-1, *mute.getsockname())
        questions.diagnoses.suspect(BOOTSTRAP, node, suspicion, 0)
        begun = time.monotonic()
        assert questions.verdicts() == []
        assert time.monotonic() - begun < 5


@pytest.mark.parametrize("suspicion", Suspicion)
def test_a_peer_that_hangs_up_again_is_no_verdict(suspicion: Suspicion) -> None:
    questions = Questions()
    with FakeBroker(silence, hang_up_after=0) as broker:
        questions.suspect(broker, suspicion)
        assert questions.verdicts() == []


def test_a_tls_alert_proves_nothing_against_tls() -> None:
    questions = Questions()
    with FakeBroker(greeting=b"\x15\x03\x03\x00\x02\x02\x46") as broker:
        questions.suspect(broker, WANTS_NO_TLS)
        assert questions.verdicts() == []


def test_a_listener_of_an_old_tls_alone_is_one_of_tls() -> None:
    questions = Questions()
    with FakeBroker(greeting=b"\x15\x03\x01\x00\x02\x02\x46") as broker:
        questions.suspect(broker, WANTS_TLS)
        assert "speaks TLS" in str(questions.verdicts()[0])


def test_without_a_thread_nothing_is_asked_and_nothing_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(thread: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    questions = Questions()
    with FakeBroker() as broker:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", fail)
            questions.suspect(broker, WANTS_NO_TLS)
        assert not questions.diagnoses.are_awaited
        questions.suspect(broker, WANTS_NO_TLS)
        assert questions.verdicts()


def test_closing_the_client_ends_a_question_under_way(
    drive: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diagnosis, "LONGEST_MS", LONG_MS)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        driver = drive(f"127.0.0.1:{listener.getsockname()[1]}")
        driver.client.is_ready(BOOTSTRAP, clock_ms())
        listener.accept()[0].close()
        cut(driver, 1)
        with listener.accept()[0] as asking:
            driver.close()
            asking.settimeout(5)
            with contextlib.suppress(ConnectionError):
                while asking.recv(100_000):
                    pass


def test_the_address_that_a_broker_has_left_gives_no_verdict_of_it(drive: Open) -> None:
    with TlsBroker() as old, FakeBroker() as new:
        driver = drive(old.address)
        cut(driver, 1)
        driver.client.update_nodes([BrokerNode(-1, "127.0.0.1", new.port)])
        old.may_answer.set()
        driver.until(lambda: not driver.client._diagnoses.are_awaited)
    assert {end.state for end in driver.ends()} == {ConnectionState.DISCONNECTED}
