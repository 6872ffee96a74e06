"""How an attempt to connect ends: each reason with its own error, at once, and never a hang."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.wire import answers
from tests.wire.client_driver import BOOTSTRAP, Driver, clock_ms
from tests.wire.fake_broker import HANG_UP, FakeBroker, silence
from txnproducer._protocol import messages as m
from txnproducer._protocol.events import (
    Channel,
    ConnectionId,
    ConnectionState,
    ResponseFailure,
)
from txnproducer._wire import kafka_python as kp
from txnproducer._wire.connector import Connector
from txnproducer.errors import (
    DisconnectError,
    IllegalSaslStateError,
    InvalidConfigurationError,
    KafkaTimeoutError,
    SaslAuthenticationError,
    SslAuthenticationError,
    UnsupportedSaslMechanismError,
)
from txnproducer.records import TopicPartition

REFUSED = ConnectionState.AUTHENTICATION_FAILED
LOST = ConnectionState.DISCONNECTED
PLAIN = {
    "security_protocol": "SASL_PLAINTEXT",
    "sasl_mechanism": "PLAIN",
    "sasl_plain_username": "alice",
    "sasl_plain_password": "secret",
}
Open = Callable[..., Driver]


@pytest.fixture
def drive() -> Iterator[Open]:
    with contextlib.ExitStack() as stack:

        def make(address: str, **settings: object) -> Driver:
            driver = Driver(address, **settings)
            stack.callback(driver.close)
            return driver

        yield make


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two authorities, and a broker's certificate of the first."""
    trustme = pytest.importorskip("trustme", reason="trustme is not installed (extra `testing`)")
    folder = tmp_path_factory.mktemp("certificates")
    mine, other = trustme.CA(), trustme.CA()
    mine.cert_pem.write_to_path(folder / "ca.pem")
    other.cert_pem.write_to_path(folder / "other-ca.pem")
    mine.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(folder / "ip.pem")
    mine.issue_cert("kafka.example").private_key_and_cert_chain_pem.write_to_path(
        folder / "name.pem"
    )
    return {path.stem: path for path in folder.iterdir()}


def listener(certificate: Path, client_ca: Path | None = None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    if client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(client_ca)
    return context


def sasl_broker(
    handshake_error: int = 0, error: int = 0, message: str | None = None
) -> Callable[[int, int, bytes], bytes | None]:
    """Answer a login. Other requests before it end the connection, as on a real listener."""

    def handle(api_key: int, correlation_id: int, request: bytes) -> bytes | None:
        if api_key == 17:
            return answers.sasl_handshake(correlation_id, handshake_error, ("SCRAM-SHA-512",))
        if api_key == 36:
            return answers.sasl_authenticate(correlation_id, error, message)
        return HANG_UP

    return handle


# --- nobody there -------------------------------------------------------------------------------


def test_a_refused_connection_names_the_address(drive: Open) -> None:
    end = drive("127.0.0.1:1").fail_to_connect()
    assert end.state is LOST
    assert isinstance(end.error, DisconnectError)
    assert "127.0.0.1:1" in str(end.error)
    assert "refused" in str(end.error)


def test_an_unknown_host_name_is_named(drive: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*args: object, **options: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    end = drive("no-such-host:9092").fail_to_connect()
    assert end.state is LOST
    assert "cannot find the host of no-such-host:9092" in str(end.error)


def test_a_look_up_that_hangs_is_given_up_in_time(
    drive: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **options: release.wait(5) and [])
    driver = drive("slow:9092", socket_connection_setup_timeout_ms=100)
    end = driver.fail_to_connect()
    release.set()
    assert end.state is LOST
    assert isinstance(end.error, KafkaTimeoutError)
    assert "socket_connection_setup_timeout_ms" in str(end.error)


def test_the_second_address_of_a_name_is_tried_when_the_first_does_not_answer(
    drive: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FakeBroker() as broker:
        both = [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 1)),
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", broker.port)),
        ]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **options: both)
        drive("two-addresses:9092").connect()


def test_an_address_that_accepts_and_hangs_up_is_followed_by_the_next(
    drive: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FakeBroker(hang_up_after=0) as broken, FakeBroker() as broker:
        both = [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))
            for port in (broken.port, broker.port)
        ]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **options: both)
        driver = drive("kafka:9092")
        driver.until(lambda: driver.client.is_ready(BOOTSTRAP, clock_ms()))
        assert broken.connections


