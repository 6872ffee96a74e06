"""The producer's knowledge of the cluster, and the times when it asks again."""

from __future__ import annotations

import pytest

from tests.core.support import TP0, TP1, know, make_metadata, metadata_answer, topic_metadata
from txnproducer._core.metadata import NEVER_MS
from txnproducer._protocol.messages import (
    BrokerNode,
    LeaderIdAndEpoch,
    MetadataRequest,
    TopicMetadata,
)
from txnproducer.errors import (
    ErrorCode,
    InvalidTopicError,
    TopicAuthorizationError,
    UnsupportedVersionError,
)
from txnproducer.records import TopicPartition


def exchange(metadata, *topics, now_ms=0, nodes=(0, 1)):
    """Let a due request be asked and answered."""
    assert metadata.update_delay_ms(now_ms) == 0
    request = metadata.build_request(now_ms)
    metadata.handle_response(request, metadata_answer(*topics, nodes=nodes), now_ms)
    return request


def test_the_first_request_is_due_at_once_and_asks_for_brokers_alone():
    metadata = make_metadata()
    assert exchange(metadata) == MetadataRequest(())
    assert set(metadata.nodes) == {0, 1}


def test_while_a_request_is_under_way_no_other_is_due():
    metadata = make_metadata()
    metadata.build_request(0)
    assert metadata.update_delay_ms(0) > 10**9


def test_a_new_topic_is_asked_for_at_once_and_alone():
    metadata = make_metadata()
    exchange(metadata)
    metadata.add_topic("topic", 5)
    assert exchange(metadata, topic_metadata("topic", [0, 1]), now_ms=5).topics == ("topic",)
    assert metadata.leader_of(TP1) == (1, 0)
    metadata.add_topic("other", 6)
    assert exchange(metadata, topic_metadata("other", [0]), now_ms=6).topics == ("other",)
    assert metadata.leader_of(TP0) == (0, 0)  # what was not asked for stays


def test_an_unknown_partition_has_no_leader():
    metadata = make_metadata()
    know(metadata, topic_metadata("topic", [0, -1]))
    assert metadata.leader_of(TP1) == (-1, 0)
    assert metadata.leader_of(TopicPartition("topic", 7)) == (-1, -1)
    assert metadata.leader_of(TopicPartition("nowhere", 0)) == (-1, -1)
    assert metadata.topics["topic"].available == [0]


