"""`InMemoryKafka`: the shipping producer on the model, and the faults that a test asks for."""

from __future__ import annotations

import inspect
import socket
import threading
from typing import Any

import pytest

from txnproducer import (
    ConsumerGroupMetadata,
    KafkaTimeoutError,
    OffsetAndMetadata,
    TopicPartition,
    TransactionalProducer,
)
from txnproducer._wire.platform import Platform
from txnproducer.errors import (
    CommitOutcomeUnknownError,
    GroupAuthorizationError,
    IllegalStateError,
    InvalidConfigurationError,
    InvalidRecordError,
    InvalidTxnStateError,
    InvalidTxnTimeoutError,
    KafkaError,
    ProducerFencedError,
    SaslAuthenticationError,
    TopicAuthorizationError,
)
from txnproducer.testing import EmbeddedKafka, InMemoryKafka, KafkaCluster

GROUP = ConsumerGroupMetadata("group")
PLACE = TopicPartition("in", 0)
both_versions = pytest.mark.parametrize("version", [1, 2])


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def kafka(request):
    with InMemoryKafka({"orders": 2, "in": 1}, transaction_version=request.param) as cluster:
        yield cluster


@pytest.fixture
def producer(kafka):
    with kafka.producer("t") as made:
        made.init_transactions()
        yield made


def write(producer, *values):
    with producer.transaction():
        for value in values:
            producer.send("orders", value, partition=0)


def values(kafka, isolation="read_committed"):
    return [record.value for record in kafka.records("orders", isolation=isolation)]


# --- what a test sees ------------------------------------------------------------------------


def test_committed_records_are_there_with_all_that_was_sent(kafka, producer):
    with producer.transaction():
        producer.send("orders", b"one", b"k", {"h": b"x"}, 1, timestamp_ms=1234)
    [record] = kafka.records("orders")
    assert (record.topic, record.partition, record.offset) == ("orders", 1, 0)
    assert (record.key, record.value, record.timestamp_ms) == (b"k", b"one", 1234)
    assert record.headers == (("h", b"x"),)


def test_records_of_an_open_and_an_aborted_transaction_are_seen_uncommitted_only(kafka, producer):
    producer.begin_transaction()
    producer.send("orders", b"lost", partition=0)
    producer.flush()
    assert kafka.transactions()["t"].state == "Ongoing"
    assert values(kafka) == []
    producer.abort_transaction()
    write(producer, b"kept")
    assert values(kafka) == [b"kept"]
    assert values(kafka, "read_uncommitted") == [b"lost", b"kept"]
    assert kafka.transactions()["t"].state == "CompleteCommit"


def test_offsets_of_a_group_are_committed_with_the_transaction(kafka, producer):
    producer.begin_transaction()
    producer.send_offsets_to_transaction({PLACE: OffsetAndMetadata(7)}, GROUP)
    assert kafka.committed("group") == {}
    producer.commit_transaction()
    assert kafka.committed("group") == {PLACE: OffsetAndMetadata(7)}


def test_the_producer_is_one_that_a_service_expects(kafka, producer):
    assert isinstance(producer, TransactionalProducer)
    assert type(producer).__name__ == "TransactionalProducer"


# --- faults ----------------------------------------------------------------------------------


def test_a_refusal_that_passes_is_got_over(kafka, producer):
    kafka.fail_next("EndTxn", error="NOT_COORDINATOR", times=2)
    write(producer, b"one")
    assert values(kafka) == [b"one"]
    assert kafka.remaining_faults() == {}


def test_a_refusal_that_stays_makes_the_transaction_fail(kafka, producer):
    kafka.fail_next("Produce", error="TOPIC_AUTHORIZATION_FAILED")
    with pytest.raises(KafkaError, match="orders"):
        write(producer, b"one")
    write(producer, b"two")
    assert values(kafka) == [b"two"]


@pytest.mark.parametrize("api", ["Produce", "EndTxn"])
def test_a_lost_answer_loses_and_doubles_nothing(kafka, producer, api):
    kafka.lose_answer(api)
    write(producer, b"one")
    write(producer, b"two")
    assert values(kafka) == [b"one", b"two"]


@pytest.mark.parametrize("api", ["Produce", "EndTxn"])
def test_a_lost_request_loses_and_doubles_nothing(kafka, producer, api):
    kafka.lose_request(api)
    write(producer, b"one")
    assert values(kafka) == [b"one"]


