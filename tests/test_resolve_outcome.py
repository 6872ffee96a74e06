"""`resolve_outcome()` over the producer's own wire, mostly on a cluster in memory."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import socket
import threading
import time
from pathlib import Path

import pytest

from tests.interrupts import IS_THOROUGH, Interrupt, Interrupter
from tests.waiting import becomes_true, wait_until
from tests.wire import answers
from tests.wire.fake_broker import FakeBroker
from txnproducer import KafkaTimeoutError
from txnproducer._protocol.messages import BrokerNode
from txnproducer._shell.transaction_inquiry import describe_transaction
from txnproducer._wire import kafka_python as kp
from txnproducer._wire.platform import SYSTEM
from txnproducer.config import ProducerConfig
from txnproducer.errors import (
    CommitOutcomeUnknownError,
    DisconnectError,
    ForkedProducerError,
    IllegalStateError,
    InvalidConfigurationError,
    InvalidTxnTimeoutError,
    KafkaError,
    NotCoordinatorError,
    SaslAuthenticationError,
    TransactionalIdAuthorizationError,
    UnsupportedVersionError,
)
from txnproducer.records import ConsumerGroupMetadata, TopicPartition
from txnproducer.testing import InMemoryKafka

# The usual time, and the one that suffices if the machine is busy.
TIMES_MS = (400, 8_000)
PATIENCE_MS = 10_000
BROKER = "broker-0.use-kafka-listen.invalid:9092"
PATIENCE_S = PATIENCE_MS / 1000
LOGIN = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN"}


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def version(request):
    return request.param


@pytest.fixture
def kafka(version):
    with InMemoryKafka({"orders": 1}, nodes=3, transaction_version=version) as cluster:
        yield cluster


@pytest.fixture
def one_node():
    with InMemoryKafka({"orders": 1}) as cluster:
        yield cluster


@pytest.fixture
def looks_up():
    """Let the test look names up."""


@pytest.fixture(autouse=True)
def no_name_is_looked_up(monkeypatch, request):
    asked = []

    def look_up(*where, **_):
        asked.append(where)
        raise socket.gaierror(socket.EAI_NONAME, "the test has no network")

    if "looks_up" not in request.fixturenames:
        monkeypatch.setattr(socket, "getaddrinfo", look_up)
    yield
    assert asked == []


@pytest.fixture(autouse=True)
def nothing_is_left():
    def threads():
        return {each for each in threading.enumerate() if each.name.startswith("txnproducer")}

    before = threads()
    yield
    becomes_true(lambda: threads() <= before)
    assert threads() <= before  # shows the names of those that are left


def in_doubt(kafka, *, arrives=True, **settings):
    """Return a closed producer that got no answer to its commit, and the transaction."""
    with kafka.producer("t", max_block_ms=PATIENCE_MS, **settings) as producer:
        producer.init_transactions()
        transaction = producer.transaction()
        transaction.__enter__()
        producer.send("orders", b"one")
        producer.flush()
        (kafka.lose_answer if arrives else kafka.lose_request)("EndTxn")
        # No other attempt is answered as long as the doubt lasts.
        kafka.fail_next("EndTxn", error="NOT_COORDINATOR", times=10_000)
        producer._max_block_s = 0.1
        with pytest.raises(KafkaTimeoutError):
            transaction.__exit__(None, None, None)
        wait_until(lambda: kafka.remaining_faults()["EndTxn"] <= 10_000)
        producer.close(0)
    assert transaction.outcome == "unknown"
    kafka.clear_faults()
    producer._max_block_s = PATIENCE_S
    return producer, transaction


# --- answers ---------------------------------------------------------------------------------


def test_a_commit_that_arrived_is_resolved_as_committed(kafka):
    producer, transaction = in_doubt(kafka)
    assert producer.resolve_outcome() == "committed"
    assert transaction.outcome == "committed"


def test_a_producer_that_has_failed_can_ask_before_it_is_closed(kafka):
    with kafka.producer("t") as producer:
        producer.init_transactions()
        transaction = producer.transaction()
        kafka.lose_answer("EndTxn")
        kafka.fail_next("EndTxn", error="PRODUCER_FENCED", times=2)  # one fence is asked about
        with pytest.raises(CommitOutcomeUnknownError), transaction:
            producer.send("orders", b"one")
        assert producer.resolve_outcome() == transaction.outcome == "committed"


def test_a_commit_that_never_arrived_is_resolved_once_the_coordinator_has_aborted(kafka, version):
    producer, transaction = in_doubt(kafka, arrives=False)
    assert producer.resolve_outcome() == "unknown"  # it is open, and the commit may yet arrive
    kafka.time_out_transaction("t")
    # With v1 the abort at the time-out looks like a fence, which proves nothing.
    expected = "aborted" if version == 2 else "unknown"
    assert producer.resolve_outcome() == transaction.outcome == expected


def test_another_producer_of_the_id_overwrites_the_evidence(kafka):
    producer, transaction = in_doubt(kafka)
    kafka.fence("t")
    kafka.fence("t")
    assert producer.resolve_outcome() == transaction.outcome == "unknown"


def test_an_expired_transactional_id_leaves_the_outcome_unknown(one_node):
    producer, _ = in_doubt(one_node)
    one_node.fail_next("DescribeTransactions", error="TRANSACTIONAL_ID_NOT_FOUND")
    assert producer.resolve_outcome() == "unknown"
    assert one_node.remaining_faults() == {}


def test_a_coordinator_that_has_moved_is_found(kafka):
    producer, _ = in_doubt(kafka)
    for _ in range(3):
        kafka.move_coordinator("t")
        producer._resolved = "unknown"
        assert producer.resolve_outcome() == "committed"


@pytest.mark.parametrize(
    "error", ["NOT_COORDINATOR", "COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE"]
)
@pytest.mark.parametrize("api", ["FindCoordinator", "DescribeTransactions"])
def test_an_error_that_passes_is_waited_out(one_node, api, error):
    producer, _ = in_doubt(one_node)
    one_node.fail_next(api, error=error, times=2)
    assert producer.resolve_outcome() == "committed"
    assert one_node.remaining_faults() == {}


@pytest.mark.parametrize("api", ["FindCoordinator", "DescribeTransactions"])
def test_a_lost_connection_is_made_again(one_node, api):
    producer, _ = in_doubt(one_node)
    one_node.lose_request(api)
    assert producer.resolve_outcome() == "committed"
    assert one_node.remaining_faults() == {}


def test_a_broker_that_is_down_is_waited_for(one_node):
    producer, _ = in_doubt(one_node)
    one_node.stop_node(0)
    starting = threading.Timer(0.2, one_node.start_node, (0,))
    starting.start()
    assert producer.resolve_outcome() == "committed"
    starting.join()


@pytest.mark.parametrize("node", [0, 1, 2])
def test_each_broker_may_be_down(kafka, node):
    producer, _ = in_doubt(kafka)
    with kafka.stopped(node):
        assert producer.resolve_outcome() == "committed"


def test_a_known_broker_is_asked_if_no_bootstrap_server_can_be_reached(one_node):
    producer, _ = in_doubt(one_node)
    config = ProducerConfig.build(bootstrap_servers="away:1", transactional_id="t")
    ((host, port),) = one_node._nodes
    known = [BrokerNode(0, host, port)]
    told = describe_transaction(config, producer._platform, PATIENCE_S, known)
    assert told is not None
    assert told.state == "CompleteCommit"


# --- refusals and time-outs ----------------------------------------------------------------------


@pytest.mark.parametrize("api", ["FindCoordinator", "DescribeTransactions"])
def test_without_the_right_to_describe_it_raises(one_node, api):
    producer, transaction = in_doubt(one_node)
    one_node.fail_next(api, error="TRANSACTIONAL_ID_AUTHORIZATION_FAILED")
    with pytest.raises(TransactionalIdAuthorizationError, match=f"{api} to .* was answered by"):
        producer.resolve_outcome()
    assert transaction.outcome == "unknown"
    assert producer.resolve_outcome() == "committed"


def test_an_error_that_does_not_pass_raises(one_node):
    producer, _ = in_doubt(one_node)
    one_node.fail_next("DescribeTransactions", error="INVALID_REQUEST")
    with pytest.raises(KafkaError, match="INVALID_REQUEST"):
        producer.resolve_outcome()


def timed_out(producer, expected):
    """Return the time-out that has the expected text, if there is enough time for a try."""
    for time_ms in TIMES_MS:
        producer._max_block_s = time_ms / 1000
        with pytest.raises(KafkaTimeoutError) as told:
            producer.resolve_outcome()
        if expected in str(told.value):
            break
    assert expected in str(told.value)
    assert f"within max_block_ms={time_ms}: " in str(told.value)
    return told.value


def test_a_time_out_names_the_last_answer(one_node):
    producer, _ = in_doubt(one_node)
    one_node.fail_next("DescribeTransactions", error="NOT_COORDINATOR", times=10_000)
    error = timed_out(producer, f"the last try failed (DescribeTransactions to {BROKER} was")
    assert isinstance(error.__cause__, NotCoordinatorError)


def test_a_time_out_names_the_address_that_cannot_be_reached(one_node):
    producer, _ = in_doubt(one_node)
    one_node.stop_node(0)
    error = timed_out(producer, f"no connection (cannot connect to {BROKER}")
    assert isinstance(error.__cause__, DisconnectError)
    assert error.causes == (error.__cause__,)


@pytest.mark.parametrize("api", ["FindCoordinator", "DescribeTransactions"])
def test_a_time_out_names_the_request_that_is_out(one_node, api):
    producer, _ = in_doubt(one_node)
    one_node.delay(api, 60, times=2)
    timed_out(producer, f"{api} to {BROKER} has no answer yet")


@pytest.mark.usefixtures("looks_up")
def test_a_time_out_names_the_servers_to_which_a_connection_is_being_made():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        config = ProducerConfig.build(bootstrap_servers=address, transactional_id="t")
        with pytest.raises(KafkaTimeoutError, match=f"no connection to {address} yet"):
            describe_transaction(config, SYSTEM, 0.2)


def test_a_refused_login_is_raised_at_once():
    right = {**LOGIN, "sasl_plain_username": "alice", "sasl_plain_password": "right"}
    with InMemoryKafka({"orders": 1}, nodes=2, users={"alice": "right"}) as kafka:
        producer, _ = in_doubt(kafka, **right)
        assert producer.resolve_outcome() == "committed"
        wrong = ProducerConfig.build(
            bootstrap_servers=kafka.bootstrap_servers,
            transactional_id="t",
            **{**right, "sasl_plain_password": "wrong"},
        )
        began_s = time.monotonic()
        with pytest.raises(SaslAuthenticationError):
            describe_transaction(wrong, producer._platform, 60)
        assert time.monotonic() - began_s < PATIENCE_S


@pytest.mark.usefixtures("looks_up")
def test_hosts_that_do_not_exist_are_named_after_a_second(monkeypatch):
    def look_up(*_, **__):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    config = ProducerConfig.build(
        bootstrap_servers="a.nowhere:1,b.nowhere:2", transactional_id="t"
    )
    with pytest.raises(InvalidConfigurationError, match=r"a\.nowhere:1, b\.nowhere:2"):
        describe_transaction(config, SYSTEM, 60)


@pytest.mark.usefixtures("looks_up")
def test_an_inquiry_at_a_controller_times_out():
    def silent(*_):
        return None

    with FakeBroker(silent, offer={18: 4}) as controller:
        config = ProducerConfig.build(bootstrap_servers=controller.address, transactional_id="t")
        with pytest.raises(KafkaTimeoutError, match="is it the port of a controller"):
            describe_transaction(config, SYSTEM, 1)


@pytest.mark.usefixtures("looks_up")
def test_a_cluster_older_than_the_question_is_named_as_that():
    def find(api_key, correlation_id, request):
        answer = kp.FindCoordinatorResponse(
            version=2, error_code=0, node_id=7, host="127.0.0.1", port=broker.port
        )
        return answers.payload(answer, correlation_id)

    with FakeBroker(find, offer={3: 12, 10: 2, 18: 4}) as broker:
        config = ProducerConfig.build(bootstrap_servers=broker.address, transactional_id="t")
        with pytest.raises(UnsupportedVersionError):
            describe_transaction(config, SYSTEM, PATIENCE_S)


# --- what is left ----------------------------------------------------------------------------


# In these an eventfd is a number that has no owner yet.
OWNERLESS = ("Wakeup.__init__", "_finalize", "finalize.__init__")
DESCRIPTORS = Path("/proc/self/fd")


def descriptors():
    return list(DESCRIPTORS.iterdir())


@pytest.mark.skipif(
    not DESCRIPTORS.is_dir(), reason="counts descriptors in /proc, which Linux has"
)
def test_no_descriptor_is_left(one_node):
    producer, _ = in_doubt(one_node)
    producer.resolve_outcome()
    before = len(descriptors())
    for _ in range(20):
        producer._resolved = "unknown"
        assert producer.resolve_outcome() == "committed"
    # The cluster closes its ends when it has seen ours.
    wait_until(lambda: len(descriptors()) <= before)


@pytest.fixture
def frozen_heap():
    """Let collections look at this test's objects alone. Those of all others take seconds."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.timeout(1200 if IS_THOROUGH else 120)
