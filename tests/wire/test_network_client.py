"""The loop over real loopback sockets: readiness, answers, ends, time-outs, and one end each."""

from __future__ import annotations

import contextlib
import itertools
import random
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from tests.wire import answers
from tests.wire.client_driver import BOOTSTRAP, END_TXN, Driver, clock_ms
from tests.wire.fake_broker import HANG_UP, FakeBroker, Handler, silence
from txnproducer._protocol import messages as m
from txnproducer._protocol.backoff import ExponentialBackoff
from txnproducer._protocol.events import (
    Channel,
    ClientRequest,
    ConnectionEvent,
    ConnectionId,
    ConnectionState,
    ResponseFailure,
)
from txnproducer._wire import kafka_python as kp
from txnproducer._wire.links import UNTIL_NEWS_MS, WireLink
from txnproducer._wire.network_client import NetworkClient
from txnproducer.errors import (
    DisconnectError,
    IllegalStateError,
    KafkaTimeoutError,
    UnsupportedVersionError,
)
from txnproducer.records import TopicPartition


def obliging(api_key: int, correlation_id: int, request: bytes) -> bytes | None:
    if api_key == 17:  # asked of a broker that hung up
        return answers.sasl_handshake(correlation_id)
    return answers.end_txn(correlation_id)


def hang_up(api_key: int, correlation_id: int, request: bytes) -> bytes | None:
    return HANG_UP


@pytest.fixture
def serve() -> Iterator[Callable[..., FakeBroker]]:
    with contextlib.ExitStack() as stack:
        yield lambda *args, **options: stack.enter_context(FakeBroker(*args, **options))


@pytest.fixture
def drive() -> Iterator[Callable[..., Driver]]:
    with contextlib.ExitStack() as stack:

        def make(*brokers: FakeBroker | str, **settings: object) -> Driver:
            addresses = [each if isinstance(each, str) else each.address for each in brokers]
            driver = Driver(*addresses, **settings)
            stack.callback(driver.close)
            return driver

        yield make


Serve = Callable[..., FakeBroker]
Drive = Callable[..., Driver]


# --- connecting and answering -------------------------------------------------------------------


def test_asking_for_readiness_connects_and_reports_when_it_is_there(
    serve: Serve, drive: Drive
) -> None:
    driver = drive(serve(obliging, features={"transaction.version": 2}, epoch=4))
    assert not driver.client.is_ready(BOOTSTRAP, clock_ms())
    assert not driver.client.is_connected(BOOTSTRAP)
    assert driver.client.ready_delay_ms(BOOTSTRAP, clock_ms()) == UNTIL_NEWS_MS
    driver.until(lambda: bool(driver.events))
    assert driver.events == [ConnectionEvent(BOOTSTRAP, ConnectionState.READY)]
    assert driver.client.is_ready(BOOTSTRAP, clock_ms())
    assert driver.client.is_connected(BOOTSTRAP)
    assert driver.client.ready_delay_ms(BOOTSTRAP, clock_ms()) == 0
    assert driver.client.finalized_features().transaction_version == 2
    offered = driver.client.api_versions(-1)
    assert offered is not None
    assert offered.max_version(m.ApiKey.END_TXN) == 5


def test_a_request_is_answered_once(serve: Serve, drive: Drive) -> None:
    driver = drive(serve(obliging))
    driver.connect()
    request = driver.send()
    assert driver.client.in_flight_count(BOOTSTRAP) == driver.client.in_flight_count() == 1
    (answer,) = driver.answers_to(request)
    assert answer.body == m.EndTxnResponse(0, 1, 2)
    assert driver.client.in_flight_count() == 0
    driver.poll(20)
    assert len(driver.responses) == 1


def test_requests_in_flight_can_be_counted_while_connections_come(
    serve: Serve, drive: Drive
) -> None:
    # `metrics()` counts them, on any thread, while the loop's thread connects.
    driver = drive(serve(obliging))
    driver.connect()
    links = driver.client._links
    known = dict(links)

    class FakeConnection:
        @property
        def in_flight_count(self) -> int:
            links[ConnectionId(9)] = link
            return 2

    link: Any = SimpleNamespace(connection=FakeConnection())
    links.update({ConnectionId(7): link, ConnectionId(8): link})
    try:
        assert driver.client.in_flight_count() == 4
    finally:
        links.clear()
        links.update(known)