def test_a_system_without_threads_left_is_a_failed_attempt(
    drive: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    driver = drive("127.0.0.1:1")
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        assert not driver.client.is_ready(BOOTSTRAP, clock_ms())
    driver.poll()
    (end,) = driver.ends()
    assert end.state is LOST
    assert "can't start new thread" in str(end.error)


def test_an_unexpected_error_of_an_attempt_still_reaches_the_caller(
    drive: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object, **options: object) -> None:
        raise ZeroDivisionError("nobody expected this")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    end = drive("127.0.0.1:1").fail_to_connect()
    assert end.state is LOST
    assert "nobody expected this" in str(end.error)


# --- not a broker, or a silent one --------------------------------------------------------------


def test_a_listener_that_never_answers_is_given_up_in_time(drive: Open) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        address = f"127.0.0.1:{mute.getsockname()[1]}"
        end = drive(address, socket_connection_setup_timeout_ms=100).fail_to_connect()
    assert end.state is LOST
    assert isinstance(end.error, KafkaTimeoutError)
    assert address in str(end.error)


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL"])
def test_a_silent_peer_is_reported_in_one_text_by_the_attempt_and_the_loop(
    drive: Open, monkeypatch: pytest.MonkeyPatch, protocol: str
) -> None:
    """The attempt logs, or the loop a moment later. A text that changes is logged again."""
    given = {"security_protocol": protocol, "socket_connection_setup_timeout_ms": 200}
    with socket.create_server(("127.0.0.1", 0)) as mute:
        address = f"127.0.0.1:{mute.getsockname()[1]}"
        with monkeypatch.context() as patch:
            patch.setattr("txnproducer._wire.links._GRACE_MS", 60_000)
            by_attempt = drive(address, **given).fail_to_connect()
        monkeypatch.setattr(Connector, "collect", lambda connector: None)
        by_loop = drive(address, **given).fail_to_connect()
    assert str(by_attempt.error) == str(by_loop.error)
    assert type(by_attempt.error) is type(by_loop.error) is KafkaTimeoutError
    assert str(by_loop.error).startswith(f"no connection to {address} within ")


def test_a_broker_that_hangs_up_during_the_handshake_is_tried_again(drive: Open) -> None:
    with FakeBroker(hang_up_after=0) as broker:
        driver = drive(broker.address)
        end = driver.fail_to_connect()
        assert end.state is LOST
        # Without the system's own words: a reset and an end are one reason, and so one warning.
        assert str(end.error).endswith("closed the connection during the handshake")
        driver.until(
            lambda: driver.client.is_ready(BOOTSTRAP, clock_ms()) or len(driver.ends()) > 1
        )
        assert broker.connections > 1


@pytest.mark.parametrize(
    "noise",
    [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"SSH-2.0-OpenSSH_9\r\n", bytes(64)],
    ids=["http", "ssh", "zeros"],
)
def test_a_port_of_another_service_is_called_no_broker(drive: Open, noise: bytes) -> None:
    with FakeBroker(greeting=noise) as other:
        end = drive(other.address).fail_to_connect()
    assert end.state is LOST
    assert "not a Kafka broker" in str(end.error)


def test_closing_the_client_ends_an_attempt_that_is_under_way(drive: Open) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        driver = drive(f"127.0.0.1:{mute.getsockname()[1]}")
        driver.client.is_ready(BOOTSTRAP, clock_ms())
        accepted, _ = mute.accept()
        with accepted:
            accepted.settimeout(5)
            accepted.recv(1000)
            driver.close()
            assert accepted.recv(1) == b""


@pytest.mark.parametrize(
    ("offer", "text"),
    [
        ({18: 4}, "the broker does not offer METADATA: is it the port of a controller?"),
        (
            {3: 3, 18: 4},
            "the broker offers METADATA 0 to 3, but this client needs 4 to 12",
        ),
    ],
)
def test_a_server_that_answers_no_question_about_the_cluster_is_left(
    drive: Open, offer: dict[int, int], text: str
) -> None:
    with FakeBroker(offer=offer) as broker:
        address = broker.address
        end = drive(address).fail_to_connect()
    assert end.state is LOST
    assert isinstance(end.error, DisconnectError)
    assert str(end.error) == f"{address}: {text}"


# --- SASL ---------------------------------------------------------------------------------------


def test_a_login_is_part_of_connecting(drive: Open) -> None:
    with FakeBroker(sasl_broker()) as broker:
        drive(broker.address, **PLAIN).connect()
        assert [api_key for api_key, _ in broker.requests] == [18, 17, 36]


def test_a_login_in_the_clear_is_warned_of_once(
    drive: Open, caplog: pytest.LogCaptureFixture
) -> None:
    with FakeBroker(sasl_broker()) as broker:
        driver = drive(broker.address, **PLAIN)
        for connection in (BOOTSTRAP, ConnectionId(-1, Channel.COORDINATOR)):
            driver.connect(connection)
    assert [r.getMessage() for r in caplog.records if "in the clear" in r.getMessage()] == [
        "Sending username and password in the clear"
    ]


def test_a_wrong_password_is_a_refusal_in_the_brokers_words(drive: Open) -> None:
    with FakeBroker(sasl_broker(error=58, message="Invalid username or password")) as broker:
        end = drive(broker.address, **PLAIN).fail_to_connect()
        assert str(end.error).startswith(f"{broker.address}: the broker refused the PLAIN login: ")
    assert end.state is REFUSED
    assert isinstance(end.error, SaslAuthenticationError)
    assert "Invalid username or password" in str(end.error)
    assert "secret" not in str(end.error)


def test_a_broken_answer_to_a_login_names_the_address(drive: Open) -> None:
    with FakeBroker(lambda api_key, correlation_id, request: b"\0" * 40) as broker:
        end = drive(broker.address, **PLAIN).fail_to_connect()
        assert str(end.error).startswith(f"{broker.address}: the answer to SaslHandshakeRequest ")
    assert end.state is LOST


def test_a_mechanism_that_is_not_offered_is_a_refusal(drive: Open) -> None:
    with FakeBroker(sasl_broker(handshake_error=33)) as broker:
        end = drive(broker.address, **PLAIN).fail_to_connect()
    assert end.state is REFUSED
    assert isinstance(end.error, UnsupportedSaslMechanismError)
    assert "SCRAM-SHA-512" in str(end.error)


def test_a_listener_without_sasl_is_a_refusal(drive: Open) -> None:
    with FakeBroker(sasl_broker(handshake_error=34)) as broker:
        end = drive(broker.address, **PLAIN).fail_to_connect()
    assert end.state is REFUSED
    assert isinstance(end.error, IllegalSaslStateError)


def test_a_listener_that_wants_sasl_is_found_out_after_it_hung_up(drive: Open) -> None:
    with FakeBroker(sasl_broker(handshake_error=33)) as broker:
        driver = drive(broker.address)
        driver.connect()
        (answer,) = driver.answers_to(driver.send())
        assert answer.failure is ResponseFailure.DISCONNECTED
        end = driver.refusal()
    assert isinstance(end.error, IllegalSaslStateError)
    assert "SCRAM-SHA-512" in str(end.error)


# --- TLS ----------------------------------------------------------------------------------------


def tls(certificates: dict[str, Path], **settings: object) -> dict[str, object]:
    return {"security_protocol": "SSL", "ssl_cafile": str(certificates["ca"])} | settings


def test_requests_of_any_size_pass_through_tls(drive: Open, certificates: dict[str, Path]) -> None:
    seen: list[bytes] = []

    def keep(api_key: int, correlation_id: int, request: bytes) -> bytes:
        seen.append(request)
        response = kp.ProduceResponse(version=11, responses=[])
        return answers.payload(response, correlation_id)

    with FakeBroker(keep, tls=listener(certificates["ip"])) as broker:
        driver = drive(broker.address, send_buffer_bytes=16_384, **tls(certificates))
        driver.connect()
        batches = [b"small", bytes(range(256)) * 400, bytes(range(256)) * 8_000, b"end"]
        parts = tuple(
            m.ProducePartition(TopicPartition("t", number), records)
            for number, records in enumerate(batches)
        )
        requests = [driver.send(m.ProduceRequest("x", -1, 1000, parts)) for _ in range(3)]
        driver.answers_to(*requests)
    assert len(seen) == 3
    assert all(batch in request for request in seen for batch in batches)


def test_answers_that_come_with_the_end_of_a_tls_stream_are_taken(
    drive: Open, certificates: dict[str, Path]
) -> None:
    def answer(api_key: int, correlation_id: int, request: bytes) -> bytes:
        return answers.end_txn(correlation_id)

    # It hangs up right after its second answer.
    with FakeBroker(answer, tls=listener(certificates["ip"]), hang_up_after=3) as broker:
        driver = drive(broker.address, **tls(certificates))
        driver.connect()
        requests = [driver.send(), driver.send()]
        driver.poll()
        broker.join_connections()
        ended = driver.answers_to(*requests)
        driver.until(lambda: bool(driver.ends()))
    assert [each.failure for each in ended] == [None, None]
    assert driver.ends()[0].state is LOST


def test_an_unknown_authority_is_a_refusal_that_names_ssl_cafile(
    drive: Open, certificates: dict[str, Path]
) -> None:
    with FakeBroker(tls=listener(certificates["ip"])) as broker:
        settings = tls(certificates, ssl_cafile=str(certificates["other-ca"]))
        end = drive(broker.address, **settings).fail_to_connect()
    assert end.state is REFUSED
    assert isinstance(end.error, SslAuthenticationError)
    assert "ssl_cafile" in str(end.error)


def test_a_certificate_for_another_name_is_a_refusal_that_names_the_host(
    drive: Open, certificates: dict[str, Path]
) -> None:
    with FakeBroker(tls=listener(certificates["name"])) as broker:
        end = drive(broker.address, **tls(certificates)).fail_to_connect()
        assert end.state is REFUSED
        assert "127.0.0.1" in str(end.error)
        assert "ssl_check_hostname" in str(end.error)
        drive(broker.address, **tls(certificates, ssl_check_hostname=False)).connect()


def test_a_missing_client_certificate_is_a_refusal_that_names_the_setting(
    drive: Open, certificates: dict[str, Path]
) -> None:
    context = listener(certificates["ip"], client_ca=certificates["ca"])
    with FakeBroker(tls=context) as broker:
        end = drive(broker.address, **tls(certificates)).fail_to_connect()
        assert end.state is REFUSED
        assert "ssl_certfile" in str(end.error)
        own = {"ssl_certfile": str(certificates["name"])}
        drive(broker.address, **tls(certificates, **own)).connect()


def test_a_tls_client_at_a_plaintext_listener_gets_an_error_that_says_so(
    drive: Open, certificates: dict[str, Path]
) -> None:
    with FakeBroker() as broker:
        end = drive(broker.address, **tls(certificates)).refusal()
    assert isinstance(end.error, SslAuthenticationError)
    assert "does not speak TLS" in str(end.error)


def test_a_plaintext_client_at_a_tls_listener_gets_an_error_that_says_so(
    drive: Open, certificates: dict[str, Path]
) -> None:
    with FakeBroker(tls=listener(certificates["ip"])) as broker:
        end = drive(broker.address).refusal()
    assert isinstance(end.error, SslAuthenticationError)
    assert "speaks TLS" in str(end.error)


def test_a_tls_alert_is_enough_to_know_that_a_listener_speaks_tls(drive: Open) -> None:
    with FakeBroker(greeting=b"\x15\x03\x03\x00\x02\x02\x46") as broker:
        end = drive(broker.address).fail_to_connect()
    assert end.state is REFUSED
    assert "speaks TLS" in str(end.error)
    assert broker.connections == 1


def test_a_broker_that_dies_during_the_tls_handshake_is_no_refusal(
    drive: Open, certificates: dict[str, Path]
) -> None:
    with FakeBroker(silence, hang_up_after=0) as broker:
        end = drive(broker.address, **tls(certificates)).fail_to_connect()
    assert end.state is LOST
    assert isinstance(end.error, DisconnectError)


def test_a_context_of_ones_own_is_used_as_it_is(
    drive: Open, certificates: dict[str, Path]
) -> None:
    own = ssl.create_default_context(cafile=str(certificates["ca"]))
    with FakeBroker(tls=listener(certificates["ip"])) as broker:
        drive(broker.address, security_protocol="SSL", ssl_context=own).connect()


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"ssl_cafile": "missing.pem"}, "ssl_cafile 'missing.pem'"),
        ({"ssl_certfile": "missing.pem"}, "ssl_certfile 'missing.pem'"),
        ({"ssl_crlfile": "missing.pem"}, "ssl_crlfile 'missing.pem'"),
        ({"ssl_ciphers": "NONE-SUCH"}, "ssl_ciphers"),
    ],
)
def test_a_setting_of_tls_that_cannot_be_used_is_named_before_anything_connects(
    settings: dict[str, object], says: str
) -> None:
    with pytest.raises(InvalidConfigurationError, match=says):
        Driver("127.0.0.1:1", security_protocol="SSL", **settings)