def test_a_commit_whose_answer_is_late_times_out_and_can_be_called_again(kafka):
    with kafka.producer("t", max_block_ms=200) as producer:
        producer.init_transactions()
        kafka.delay("EndTxn", 0.6)
        producer.begin_transaction()
        producer.send("orders", b"one", partition=0)
        with pytest.raises(KafkaTimeoutError):
            producer.commit_transaction()
        while True:
            try:
                producer.commit_transaction()
                break
            except KafkaTimeoutError:
                continue
    assert values(kafka) == [b"one"]


def test_the_outcome_of_a_commit_can_stay_unknown(kafka):
    with kafka.producer("t", max_block_ms=300) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("orders", b"one", partition=0)
        producer.flush()
        kafka.lose_answer("EndTxn")
        kafka.fail_next("EndTxn", error="NOT_COORDINATOR", times=1000)
        with pytest.raises(KafkaTimeoutError):
            producer.commit_transaction()
        producer.close(timeout=0)
    with pytest.raises(KafkaError):
        producer.commit_transaction()
    kafka.clear_faults()
    assert values(kafka) == [b"one"]


def test_a_commit_in_doubt_can_be_resolved(kafka):
    with kafka.producer("t") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("orders", b"one", partition=0).result(5)
        kafka.lose_answer("EndTxn")
        kafka.fail_next("EndTxn", error="PRODUCER_FENCED", times=2)  # one fence is asked about
        with pytest.raises(CommitOutcomeUnknownError):
            producer.commit_transaction()
        assert producer.resolve_outcome() == "committed"
    assert values(kafka) == [b"one"]


def test_a_time_out_that_is_too_long_is_refused_with_the_limit(kafka):
    with kafka.producer("t", transaction_timeout_ms=900_001) as producer:
        with pytest.raises(InvalidTxnTimeoutError, match="The brokers' limit is 900000"):
            producer.init_transactions()


def test_a_newer_producer_fences_the_older_one(kafka, producer):
    kafka.fence("t")
    # With v2 a leader refuses first, and only the coordinator's answer to the abort is final.
    for _ in range(2):
        with pytest.raises(KafkaError) as caught:
            write(producer, b"one")
    assert caught.value.recovery == "restart"
    assert values(kafka) == []


def test_a_transaction_that_timed_out_is_not_committed(kafka, producer):
    producer.begin_transaction()
    producer.send("orders", b"one", partition=0).result(5)
    kafka.time_out_transaction("t")
    is_v2 = kafka._cluster.transaction_version == 2
    with pytest.raises(InvalidTxnStateError if is_v2 else ProducerFencedError):
        producer.commit_transaction()
    assert values(kafka) == []


def test_a_transaction_that_timed_out_can_be_aborted_with_transactions_v2():
    with InMemoryKafka({"orders": 1}) as kafka, kafka.producer("t") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("orders", b"one", partition=0).result(5)
        kafka.time_out_transaction("t")
        producer.abort_transaction()
        write(producer, b"two")
        assert values(kafka) == [b"two"]


def test_the_producers_are_closed_with_their_cluster(kafka, producer):
    producer.begin_transaction()
    producer.send("orders", b"one", partition=0)
    kafka.close()
    with pytest.raises(IllegalStateError, match="this InMemoryKafka is closed"):
        producer.commit_transaction()
    producer.close()
    assert values(kafka) == []


@pytest.mark.parametrize(
    ("given", "delivery_ms"),
    [
        ({}, 10_000),
        ({"linger_ms": 20_000}, 120_000),
        ({"request_timeout_ms": 20_000}, 120_000),
        ({"delivery_timeout_ms": 50_000}, 50_000),
    ],
)
def test_a_delivery_has_seconds_unless_a_time_of_it_is_given(kafka, given, delivery_ms):
    with kafka.producer(**given) as producer:
        assert producer._config.delivery_timeout_ms == delivery_ms


def let_the_timer_come(kafka: InMemoryKafka) -> None:
    """Let the coordinator look for transactions that are late, as it does every 200 ms."""
    kafka._live.call(lambda cluster, now_ms: cluster.advance(now_ms + 250))


@both_versions
def test_a_transaction_that_its_coordinator_has_timed_out_before_can_time_out(version):
    with InMemoryKafka({"orders": 1}, transaction_version=version) as kafka:
        with kafka.producer("t", transaction_timeout_ms=1) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send("orders", b"one").result(5)
            let_the_timer_come(kafka)
            ended = kafka.transactions()
            kafka.time_out_transaction("t")
            assert kafka.transactions() == ended
            with pytest.raises(KafkaError):
                producer.commit_transaction()
        assert values(kafka) == []