def test_many_requests_in_flight_are_answered_in_order(serve: Serve, drive: Drive) -> None:
    driver = drive(serve(obliging))
    driver.connect()
    requests = [driver.send() for _ in range(5)]
    assert not driver.client.is_ready(BOOTSTRAP, clock_ms())
    with pytest.raises(IllegalStateError):
        driver.send()
    driver.answers_to(*requests)
    assert [response.request for response in driver.responses] == requests


def test_a_large_request_passes_through_the_loop(serve: Serve, drive: Drive) -> None:
    seen: list[bytes] = []

    def keep(api_key: int, correlation_id: int, request: bytes) -> bytes:
        seen.append(request)
        partition = kp.ProduceResponse.TopicProduceResponse.PartitionProduceResponse
        topic = kp.ProduceResponse.TopicProduceResponse(
            name="t",
            partition_responses=[partition(index=0, error_code=0, base_offset=7)],
        )
        response = kp.ProduceResponse(version=11, responses=[topic])
        return answers.payload(response, correlation_id)

    driver = drive(serve(keep), send_buffer_bytes=16_384)
    driver.connect()
    records = bytes(range(256)) * 12_000
    part = m.ProducePartition(TopicPartition("t", 0), records)
    (answer,) = driver.answers_to(driver.send(m.ProduceRequest("x", -1, 1000, (part,))))
    assert isinstance(answer.body, m.ProduceResponse)
    assert answer.body.partitions[0].base_offset == 7
    assert records in seen[0]
    connection = driver.client._links[BOOTSTRAP].connection
    assert connection is not None
    watched = driver.client._selector.get_key(connection.sock).events
    assert watched == selectors.EVENT_READ, "the loop would spin on a socket with nothing to write"


def test_a_request_that_goes_out_at_once_changes_no_watch(serve: Serve, drive: Drive) -> None:
    driver = drive(serve(obliging))
    driver.connect()
    changed: list[object] = []
    driver.client._selector.modify = lambda *now: changed.append(now)  # type: ignore[method-assign, assignment]
    driver.answers_to(driver.send())
    assert changed == []


def test_data_and_coordinator_have_sockets_of_their_own(serve: Serve, drive: Drive) -> None:
    broker = serve(obliging)
    driver = drive(broker)
    coordinator = ConnectionId(-1, Channel.COORDINATOR)
    driver.connect()
    driver.connect(coordinator)
    assert broker.connections == 2
    driver.answers_to(driver.send(), driver.send(connection=coordinator))


def test_no_request_goes_out_before_the_connection_is_ready(serve: Serve, drive: Drive) -> None:
    driver = drive(serve(obliging))
    with pytest.raises(IllegalStateError, match="not ready"):
        driver.send()
    driver.client.is_ready(BOOTSTRAP, clock_ms())
    with pytest.raises(IllegalStateError, match="not ready"):
        driver.send()


def test_the_features_of_the_highest_epoch_count(serve: Serve, drive: Drive) -> None:
    old = serve(obliging, features={"transaction.version": 1}, epoch=3)
    new = serve(obliging, features={"transaction.version": 2}, epoch=9)
    driver = drive(new, old)
    driver.connect(ConnectionId(-1))
    driver.connect(ConnectionId(-2))
    assert driver.client.finalized_features().epoch == 9
    assert driver.client.finalized_features().transaction_version == 2


def test_a_request_that_cannot_be_put_into_bytes_ends_without_being_sent(
    serve: Serve, drive: Drive
) -> None:
    broker = serve(obliging)
    driver = drive(broker)
    driver.connect()
    (answer,) = driver.answers_to(driver.send(m.MetadataRequest(("half a pair: \ud83d",))))
    assert answer.failure is ResponseFailure.UNENCODABLE
    assert "MetadataRequest" in str(answer.error)
    assert driver.client.in_flight_count() == 0
    (answer,) = driver.answers_to(driver.send())
    assert answer.failure is None


def test_a_request_that_no_version_can_carry_ends_without_being_sent(
    serve: Serve, drive: Drive
) -> None:
    broker = serve(obliging, offer={3: 12, 18: 4, 26: 3})
    driver = drive(broker)
    driver.connect()
    (answer,) = driver.answers_to(driver.send())
    assert answer.failure is ResponseFailure.UNSUPPORTED_VERSION
    assert isinstance(answer.error, UnsupportedVersionError)
    assert [api_key for api_key, _ in broker.requests] == [18]
    assert driver.client.is_ready(BOOTSTRAP, clock_ms())