@pytest.mark.skipif(
    not DESCRIPTORS.is_dir(), reason="counts descriptors in /proc, which Linux has"
)
def test_nothing_is_left_wherever_an_interrupt_comes(one_node, frozen_heap):
    producer, _ = in_doubt(one_node)

    def ask():
        producer._resolved = "unknown"
        return producer.resolve_outcome()

    ask()
    noted = Interrupter(is_by_line=not IS_THOROUGH)
    noted.run(ask)
    threads, before = threading.active_count(), len(descriptors())

    def is_clean():
        if threading.active_count() <= threads and len(descriptors()) <= before:
            return True
        gc.collect()  # the loop's last frame may have ended after the one before
        return False

    for point in noted.passed[:: 1 if IS_THOROUGH else 3]:
        if point.name in OWNERLESS:
            continue
        # A point may be missed, since where threads meet differs from run to run.
        with contextlib.suppress(Interrupt):
            Interrupter(point, is_by_line=not IS_THOROUGH).run(ask)
        wait_until(is_clean, point)
        assert ask() == "committed", point


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this platform has no timer signals")
def test_an_interrupt_ends_the_call_and_it_can_be_made_again(one_node):
    class Interrupt(BaseException):
        pass

    def interrupt(*_):
        raise Interrupt

    producer, transaction = in_doubt(one_node)
    one_node.delay("DescribeTransactions", 60)
    producer._max_block_s = 60.0
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        began_s = time.monotonic()
        with pytest.raises(Interrupt):
            producer.resolve_outcome()
        assert time.monotonic() - began_s < PATIENCE_S
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert transaction.outcome == "unknown"
    one_node.clear_faults()
    assert producer.resolve_outcome() == "committed"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform cannot fork")