def test_a_time_out_before_the_last_transaction_does_not_count(kafka):
    older, newer = kafka.producer("t", transaction_timeout_ms=1), kafka.producer("t")
    for producer in (older, newer):
        producer.init_transactions()
        with pytest.raises(ValueError, match="no open transaction"):
            kafka.time_out_transaction("t")
        producer.begin_transaction()
        producer.send("orders", b"one").result(5)
        let_the_timer_come(kafka)
    kafka.time_out_transaction("t")
    with pytest.raises(ValueError, match="no open transaction"):
        kafka.time_out_transaction("t")
    for producer in (older, newer):
        producer.close(timeout=0)


def test_without_an_open_transaction_none_can_time_out(kafka, producer):
    with pytest.raises(ValueError, match="no open transaction"):
        kafka.time_out_transaction("t")


def cluster(*arguments: Any, **settings: Any) -> InMemoryKafka:
    """Make a cluster of arguments that may have the wrong type."""
    return InMemoryKafka(*arguments, **settings)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (
            lambda kafka: kafka.fail_next("Fetch", error="NOT_COORDINATOR"),
            "faults of 'Fetch' cannot be asked for: the API must be one of",
        ),
        (lambda kafka: kafka.lose_answer("SaslHandshake"), "must be one of"),
        (
            lambda kafka: kafka.fail_next("EndTxn", error="NO_SUCH"),
            "not an error of Kafka's protocol",
        ),
        (lambda kafka: kafka.fail_next("EndTxn", error=12345), "not an error of Kafka's protocol"),
        (lambda kafka: kafka.fail_next("EndTxn", error="NONE"), "refuses nothing"),
        (lambda kafka: kafka.fail_next("EndTxn", error=0), "refuses nothing"),
        (lambda kafka: kafka.lose_answer("EndTxn", times=0), "at least one"),
        (lambda kafka: kafka.delay("EndTxn", -1), "not negative"),
        (lambda kafka: kafka.delay("EndTxn", float("inf")), "finite"),
        (lambda kafka: kafka.delay("EndTxn", float("nan")), "finite"),
        (lambda kafka: kafka.records("orders", isolation="dirty"), "read_committed or"),
        (lambda kafka: kafka.create_topic("orders", 5), "exists already"),
        (lambda kafka: kafka.create_topic("new", 0), "at least one"),
        (lambda kafka: kafka.create_topic("new", -1), "at least one"),
        (lambda kafka: kafka.create_topic(""), "cannot be the name of a topic"),
        (lambda kafka: kafka.create_topic("a b/"), "cannot be the name of a topic"),
        (lambda kafka: kafka.create_topic("x" * 250), "cannot be the name of a topic"),
        (lambda kafka: kafka.create_topic("__consumer_offsets"), "brokers' own"),
        (lambda kafka: kafka.stop_node(1), "no broker 1: the only broker is 0"),
        (lambda kafka: kafka.start_node(-1), "no broker -1"),
        (lambda _: cluster({"": 1}), "cannot be the name of a topic"),
        (lambda _: cluster({"a": 0}), "at least one"),
        (lambda _: cluster(transaction_version=3), "must be 1 or 2"),
        (lambda _: cluster(transaction_version=2, version="3.9"), "knows only 1"),
        (lambda _: cluster(version="2.8"), "must be one of 4.3, 3.9, 2.4"),
        (lambda _: cluster(nodes=0), "at least one"),
    ],
)
def test_a_mistake_of_the_test_is_named(kafka, call, text):
    with pytest.raises(ValueError, match=text):
        call(kafka)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda kafka: kafka.fail_next("EndTxn", error=True), "error is True"),
        (lambda kafka: kafka.fail_next("EndTxn", error=None), "error is None"),
        (lambda kafka: kafka.fail_next("EndTxn", error="NOT_COORDINATOR", times=1.5), "times is"),
        (lambda kafka: kafka.lose_request("EndTxn", times=True), "times is True"),
        (lambda kafka: kafka.delay("EndTxn", "1"), "seconds is '1'"),
        (lambda kafka: kafka.delay("EndTxn", True), "seconds is True"),
        (lambda kafka: kafka.create_topic("new", "3"), "partitions of 'new' is '3'"),
        (lambda kafka: kafka.create_topic(b"new"), "must be a str"),
        (lambda kafka: kafka.stop_node("0"), "node is '0'"),
        (lambda kafka: kafka.deny(), "name a resource"),
        (lambda _: cluster(["orders"]), "map names to numbers"),
        (lambda _: cluster("orders"), "map names to numbers"),
        (lambda _: cluster({1: 1}), "must be a str"),
        (lambda _: cluster(nodes=1.0), "nodes is 1.0"),
        (lambda _: cluster(users=["alice"]), "users must map"),
        (lambda _: cluster(users={"alice": b"x"}), "users must map"),
    ],
)
def test_a_value_of_the_wrong_type_is_named(kafka, call, text):
    with pytest.raises(TypeError, match=text):
        call(kafka)


