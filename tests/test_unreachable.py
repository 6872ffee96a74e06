"""Addresses without a broker: the log, the call and its error name them, over real sockets."""

from __future__ import annotations

import logging
import pickle
import re
import socket
import threading
import time

import pytest

from tests.wire import answers
from tests.wire.fake_broker import FakeBroker
from txnproducer import TransactionalProducer
from txnproducer.errors import (
    DisconnectError,
    InvalidConfigurationError,
    KafkaTimeoutError,
    SaslAuthenticationError,
)
from txnproducer.testing import InMemoryKafka

LOGGER = "txnproducer._core.failed_tries"
# The usual time, and the one that suffices if the machine is busy.
TIMES_MS = (400, 8_000)


@pytest.fixture
def closed_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))  # bound, and not listening: connections are refused
        yield sock.getsockname()[1]


@pytest.fixture
def web_port():
    """A port that answers every request like a web server."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            while True:
                try:
                    peer, _ = server.accept()
                except OSError:
                    return
                with peer:
                    peer.recv(1000)
                    peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def look_ups(monkeypatch):
    """Names that end in .nowhere do not exist, those in .later may."""
    real, seen = socket.getaddrinfo, []

    def look_up(host, *arguments, **more):
        if host.endswith(".nowhere"):
            seen.append(host)
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        if host.endswith(".later"):
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return real(host, *arguments, **more)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    return seen


def timed_out(servers, **settings):
    """Return the time-out of init_transactions() after each address was tried."""
    for max_block_ms in TIMES_MS:
        with (
            TransactionalProducer(servers, "txn", max_block_ms=max_block_ms, **settings) as one,
            pytest.raises(KafkaTimeoutError) as told,
        ):
            one.init_transactions()
        if len(told.value.causes) > servers.count(","):
            break
    assert f"did not finish within max_block_ms={max_block_ms}: " in str(told.value)
    return told.value


def test_a_refused_port_is_reported_in_a_warning_and_by_the_time_out(closed_port, caplog):
    caplog.set_level(logging.WARNING, LOGGER)
    error = timed_out(f"127.0.0.1:{closed_port}")
    assert re.match(
        r"init_transactions did not finish within max_block_ms=\d+: no conn", str(error)
    )
    assert f"no connection (cannot connect to 127.0.0.1:{closed_port} (127.0.0.1: [Errno" in str(
        error
    )
    assert "__transaction_state" not in str(error)
    assert isinstance(error.__cause__, DisconnectError)
    assert error.causes == (error.__cause__,)
    (warning,) = [record for record in caplog.records if record.name == LOGGER]
    assert f"127.0.0.1:{closed_port}" in warning.getMessage()
    again = pickle.loads(pickle.dumps(error))
    assert str(again.causes[0]) == str(error.causes[0])


def test_a_refused_login_names_the_broker_and_is_not_said_to_be_tried_again(caplog):
    caplog.set_level(logging.WARNING, "txnproducer")

    def refuse(api_key, correlation_id, request):
        if api_key == 17:
            return answers.sasl_handshake(correlation_id)
        return answers.sasl_authenticate(correlation_id, 58, "wrong password")

    with FakeBroker(refuse) as one, FakeBroker(refuse) as other:
        servers = [one.address, other.address]
        with (
            TransactionalProducer(
                servers,
                "txn",
                security_protocol="SASL_PLAINTEXT",
                sasl_mechanism="PLAIN",
                sasl_plain_username="me",
                sasl_plain_password="secret",
            ) as producer,
            pytest.raises(SaslAuthenticationError) as told,
        ):
            producer.init_transactions()
    warned = [r.getMessage() for r in caplog.records if r.name == LOGGER]
    text = "the broker refused the PLAIN login: wrong password"
    assert sorted(each.partition(" (")[0] for each in warned) == sorted(
        f"{server}: {text}" for server in servers
    )
    assert any(f"{server}: {text}" in str(told.value) for server in servers)
    assert "trying again" not in caplog.text


def test_a_web_server_is_no_broker(web_port):
    assert f"127.0.0.1:{web_port} is not a Kafka broker: it answered" in str(
        timed_out(f"127.0.0.1:{web_port}")
    )


def test_each_address_has_its_own_reason(closed_port, web_port, look_ups):
    error = timed_out(f"127.0.0.1:{closed_port},127.0.0.1:{web_port},kafka.nowhere:9092")
    assert len(error.causes) == 3
    assert "cannot find the host of kafka.nowhere:9092" in str(error)


def test_if_no_host_exists_the_call_fails_after_a_second_and_names_them(look_ups):
    began = time.monotonic()
    with TransactionalProducer("a.nowhere:1,b.nowhere:2", "txn") as producer:
        assert look_ups == [] or time.monotonic() - began < 1  # the constructor waits for none
        with pytest.raises(InvalidConfigurationError) as told:
            producer.init_transactions()
        assert time.monotonic() - began >= 0.9  # whole milliseconds are counted
        assert "a.nowhere:1, b.nowhere:2" in str(told.value)
        assert told.value.recovery == "fix"
        assert {"a.nowhere", "b.nowhere"} == set(look_ups)
        for call in (producer.init_transactions, lambda: producer.partitions_for("topic")):
            with pytest.raises(InvalidConfigurationError):
                call()
        producer.close(0)


def test_records_do_not_wait_for_hosts_that_do_not_exist(look_ups):
    with TransactionalProducer("a.nowhere:1") as producer:
        with pytest.raises(InvalidConfigurationError):
            producer.send("topic", b"value")
        with pytest.raises(InvalidConfigurationError):
            producer.send_batch("topic", [b"value"])
        producer.close(0)


def test_a_name_service_that_is_away_is_waited_for(look_ups):
    error = timed_out("kafka.later:9092,kafka.nowhere:9092")
    assert "Temporary failure in name resolution" in str(error)


def test_the_constructor_looks_no_names_up(look_ups, monkeypatch):
    monkeypatch.setattr(threading.Thread, "start", lambda _: None)
    producer = TransactionalProducer("a.nowhere:1", "txn")
    assert look_ups == []
    producer._refusal = lambda call: KafkaTimeoutError(call)  # it was never started


@pytest.fixture
def controller():
    """Return a listener that offers neither metadata nor coordinators, as a controller."""
    with FakeBroker(offer={18: 4}) as one:
        yield one


def test_the_port_of_a_controller_is_named(controller, caplog):
    caplog.set_level(logging.WARNING, LOGGER)
    error = timed_out(controller.address)
    (cause,) = error.causes
    assert isinstance(cause, DisconnectError)
    assert error.__cause__ is cause
    assert str(cause).startswith(f"{controller.address}: the broker does not offer METADATA")
    assert str(cause).endswith("is it the port of a controller?")
    assert str(cause) in str(error)
    assert {record.getMessage() for record in caplog.records} == {f"{cause}; trying again"}


@pytest.mark.parametrize("transactional_id", ["txn", None])
def test_the_port_of_a_controller_beside_a_broker_is_passed_over(controller, transactional_id):
    with InMemoryKafka({"orders": 1}) as kafka:
        servers = [controller.address, kafka.listen()]
        # Which of the two a producer asks first is chosen at random.
        for number in range(8):
            with TransactionalProducer(servers, transactional_id, max_block_ms=8_000) as one:
                if transactional_id is None:
                    one.send("orders", b"%d" % number).result(8)
                    continue
                one.init_transactions()
                with one.transaction() as txn:
                    txn.send("orders", b"%d" % number)
        assert [record.value for record in kafka.records("orders")] == [
            b"%d" % number for number in range(8)
        ]


def test_a_token_provider_that_hangs_is_named_by_the_time_out():
    may_go_on = threading.Event()
    settings = {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "OAUTHBEARER",
        "sasl_oauth_token_provider": answers.token_provider(lambda: may_go_on.wait(10)),
        "socket_connection_setup_timeout_ms": 100,
        "max_block_ms": TIMES_MS[0],
    }

    def offer(api_key, correlation_id, request):
        return answers.sasl_handshake(correlation_id, 0, ("OAUTHBEARER",))

    told = ""
    with (
        FakeBroker(offer) as broker,
        TransactionalProducer(broker.address, "t", **settings) as one,
    ):
        end_s = time.monotonic() + TIMES_MS[1] / 1000
        while "has not returned" not in told and time.monotonic() < end_s:
            with pytest.raises(KafkaTimeoutError) as error:
                one.init_transactions()
            told = str(error.value)
        may_go_on.set()
    assert "the token provider has not returned yet, and is not called again meanwhile" in told