def test_a_throttled_connection_waits_for_its_time(serve: Serve, drive: Drive) -> None:
    throttle = itertools.chain([300], itertools.repeat(0))
    driver = drive(serve(lambda _, number, __: answers.end_txn(number, 0, next(throttle))))
    driver.connect()
    driver.answers_to(driver.send())
    now_ms = clock_ms()
    assert not driver.client.is_ready(BOOTSTRAP, now_ms)
    assert 0 < driver.client.throttle_delay_ms(BOOTSTRAP, now_ms) <= 300
    assert driver.client.ready_delay_ms(BOOTSTRAP, now_ms) <= 300
    later_ms = now_ms + 300
    assert driver.client.is_ready(BOOTSTRAP, later_ms)
    assert driver.client.throttle_delay_ms(BOOTSTRAP, later_ms) == 0


# --- ends ---------------------------------------------------------------------------------------


def test_a_broker_that_hangs_up_ends_each_request_once(serve: Serve, drive: Drive) -> None:
    broker = serve(silence)
    driver = drive(broker)
    driver.connect()
    requests = [driver.send() for _ in range(3)]
    driver.poll(20)
    broker.hang_up()
    ended = driver.answers_to(*requests)
    assert {answer.failure for answer in ended} == {ResponseFailure.DISCONNECTED}
    assert all(answer.body is None for answer in ended)
    assert len(driver.responses) == 3
    assert driver.ends()[0].state is ConnectionState.DISCONNECTED
    assert isinstance(driver.ends()[0].error, DisconnectError)
    assert not driver.client.is_connected(BOOTSTRAP)


def test_a_request_out_of_time_closes_its_connection_and_ends_the_later_ones(
    serve: Serve, drive: Drive
) -> None:
    driver = drive(serve(silence))
    driver.connect()
    late, other = driver.send(timeout_ms=50), driver.send(timeout_ms=5000)
    first, second = driver.answers_to(late, other)
    assert first.failure is ResponseFailure.TIMED_OUT
    assert isinstance(first.error, KafkaTimeoutError)
    assert second.failure is ResponseFailure.DISCONNECTED
    assert not driver.client.is_connected(BOOTSTRAP)


def test_a_time_out_ends_one_connection_alone(serve: Serve, drive: Drive) -> None:
    driver = drive(serve(silence), serve(obliging))
    healthy = ConnectionId(-2)
    driver.connect()
    driver.connect(healthy)
    driver.answers_to(driver.send(timeout_ms=30))
    assert driver.client.is_connected(healthy)
    (answer,) = driver.answers_to(driver.send(connection=healthy))
    assert answer.body is not None


def test_closing_ends_each_request_once_and_polls_no_more(serve: Serve, drive: Drive) -> None:
    driver = drive(serve(silence))
    driver.connect()
    requests = [driver.send(), driver.send()]
    driver.client.close()
    driver.client.close()
    driver.poll()
    assert [response.request for response in driver.responses] == requests
    assert {each.failure for each in driver.responses} == {ResponseFailure.DISCONNECTED}
    assert driver.poll(1000) == []
    driver.client.wakeup()
    assert not driver.client.is_ready(BOOTSTRAP, clock_ms())


def test_a_broken_answer_costs_only_the_connection(serve: Serve, drive: Drive) -> None:
    driver = drive(serve(lambda _, number, __: answers.end_txn(number)[:-5]))
    driver.connect()
    (answer,) = driver.answers_to(driver.send())
    assert answer.failure is ResponseFailure.DISCONNECTED
    assert "cannot decode" in str(answer.error)


def test_an_idle_connection_is_closed_and_made_again_when_needed(
    serve: Serve, drive: Drive
) -> None:
    broker = serve(obliging)
    driver = drive(broker, connections_max_idle_ms=60)
    driver.connect()
    driver.answers_to(driver.send())
    driver.until(lambda: not driver.client.is_connected(BOOTSTRAP))
    assert driver.ends() == [ConnectionEvent(BOOTSTRAP, ConnectionState.DISCONNECTED)]
    driver.until(lambda: driver.client.is_ready(BOOTSTRAP, clock_ms()))
    assert broker.connections == 2