def test_a_mistake_leaves_no_thread_and_no_change(kafka):
    threads = threading.active_count()
    with pytest.raises(TypeError):
        cluster(["orders"])
    assert threading.active_count() == threads
    with kafka.producer() as producer:
        producer.send("orders", b"one", partition=0).result(5)
    with pytest.raises(ValueError, match="exists"):
        kafka.create_topic("orders", 2)
    assert values(kafka) == [b"one"]


@pytest.mark.parametrize(
    "call", [lambda kafka: kafka.records("none"), lambda kafka: kafka.move_leader("none", 0)]
)
def test_an_unknown_topic_is_named(kafka, call):
    with pytest.raises(KeyError, match="none"):
        call(kafka)


def test_a_refusal_of_metadata_meets_a_request_that_names_topics(kafka):
    """`init_transactions` asks for the metadata of no topic: there is nothing to refuse."""
    kafka.fail_next("Metadata", error="TOPIC_AUTHORIZATION_FAILED")
    with kafka.producer("t") as producer:
        producer.init_transactions()
        assert kafka.remaining_faults() == {"Metadata": 1}
        with pytest.raises(KafkaError, match="orders"):
            write(producer, b"one")
        assert kafka.remaining_faults() == {}
        write(producer, b"two")
    assert values(kafka) == [b"two"]


# --- rights and limits -----------------------------------------------------------------------


def test_access_can_be_denied_and_granted_again(kafka, producer):
    kafka.deny(topic="orders", group="group")
    with pytest.raises(KafkaError) as caught:
        write(producer, b"one")
    assert isinstance(caught.value.__cause__, TopicAuthorizationError)
    producer.begin_transaction()
    with pytest.raises(GroupAuthorizationError):
        producer.send_offsets_to_transaction({PLACE: OffsetAndMetadata(7)}, GROUP)
    producer.abort_transaction()
    kafka.allow(topic="orders", group="group")
    write(producer, b"two")
    assert values(kafka) == [b"two"]


def test_a_compacted_topic_refuses_records_without_a_key(kafka, producer):
    kafka.create_topic("state", compacted=True)
    with pytest.raises(KafkaError) as caught, producer.transaction():
        producer.send("state", b"one")
    assert isinstance(caught.value.__cause__, InvalidRecordError)
    with producer.transaction():
        producer.send("state", b"two", b"k")
    assert [record.key for record in kafka.records("state")] == [b"k"]


@pytest.mark.parametrize("version", ["4.3", "3.9", "2.4"])
def test_each_version_of_brokers_takes_transactions(version):
    with InMemoryKafka({"orders": 1}, version=version) as kafka, kafka.producer("t") as producer:
        producer.init_transactions()
        write(producer, b"one")
        assert values(kafka) == [b"one"]


# --- brokers ---------------------------------------------------------------------------------


@pytest.fixture
def three():
    with InMemoryKafka({"orders": 1, "in": 1}, nodes=3) as cluster:
        yield cluster


def test_leaders_and_coordinators_can_move_in_the_midst_of_a_transaction(three):
    with three.producer("t") as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.send("orders", b"one")
            producer.flush()
            three.move_leader("orders", 0)
            three.move_coordinator("t")
            producer.send("orders", b"two")
            producer.send_offsets_to_transaction({PLACE: OffsetAndMetadata(1)}, GROUP)
            three.move_group_coordinator("group")
    assert values(three) == [b"one", b"two"]
    assert three.committed("group") == {PLACE: OffsetAndMetadata(1)}


def test_each_broker_can_be_down_for_a_while(three):
    with three.producer("t") as producer:
        producer.init_transactions()
        for node in range(3):
            with three.stopped(node):
                write(producer, b"%d" % node)
    assert values(three) == [b"0", b"1", b"2"]


def test_a_restart_ends_the_connections_however_short_it_is(kafka):
    with kafka.producer("t") as producer:
        producer.init_transactions()
        before = set(kafka._server._peers)
        kafka.stop_node(0)
        kafka.start_node(0)
        assert not before & kafka._server._peers
        write(producer, b"one")
    assert values(kafka) == [b"one"]