def test_a_fork_in_the_midst_of_the_call_is_refused_in_the_child(one_node):
    told, tell = os.pipe()

    def fork(*_):
        if os.fork() == 0:
            is_child.append(True)

    is_child: list[bool] = []
    producer, _ = in_doubt(one_node)
    one_node.delay("DescribeTransactions", 0.5)
    before = signal.signal(signal.SIGALRM, fork)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        try:
            outcome = producer.resolve_outcome()
        except ForkedProducerError:
            outcome = "forked"
        finally:
            if is_child:
                os.write(tell, outcome.encode())
                os._exit(0)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert outcome == "committed"
    assert os.read(told, 100) == b"forked"
    os.wait()
    os.close(told)
    os.close(tell)


# --- the brokers' limit ----------------------------------------------------------------------


def test_a_cluster_in_memory_knows_the_limit_of_transactions_without_a_question(one_node):
    with one_node.producer("t", transaction_timeout_ms=900_001) as producer:
        with pytest.raises(InvalidTxnTimeoutError, match="The brokers' limit is 900000"):
            producer.init_transactions()


@pytest.mark.parametrize("close", [lambda producer: producer.close(0), lambda p: p.close(5)])
def test_a_close_in_the_midst_of_a_block_has_aborted_and_the_block_says_so(kafka, close):
    producer = kafka.producer("t")
    producer.init_transactions()
    transaction = producer.transaction()
    with pytest.raises(IllegalStateError, match="closed"):  # noqa: PT012 - the block is the test
        with transaction:
            producer.send("orders", b"one").result(PATIENCE_S)
            close(producer)
    assert transaction.outcome == "aborted"
    assert kafka.records("orders") == []