def test_a_connection_with_a_request_in_flight_is_not_idle(serve: Serve, drive: Drive) -> None:
    driver = drive(serve(silence), connections_max_idle_ms=30)
    driver.connect()
    request = driver.send(timeout_ms=150)
    (answer,) = driver.answers_to(request)
    assert answer.failure is ResponseFailure.TIMED_OUT


def test_reconnecting_backs_off_and_is_forgiven_by_the_first_answer(
    serve: Serve, drive: Drive
) -> None:
    broker = serve(hang_up)
    driver = drive(broker, reconnect_backoff_ms=100, reconnect_backoff_max_ms=100_000)
    driver.connect()
    driver.answers_to(driver.send())
    now_ms = clock_ms()
    assert not driver.client.is_ready(BOOTSTRAP, now_ms)
    first = driver.client.ready_delay_ms(BOOTSTRAP, now_ms)
    assert 0 < first <= 120
    link = driver.client._links[BOOTSTRAP]
    assert link.failures == 1
    broker.handle = obliging
    driver.until(lambda: driver.client.is_ready(BOOTSTRAP, clock_ms()))
    driver.answers_to(driver.send())
    broker.hang_up()
    driver.until(lambda: not driver.client.is_connected(BOOTSTRAP))
    assert link.failures == 1


def has_more_ends_than(driver: Driver, count: int) -> bool:
    return len(driver.ends()) > count


def test_failures_in_a_row_double_the_pause_up_to_the_maximum(drive: Drive) -> None:
    driver = drive("127.0.0.1:1", reconnect_backoff_ms=10, reconnect_backoff_max_ms=45)
    link_pauses = []
    for _ in range(5):
        driver.until(lambda: driver.client.ready_delay_ms(BOOTSTRAP, clock_ms()) == 0)
        seen = len(driver.ends())
        driver.client.is_ready(BOOTSTRAP, clock_ms())
        driver.until(partial(has_more_ends_than, driver, seen))
        link = driver.client._links[BOOTSTRAP]
        link_pauses.append(link.retry_at_ms - clock_ms())
    assert link_pauses[0] <= 12
    assert link_pauses[-1] <= 54
    assert link_pauses[-1] > link_pauses[0]


def test_without_a_pause_only_the_first_retry_follows_at_once() -> None:
    link, none = WireLink(), ExponentialBackoff(0, 0, random.Random(1))
    times_ms = []
    for _ in range(4):
        link.back_off(none, link.retry_at_ms)
        times_ms.append(link.retry_at_ms)
    assert times_ms == [0, 5, 10, 15]


def test_an_attempt_gets_more_time_after_one_that_was_late_and_not_after_a_cut(
    serve: Serve, drive: Drive
) -> None:
    broker = serve(obliging, hang_up_after=0)
    driver = drive(broker, socket_connection_setup_timeout_ms=1_000)
    link = driver.client._links.setdefault(BOOTSTRAP, WireLink())
    given: list[int] = []

    def has_tried(times: int) -> bool:
        begun_ms = clock_ms()
        driver.client.is_ready(BOOTSTRAP, begun_ms)
        if link.connector is not None and link.last_attempt_ms >= begun_ms:
            given.append(link.connector.deadline_ms - begun_ms)
        return len(given) >= times

    driver.until(lambda: has_tried(4))
    assert max(given) <= 1_200
    late = KafkaTimeoutError("late")
    driver.client._attempt_failed(BOOTSTRAP, link, late, clock_ms())
    driver.client._attempt_failed(BOOTSTRAP, link, late, clock_ms())
    driver.until(lambda: has_tried(5))
    assert 3_200 <= given[-1] <= 4_800


# --- nodes --------------------------------------------------------------------------------------


def test_a_changed_address_ends_the_old_connection(serve: Serve, drive: Drive) -> None:
    old, new = serve(silence), serve(obliging)
    driver = drive(old)
    node = ConnectionId(7)
    driver.client.update_nodes([m.BrokerNode(7, "127.0.0.1", old.port)])
    driver.connect(node)
    request = driver.send(connection=node)
    driver.client.update_nodes([m.BrokerNode(7, "127.0.0.1", old.port, "another rack")])
    assert driver.client.is_connected(node)
    driver.client.update_nodes([m.BrokerNode(7, "127.0.0.1", new.port)])
    (answer,) = driver.answers_to(request)
    assert answer.failure is ResponseFailure.DISCONNECTED
    assert "moved" in str(answer.error)
    driver.until(lambda: driver.client.is_ready(node, clock_ms()))
    assert driver.answers_to(driver.send(connection=node))[0].body is not None


