"""`send` takes its arguments in several forms, and refuses others by name, with the way out."""

from __future__ import annotations

import math
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from txnproducer import TransactionalProducer, TransactionParticipant, admin
from txnproducer._shell.arguments import (
    check_claim,
    check_headers,
    check_place,
    seconds,
    to_bytes,
    to_seconds,
)
from txnproducer.aio import AsyncTransactionalProducer
from txnproducer.config import ProducerConfig
from txnproducer.records import ProducerIdAndEpoch, TransactionLease


class Bytes(bytes):
    """Bytes of a class of their own, as NumPy's."""


@pytest.mark.parametrize("data", [b"x", bytearray(b"x"), memoryview(b"x"), Bytes(b"x")])
def test_bytes_like_values_become_bytes(data):
    made = to_bytes("value", data)
    assert made == b"x"
    assert type(made) is bytes


def test_none_stays_none():
    assert to_bytes("value", None) is None


def test_a_str_without_serializer_is_refused_with_both_ways_out():
    with pytest.raises(TypeError, match=r"key\.encode\(\).*key_serializer="):
        to_bytes("key", "text")


def test_another_type_without_serializer_is_refused_by_name():
    with pytest.raises(TypeError, match=r"value must be bytes, not dict.*value_serializer="):
        to_bytes("value", {})


def test_headers_become_pairs_of_str_and_bytes():
    given: Any = [("a", b"1"), ["b", None], ("c", bytearray(b"3"))]
    assert check_headers(given) == (("a", b"1"), ("b", None), ("c", b"3"))


@pytest.mark.parametrize(
    "given",
    [
        {"a": b"1", "b": "ä", "c": None},
        MappingProxyType({"a": "1", "b": "ä", "c": None}),
        [("a", "1"), ("b", "ä"), ("c", None)],
        iter([("a", b"1"), ["b", "ä"], ("c", None)]),
    ],
)
def test_headers_may_be_a_mapping_or_pairs_and_their_values_text(given):
    assert check_headers(given) == (("a", b"1"), ("b", "ä".encode()), ("c", None))


@pytest.mark.parametrize("second", [("b", "\ud800"), ("b\udc80", b"1"), ("b\udc80", None)])
def test_text_without_an_encoding_is_refused_by_name(second):
    with pytest.raises(ValueError, match=r"headers\[1\] \('b.*'\): .*surrogates not allowed"):
        check_headers([("a", "1"), second])


@pytest.mark.parametrize(
    ("headers", "message"),
    [
        (0, "headers must be a mapping, or .* pairs, not a int"),
        (7, "headers must be a mapping, or .* pairs, not a int"),
        ("text", "headers must be a mapping"),
        ({b"a": b"1"}, r"headers\[0\]: the name must be a str"),
        ([("a",)], r"headers\[0\] must be a pair"),
        ([("a", b"1"), (b"b", b"2")], r"headers\[1\]: the name must be a str"),
        ([("a", 1)], r"headers\[0\] \('a'\): the value must be bytes, str or None, not int"),
    ],
)
def test_malformed_headers_are_refused_by_position(headers, message):
    with pytest.raises(TypeError, match=message):
        check_headers(headers)


@pytest.mark.parametrize(
    ("topic", "partition", "timestamp_ms", "error", "message"),
    [
        (b"t", None, None, TypeError, "topic must be a str, not bytes"),
        ("", None, None, ValueError, "topic must not be empty"),
        ("t", "0", None, TypeError, "partition must be an int"),
        ("t", True, None, TypeError, "partition must be an int"),
        ("t", np.True_, None, TypeError, "partition must be an int"),
        ("t", np.int32(-1), None, ValueError, "partition must not be negative: -1"),
        ("t", -2, None, ValueError, r"-2 \(None: the producer chooses the partition\)"),
        ("t", -1, None, ValueError, "partition must not be negative: -1"),
        ("t", 0, 1.5, TypeError, "timestamp_ms must be an int"),
        ("t", 0, -5, ValueError, r"be negative: -5 \(None: the present time\)"),
        ("t", 0, 2**63 - 1, ValueError, "64-bit milliseconds since the epoch, not 9223"),
        ("t", 0, 2**63, ValueError, "timestamp_ms must be 64-bit .*, not 9223372036854775808"),
    ],
)
def test_a_wrong_place_is_refused_by_name(topic, partition, timestamp_ms, error, message):
    with pytest.raises(error, match=message):
        check_place(topic, partition, timestamp_ms)


def test_a_right_place_is_accepted():
    assert check_place("t", 0, 0) == (0, 0)
    assert check_place("t", None, None) == (None, None)
    assert check_place("t", None, 2**63 - 2) == (None, 2**63 - 2)


@pytest.mark.parametrize("check", [seconds, to_seconds])
@pytest.mark.parametrize("timeout", ["1", b"1", [], int])
def test_a_timeout_that_is_no_number_is_refused_by_name(check, timeout):
    with pytest.raises(
        TypeError, match="timeout must be a number of seconds, or None, not"
    ) as told:
        check(timeout)
    assert str(told.value).endswith(f"not {timeout!r} ({type(timeout).__name__})")


def test_a_timeout_may_be_any_number_that_a_float_holds():
    assert [seconds(each) for each in (1, 0.5, np.float32(2), -1)] == [1, 0.5, 2, -1]
    assert seconds(None) == math.inf
    with pytest.raises(ValueError, match="timeout is too large"):
        seconds(2**2000)
    for check in (seconds, to_seconds):
        with pytest.raises(ValueError, match="timeout is NaN"):
            check(math.nan)
    with pytest.raises(ValueError, match="timeout must not be negative: -1"):
        to_seconds(-1)


@pytest.mark.parametrize("number", ["1", 1.0, None, True])
def test_a_claim_that_is_no_number_is_refused_by_name(number):
    with pytest.raises(TypeError, match=f"claims must be an int, not {number!r} "):
        check_claim("claims", number)
    assert check_claim("claims", np.int64(2)) == 2


def test_a_participant_refuses_a_claim_that_is_no_number_before_it_opens():
    lease = TransactionLease("txn", ProducerIdAndEpoch(1, 0), True, (ProducerIdAndEpoch(2, 0),))
    claim: Any = "0"
    with pytest.raises(TypeError, match=r"claim must be an int, not '0' \(str\)"):
        TransactionParticipant(lease, claim, "nowhere:9092")


def test_a_place_may_be_a_number_of_numpy():
    place = check_place("t", np.int32(3), np.int64(1_700_000_000_000))
    assert place == (3, 1_700_000_000_000)
    assert {type(number) for number in place} == {int}


@pytest.mark.parametrize(
    ("question", "argument"),
    [
        (admin.topic_access, "topics"),
        (admin.group_operations, "groups"),
        (admin.committed_offsets, "groups"),
        (admin.describe_transactions, "transactional_ids"),
    ],
)
def test_a_question_about_several_names_refuses_a_str_before_it_connects(question, argument):
    with pytest.raises(TypeError, match=rf"{argument} is 'abc': .* as in \['abc'\]"):
        question("nowhere:9092", "abc")


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (
            lambda given: TransactionalProducer.from_config(given),
            "config must be a ProducerConfig",
        ),
        (lambda given: AsyncTransactionalProducer.from_config(given), "config must be a Producer"),
        (lambda given: ProducerConfig.from_properties(given), "settings must be a mapping, not"),
    ],
)
@pytest.mark.parametrize("given", [None, "localhost:9092", 5])
def test_an_object_in_place_of_a_configuration_is_refused(call: Any, given: Any, text: str):
    with pytest.raises(TypeError, match=text):
        call(given)