def test_a_second_close_in_a_block_does_not_make_it_end_well(kafka):
    producer = kafka.producer("t")
    producer.init_transactions()
    transaction = producer.transaction()
    with pytest.raises(IllegalStateError, match="closed"):  # noqa: PT012 - the block is the test
        with transaction:
            producer.send("orders", b"one")
            producer.close()
            producer.close()
    assert transaction.outcome == "aborted"
    assert kafka.records("orders") == []


def test_a_block_does_not_end_well_after_a_call_beside_a_close(kafka):
    """The close has begun to abort when the call's answer comes."""
    producer = kafka.producer("t", max_block_ms=int(PATIENCE_S * 1000))
    producer.init_transactions()
    kafka.delay("TxnOffsetCommit", 0.3)
    offsets = {TopicPartition("orders", 0): 1}
    transaction = producer.transaction()
    closer = threading.Timer(0.1, producer.close, (PATIENCE_S,))
    with pytest.raises(IllegalStateError, match="closed"):  # noqa: PT012 - the block is the test
        with transaction:
            closer.start()
            producer.send_offsets_to_transaction(offsets, ConsumerGroupMetadata("group"))
    closer.join()
    assert transaction.outcome == "aborted"


def test_a_close_after_the_blocks_own_abort_is_no_error(kafka):
    producer = kafka.producer("t")
    producer.init_transactions()
    with producer.transaction() as transaction:
        producer.send("orders", b"one")
        producer.abort_transaction()
        producer.close()
    assert transaction.outcome == "aborted"