def test_an_attempt_to_reach_a_broker_that_moves_is_no_failure_of_its_address(
    serve: Serve, drive: Drive
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:  # it accepts and stays silent
        driver = drive(serve(silence))
        node = ConnectionId(7)
        driver.client.update_nodes([m.BrokerNode(7, *listener.getsockname())])
        assert not driver.client.is_ready(node, clock_ms())
        driver.client.update_nodes([m.BrokerNode(7, "127.0.0.1", serve(silence).port)])
        driver.poll()
    (end,) = driver.ends(node)
    assert end.error is None


def test_a_broker_that_left_the_cluster_is_forgotten_and_its_connection_lives_on(
    serve: Serve, drive: Drive
) -> None:
    answer = threading.Event()

    def answer_late(api_key: int, correlation_id: int, request: bytes) -> bytes | None:
        assert answer.wait(5)
        return obliging(api_key, correlation_id, request)

    leaving = serve(answer_late)
    driver = drive(serve(obliging))
    client = driver.client
    left, other = ConnectionId(7), ConnectionId(8)
    client.replace_nodes([m.BrokerNode(7, "127.0.0.1", leaving.port)])
    driver.connect(left)
    request = driver.send(connection=left)
    client.replace_nodes([m.BrokerNode(8, "127.0.0.1", leaving.port)])
    assert {client.least_loaded_node(clock_ms()) for _ in range(20)} == {8}
    answer.set()
    assert driver.answers_to(request)[0].body is not None
    assert client.is_connected(left)
    leaving.hang_up()
    driver.until(lambda: bool(driver.ends(left)))
    assert not client.is_ready(left, clock_ms() + 10_000)
    assert client.ready_delay_ms(left, clock_ms() + 10_000) == UNTIL_NEWS_MS
    assert leaving.connections == 1
    client.replace_nodes([m.BrokerNode(8, "127.0.0.1", leaving.port)])
    assert set(client._links) == set()
    assert client.api_versions(7) is None
    client.update_nodes([m.BrokerNode(7, "127.0.0.1", leaving.port)])
    driver.until(lambda: client.is_ready(left, clock_ms()))
    assert client.ready_delay_ms(other, clock_ms()) == 0  # the answers of others only add


def test_a_cut_connection_to_a_broker_that_left_is_not_diagnosed(
    serve: Serve, drive: Drive
) -> None:
    broker = serve(silence)
    driver = drive(serve(silence))
    node = ConnectionId(7)
    driver.client.replace_nodes([m.BrokerNode(7, "127.0.0.1", broker.port)])
    driver.connect(node)
    request = driver.send(connection=node)
    driver.client.replace_nodes([m.BrokerNode(8, "127.0.0.1", 1)])
    driver.client._report_verdicts()
    broker.hang_up()
    (answer,) = driver.answers_to(request)
    assert answer.failure is ResponseFailure.DISCONNECTED
    assert not driver.client._diagnoses.are_awaited


def test_an_attempt_to_reach_a_broker_that_left_is_given_up(drive: Drive) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:  # it accepts and stays silent
        driver = drive("127.0.0.1:1")
        node = ConnectionId(7)
        driver.client.replace_nodes([m.BrokerNode(7, *listener.getsockname())])
        assert not driver.client.is_ready(node, clock_ms())
        driver.client.replace_nodes([m.BrokerNode(8, "127.0.0.1", 2)])
        driver.poll()
    (end,) = driver.ends(node)
    assert end.error is None
    assert driver.client.ready_delay_ms(node, clock_ms()) == UNTIL_NEWS_MS


def test_bootstrap_addresses_are_never_forgotten(drive: Drive) -> None:
    driver = drive("127.0.0.1:1")
    driver.client.replace_nodes([m.BrokerNode(7, "127.0.0.1", 2)])
    driver.fail_to_connect(ConnectionId(7))
    assert driver.client.least_loaded_node(clock_ms()) == -1


def test_a_node_without_an_address_is_never_ready(drive: Drive) -> None:
    driver = drive("127.0.0.1:1")
    stranger = ConnectionId(99)
    assert not driver.client.is_ready(stranger, clock_ms())
    assert driver.client.ready_delay_ms(stranger, clock_ms()) == UNTIL_NEWS_MS
    assert driver.client.throttle_delay_ms(stranger, clock_ms()) == 0
    assert driver.client.in_flight_count(stranger) == 0


def test_the_least_loaded_node_is_a_ready_one_with_the_fewest_requests(
    serve: Serve, drive: Drive
) -> None:
    driver = drive(serve(silence), serve(silence), serve(silence))
    driver.connect(ConnectionId(-1))
    driver.connect(ConnectionId(-3))
    driver.send(connection=ConnectionId(-1))
    assert driver.client.least_loaded_node(clock_ms()) == -3
    driver.send(connection=ConnectionId(-3))
    driver.send(connection=ConnectionId(-3))
    assert driver.client.least_loaded_node(clock_ms()) == -1


def test_known_brokers_come_before_bootstrap_addresses(drive: Drive) -> None:
    driver = drive("127.0.0.1:1", "127.0.0.1:2")
    assert driver.client.least_loaded_node(clock_ms()) in (-1, -2)
    driver.client.update_nodes([m.BrokerNode(5, "127.0.0.1", 3)])
    assert driver.client.least_loaded_node(clock_ms()) == 5
    driver.fail_to_connect(ConnectionId(5))
    assert driver.client.least_loaded_node(clock_ms()) in (-1, -2)


def test_there_is_no_least_loaded_node_while_all_back_off(drive: Drive) -> None:
    driver = drive("127.0.0.1:1", reconnect_backoff_ms=5000, reconnect_backoff_max_ms=5000)
    driver.fail_to_connect()
    assert driver.client.least_loaded_node(clock_ms()) is None
    assert driver.client.least_loaded_node(clock_ms() + 6000) == -1


# --- waiting ------------------------------------------------------------------------------------


def test_wakeup_ends_a_poll_from_another_thread(drive: Drive) -> None:
    driver = drive("127.0.0.1:1")
    timer = threading.Timer(0.05, driver.client.wakeup)
    timer.start()
    begun = time.monotonic()
    driver.poll(5000)
    assert time.monotonic() - begun < 2
    timer.join()


def test_a_wakeup_before_the_poll_ends_it_and_only_it(drive: Drive) -> None:
    driver = drive("127.0.0.1:1")
    for _ in range(3):
        driver.client.wakeup()
    begun = time.monotonic()
    driver.poll(5000)
    assert time.monotonic() - begun < 2
    begun = time.monotonic()
    driver.poll(50)
    assert time.monotonic() - begun >= 0.04


def test_a_poll_without_news_takes_its_time_and_no_more(drive: Drive) -> None:
    driver = drive("127.0.0.1:1")
    begun = time.monotonic()
    assert driver.poll(60) == []
    assert 0.05 <= time.monotonic() - begun < 1


def test_a_still_clock_does_not_hold_a_poll(serve: Serve) -> None:
    driver = Driver(serve(obliging).address)
    config = driver.client._config
    driver.close()
    still = NetworkClient(config, lambda: 1000)
    begun = time.monotonic()
    assert still.poll(50, 1000) == []
    assert time.monotonic() - begun < 2
    still.close()


def test_random_ends_never_lose_or_double_an_answer(serve: Serve, drive: Drive) -> None:
    fates: Iterator[Handler] = itertools.cycle([obliging, obliging, hang_up, obliging, silence])

    def moody(api_key: int, correlation_id: int, request: bytes) -> bytes | None:
        return next(fates)(api_key, correlation_id, request)

    driver = drive(serve(moody), reconnect_backoff_ms=1, reconnect_backoff_max_ms=2)
    requests: list[ClientRequest] = []
    while len(requests) < 60:
        if driver.client.is_ready(BOOTSTRAP, clock_ms()):
            requests.append(driver.send(END_TXN, timeout_ms=30))
        driver.poll(1)
    driver.answers_to(*requests)
    driver.poll(20)
    ended = [response.request.correlation_id for response in driver.responses]
    assert sorted(ended) == [request.correlation_id for request in requests]