def test_a_leader_moves_only_to_a_broker_that_is_up(three):
    with three.stopped(1), three.producer("t") as producer:
        producer.init_transactions()
        for _ in range(3):
            three.move_leader("orders", 0)
            three.move_coordinator("t")
            write(producer, b"one")
    for node in range(3):
        three.stop_node(node)
    with pytest.raises(ValueError, match="no broker is up"):
        three.move_leader("orders", 0)


# --- the rest --------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_logins_are_checked(mechanism):
    login = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": mechanism}
    with InMemoryKafka({"orders": 1}, users={"alice": "right", "bob": "his"}) as kafka:
        with kafka.producer(**{**kafka.security_config(), **login}) as producer:
            assert producer.send("orders", b"one").result(5).offset == 0
        assert kafka.security_config()["sasl_plain_username"] == "alice"
        with kafka.producer(
            **login, sasl_plain_username="alice", sasl_plain_password="wrong", max_block_ms=5000
        ) as producer:
            with pytest.raises(SaslAuthenticationError):
                producer.partitions_for("orders")


def test_nothing_is_left_when_the_cluster_ends():
    before = threading.active_count()
    with InMemoryKafka({"orders": 1}) as kafka:
        kafka.listen()
        with kafka.producer() as producer:
            producer.send("orders", b"one").result(5)
        assert threading.active_count() > before
    assert not [t for t in threading.enumerate() if t.name == "txnproducer-in-memory-kafka"]


def test_records_can_be_read_after_the_end_and_a_second_end_does_nothing():
    with InMemoryKafka({"orders": 1}) as kafka:
        with kafka.producer() as producer:
            producer.send("orders", b"one").result(5)
    kafka.close()
    assert values(kafka) == [b"one"]


def test_a_producer_gives_up_in_seconds_unless_another_time_is_given(kafka):
    with kafka.producer() as producer:
        assert producer._config.max_block_ms == 5_000
    with kafka.producer(max_block_ms=7_000) as producer:
        assert producer._config.max_block_ms == 7_000


def test_another_address_than_the_clusters_is_a_host_that_does_not_exist(kafka):
    with kafka.producer(bootstrap_servers="elsewhere:9092") as producer:
        with pytest.raises(InvalidConfigurationError, match="elsewhere"):
            producer.partitions_for("orders")


def test_the_fixture_is_an_empty_cluster(kafka_memory):
    kafka_memory.create_topic("t")
    with kafka_memory.producer() as producer:
        producer.send("t", b"one").result(5)
    assert len(kafka_memory.records("t")) == 1


def test_the_verbs_take_the_arguments_that_those_of_a_real_cluster_take(kafka_memory):
    kafka_memory.create_topic("a", 3, 1)
    kafka_memory.create_topic("b", partitions=1, replication_factor=1, timeout=5)
    assert kafka_memory.records("a", timeout=5) == []
    for name in ("create_topic", "records", "committed", "transactions", "fence", "producer"):
        real = inspect.signature(getattr(EmbeddedKafka, name)).parameters
        assert real.keys() <= inspect.signature(getattr(InMemoryKafka, name)).parameters.keys()
        # The type of the fixtures.
        assert real.keys() == inspect.signature(getattr(KafkaCluster, name)).parameters.keys()


def test_a_service_with_a_producer_of_its_own_is_shown_the_way_out(kafka, monkeypatch):
    asked = []

    def look_up(_, host, port):
        asked.append(host)
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(Platform, "look_up", look_up)
    with TransactionalProducer(kafka.bootstrap_servers, max_block_ms=10_000) as producer:
        with pytest.raises(InvalidConfigurationError, match="use-kafka-listen"):
            producer.partitions_for("orders")
    # No host has a name of this domain (RFC 6761), whatever network a test runs in.
    assert all(host.endswith(".invalid") for host in asked)


def test_a_producer_that_outlives_its_cluster_says_so(kafka):
    with kafka.producer(max_block_ms=200) as producer:
        producer.partitions_for("orders")
        kafka.close()
        with pytest.raises(KafkaError, match="this InMemoryKafka is closed"):
            producer.partitions_for("other")


def test_a_topic_takes_the_one_setting_that_the_model_knows():
    with InMemoryKafka() as kafka:
        kafka.create_topic("state", config={"cleanup.policy": "compact"})
        kafka.create_topic("orders", config={"cleanup.policy": "delete"})
        for config in ({"cleanup.policy": "none"}, {"retention.ms": 1}):
            with pytest.raises(ValueError, match=r"cleanup\.policy alone"):
                kafka.create_topic("other", config=config)
        assert kafka.security_config() == {}
        with kafka.producer() as producer:
            producer.send("orders", b"x").result(5)
            with pytest.raises(KafkaError):
                producer.send("state", b"x").result(5)
