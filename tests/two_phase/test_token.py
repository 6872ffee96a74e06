"""The token of a prepared transaction survives as a text, and a damaged text is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txnproducer import TransactionalProducer
from txnproducer.errors import KafkaTimeoutError
from txnproducer.prepared import PreparedTransaction
from txnproducer.records import ProducerIdAndEpoch, TopicPartition
from txnproducer.two_phase import complete

TOKEN = PreparedTransaction(
    "shop-payments-3",
    ProducerIdAndEpoch(4711, 12),
    2,
    "MkU3OEVBNTcwNTJENDM2Qk",
    TopicPartition("payments", 7),
    1_790_000_000_000,
    1_790_000_900_000,
)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
NUMBERS = st.integers(0, 2**63 - 1)


def test_the_text_is_the_one_that_earlier_releases_have_written():
    assert str(TOKEN) == (
        "v1:shop-payments-3:4711:12:2:MkU3OEVBNTcwNTJENDM2Qk:payments:7:1790000000000"
        ":1790000900000:0698a9d1"
    )
    assert str(replace(TOKEN, deadline_ms=None)).endswith(":1790000000000::42b794f3")


@given(NAMES, NUMBERS, NUMBERS, NAMES, NAMES, NUMBERS, st.none() | NUMBERS)
def test_every_token_comes_back_from_its_text(name, pid, epoch, cluster, topic, number, deadline):
    producer, place = ProducerIdAndEpoch(pid, epoch), TopicPartition(topic, 0)
    token = PreparedTransaction(name, producer, 1, cluster, place, number, deadline)
    assert PreparedTransaction.parse(str(token)) == token
    assert PreparedTransaction.of(token) is token
    assert str(token).isascii()


@given(st.integers(0, len(str(TOKEN)) - 1))
def test_a_text_that_was_cut_is_refused(length):
    with pytest.raises(ValueError, match=r"column that holds it too short|is no prepared"):
        PreparedTransaction.parse(str(TOKEN)[:length])


@given(st.integers(3, len(str(TOKEN)) - 1), st.sampled_from("0:v%"))
def test_a_text_that_was_changed_is_refused(index, character):
    text = str(TOKEN)
    changed = text[:index] + character + text[index + 1 :]
    if changed == text:
        return
    with pytest.raises(ValueError, match="checksum"):
        PreparedTransaction.parse(changed)


@pytest.mark.parametrize("text", ["", "v2:a:1", "payments", None, 5])
def test_other_values_are_refused_with_the_way_out(text):
    with pytest.raises(ValueError, match=r"later release: store str|stored as a text, not as"):
        PreparedTransaction.of(text)


def test_the_lease_of_a_token_ends_its_transaction():
    lease = TOKEN.lease
    assert lease.transactional_id == TOKEN.transactional_id
    assert lease.producer == TOKEN.producer
    assert lease.cluster_id == TOKEN.cluster_id
    assert lease.is_transaction_v2
    assert lease.is_started
    assert not replace(TOKEN, transaction_version=1).lease.is_transaction_v2


def test_without_a_broker_the_call_is_named_that_can_be_made_again():
    with pytest.raises(KafkaTimeoutError) as told:
        complete(TOKEN, commit=True, bootstrap_servers="127.0.0.1:1", max_block_ms=500)
    text = str(told.value)
    assert text.startswith(
        "complete did not learn the cluster's id within max_block_ms=500: no co"
    )
    assert text.endswith("Nothing has begun: call complete() again.")
    lease = TOKEN.lease
    with pytest.raises(KafkaTimeoutError, match=r"^resume did not .* call resume\(\) again\.$"):
        TransactionalProducer.resume(lease, "127.0.0.1:1", max_block_ms=500)