@pytest.mark.conformance("2.28")
def test_a_topic_that_does_not_exist_is_asked_for_again_each_time_later():
    metadata = make_metadata()
    exchange(metadata)
    metadata.add_topic("topic", 0)
    unknown = topic_metadata("topic", [], error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    now_ms, waits = 0, []
    for _ in range(5):
        exchange(metadata, unknown, now_ms=now_ms)
        assert metadata.take_topic_error("topic") is None
        waits.append(metadata.update_delay_ms(now_ms))
        now_ms += waits[-1]
    assert waits == [100, 200, 400, 800, 1_000]
    exchange(metadata, topic_metadata("topic", [0]), now_ms=now_ms)
    assert metadata.topics["topic"].partition_count == 1


def test_a_new_topic_does_not_wait_for_the_backoff_of_another():
    metadata = make_metadata()
    exchange(metadata)
    metadata.add_topic("missing", 0)
    missing = topic_metadata("missing", [], error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    exchange(metadata, missing)
    assert metadata.update_delay_ms(0) == 100
    metadata.add_topic("topic", 0)
    assert metadata.update_delay_ms(0) == 0


def test_a_topic_wanted_while_a_request_is_under_way_is_asked_for_right_after_it():
    metadata = make_metadata()
    request = metadata.build_request(0)
    metadata.add_topic("topic", 1)
    metadata.handle_response(request, metadata_answer(), 2)
    assert metadata.update_delay_ms(2) == 0
    assert metadata.build_request(2).topics == ("topic",)


@pytest.mark.conformance("2.21")
def test_a_topic_error_is_reported_once_and_the_topic_is_asked_for_again():
    metadata = make_metadata()
    exchange(metadata)
    metadata.add_topic("a b", 0)
    invalid = topic_metadata("a b", [], error_code=ErrorCode.INVALID_TOPIC_EXCEPTION)
    exchange(metadata, invalid)
    assert metadata.has_topic_error("a b")
    error = metadata.take_topic_error("a b")
    assert isinstance(error, InvalidTopicError)
    assert "'a b' is not a valid topic name" in str(error)
    assert metadata.take_topic_error("a b") is None
    metadata.add_topic("a b", 500)
    assert metadata.update_delay_ms(500) == 0


def test_a_refused_topic_names_itself():
    metadata = make_metadata()
    metadata.add_topic("secret", 0)
    refused = topic_metadata("secret", [], error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    exchange(metadata, refused)
    error = metadata.take_topic_error("secret")
    assert isinstance(error, TopicAuthorizationError)
    assert error.topics == {"secret"}


def test_an_answer_from_a_lagging_broker_does_not_bring_an_old_leader_back():
    metadata = make_metadata()
    know(metadata, topic_metadata("topic", [0], [5]))
    know(metadata, topic_metadata("topic", [1], [4]))
    assert metadata.leader_of(TP0) == (0, 5)
    know(metadata, topic_metadata("topic", [1], [6]))
    assert metadata.leader_of(TP0) == (1, 6)
    know(metadata, topic_metadata("topic", [0], [-1]))  # a broker that tells no epochs
    assert metadata.leader_of(TP0) == (0, -1)


def test_a_recreated_topic_begins_its_epochs_again():
    metadata = make_metadata()
    know(metadata, topic_metadata("topic", [0], [5], topic_id=b"1" * 16))
    know(metadata, topic_metadata("topic", [1], [0], topic_id=b"2" * 16))
    assert metadata.leader_of(TP0) == (1, 0)


@pytest.mark.conformance("6.15")
def test_a_leader_named_by_a_refusing_broker_counts_if_its_epoch_is_newer():
    metadata = make_metadata()
    know(metadata, topic_metadata("topic", [0, 0], [5, 5]))
    node = BrokerNode(7, "broker-7", 9092)
    leaders = {TP0: LeaderIdAndEpoch(7, 6), TP1: LeaderIdAndEpoch(7, 5)}
    assert metadata.update_leaders(leaders, [node]) == {TP0}
    assert metadata.leader_of(TP0) == (7, 6)
    assert metadata.leader_of(TP1) == (0, 5)
    assert metadata.nodes[7] == node
    unknown = {TopicPartition("nowhere", 0): LeaderIdAndEpoch(7, 9)}
    assert metadata.update_leaders(unknown, []) == set()
    assert metadata.update_leaders({TP0: LeaderIdAndEpoch(99, 9)}, []) == set()


@pytest.mark.conformance("6.18")
def test_an_unused_topic_is_not_asked_for_any_more():
    metadata = make_metadata(max_idle_ms=1_000)
    know(metadata, topic_metadata("topic", [0]), topic_metadata("other", [0]))
    metadata.add_topic("other", 900)
    metadata.request_update()
    request = exchange(metadata, topic_metadata("other", [0]), now_ms=1_500)
    assert request.topics == ("other",)
    assert "topic" not in metadata.topics
    metadata.add_topic("topic", 1_600)
    assert exchange(metadata, topic_metadata("topic", [0]), now_ms=1_600).topics == ("topic",)


@pytest.mark.conformance("6.18")
def test_an_unused_topic_that_was_never_found_is_not_asked_for_any_more():
    metadata = make_metadata(max_idle_ms=1_000)
    know(metadata, topic_metadata("other", [0]))
    metadata.add_topic("missing", 0)
    metadata.add_topic("other", 5_000)
    metadata.request_update()
    assert exchange(metadata, topic_metadata("other", [0]), now_ms=5_000).topics == ("other",)
    assert metadata.update_delay_ms(6_000) > 10_000


def test_metadata_are_asked_again_when_they_are_old():
    metadata = make_metadata(max_age_ms=300_000)
    exchange(metadata)
    assert metadata.update_delay_ms(0) == 300_000
    assert metadata.update_delay_ms(300_000) == 0


def test_answers_for_new_topics_alone_make_the_others_no_younger():
    # In Java neither; where a new topic comes now and then, nothing would ever be refreshed.
    metadata = make_metadata(max_age_ms=300_000, max_idle_ms=900_000)
    know(metadata, topic_metadata("topic", [0]))
    metadata.add_topic("other", 200_000)
    request = exchange(metadata, topic_metadata("other", [0]), now_ms=200_000)
    assert request.topics == ("other",)
    assert metadata.update_delay_ms(300_000) == 0
    metadata.add_topic("third", 300_000)
    request = exchange(metadata, topic_metadata("topic", [0, 1]), now_ms=300_000)
    assert request.topics == ("other", "third", "topic")
    assert metadata.update_delay_ms(400_000) > 0


def test_an_update_asked_for_waits_a_little_after_the_last_one():
    metadata = make_metadata()
    exchange(metadata)
    metadata.request_update()
    assert metadata.update_delay_ms(0) == 100
    assert metadata.update_delay_ms(100) == 0


def test_requests_without_an_answer_are_repeated_each_time_later():
    metadata = make_metadata()
    metadata.build_request(0)
    metadata.handle_failure(0)
    assert metadata.update_delay_ms(0) == 100
    metadata.build_request(100)
    metadata.handle_failure(100)
    assert metadata.update_delay_ms(100) == 200


def test_an_answer_without_brokers_is_not_enough():
    metadata = make_metadata()
    exchange(metadata, nodes=())
    assert metadata.update_delay_ms(0) == 100


def test_a_partition_without_a_leader_is_asked_for_again():
    metadata = make_metadata()
    exchange(metadata)
    metadata.add_topic("topic", 0)
    answer = topic_metadata("topic", [-1])
    partition = answer.partitions[0]
    electing = type(partition)(0, -1, 0, ErrorCode.LEADER_NOT_AVAILABLE)
    exchange(metadata, type(answer)("topic", (electing,)))
    assert 0 < metadata.update_delay_ms(0) < NEVER_MS
    assert metadata.topics["topic"].partition_count == 1


def test_a_partition_is_asked_for_again_at_a_users_wish():
    metadata = make_metadata()
    know(metadata, topic_metadata("topic", [0]))
    metadata.request_topic("topic")
    assert metadata.update_delay_ms(0) == 100
    assert metadata.build_request(100).topics == ("topic",)


def test_a_topic_without_a_leader_yet_is_asked_for_again_and_not_forgotten():
    metadata = make_metadata()
    metadata.add_topic("topic", 0)
    exchange(metadata, topic_metadata("topic", [0]))
    metadata.request_update()
    elects = topic_metadata("topic", [], error_code=ErrorCode.LEADER_NOT_AVAILABLE)
    exchange(metadata, elects, now_ms=1_000)
    assert metadata.leader_of(TP0) == (0, 0)
    assert metadata.update_delay_ms(2_000) == 0


def test_any_other_refusal_of_a_topic_keeps_its_own_name():
    metadata = make_metadata()
    metadata.add_topic("topic", 0)
    exchange(metadata, topic_metadata("topic", [], error_code=ErrorCode.UNSUPPORTED_VERSION))
    assert isinstance(metadata.take_topic_error("topic"), UnsupportedVersionError)


def test_an_answer_for_a_new_topic_looks_at_no_other():
    class Topics(dict):
        def __iter__(self):
            raise AssertionError("all topics were looked at")

        items = keys = values = __iter__

    metadata = make_metadata()
    know(metadata, topic_metadata("topic", [0]), topic_metadata("other", [0]))
    assert metadata.renewed is None
    metadata.topics = Topics(metadata.topics)
    metadata.add_topic("new", 5)
    exchange(metadata, topic_metadata("new", [0]), now_ms=5)
    assert metadata.renewed == ("new",)
    assert metadata.topics["new"].partition_count == 1


@pytest.mark.parametrize("is_update_due", [True, False])
def test_topics_that_have_gone_or_were_made_again_are_named(is_update_due):
    metadata = make_metadata()
    first = {name: topic_metadata(name, [0], topic_id=b"1" * 16) for name in ("a", "b", "c")}
    know(metadata, *first.values())
    assert metadata.gone == set()
    for name in first:
        metadata.request_topic(name)
    if is_update_due:
        metadata.request_update()
    missing = TopicMetadata("a", (), error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    again = topic_metadata("b", [0], topic_id=b"2" * 16)
    exchange(metadata, missing, again, first["c"], now_ms=1_000)
    assert metadata.gone == {"a", "b"}
    assert metadata.answer_of("a") == (0, -NEVER_MS)
    assert metadata.answer_of("b")[0] == 2
