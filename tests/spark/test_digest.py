"""The digest of a partition: a durable format, so its values are fixed here for ever."""

from __future__ import annotations

import json
from array import array
from pathlib import Path

import pytest

from txnproducer._record.implementation import Rows
from txnproducer.spark.ledger import digest as digests
from txnproducer.spark.ledger.digest import Digest

GOLDEN = json.loads((Path(__file__).parents[1] / "data" / "digest_v1.json").read_text("utf-8"))


def as_bytes(text):
    return None if text is None else text.encode()


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda case: case["name"])
def test_the_digest_is_that_of_ledgers_already_written(case):
    digest = Digest()
    for topic, partition, key, value, headers in case["records"]:
        pairs = [(name, as_bytes(data)) for name, data in headers]
        digest.add(topic, partition, as_bytes(key), as_bytes(value), pairs)
    assert (digest.count, digest.hex()) == (case["count"], case["digest"])


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda case: case["name"])
def test_the_digest_of_rows_is_the_same(case):
    digest = Digest()
    for topic, partition, key, value, headers in case["records"]:
        pairs = tuple((name, as_bytes(data)) for name, data in headers)
        rows = Rows(1, (as_bytes(value),), (as_bytes(key),), (pairs,), 0)
        digest.add_rows(topic, rows, None if partition is None else array("i", [partition]))
    assert (digest.count, digest.hex()) == (case["count"], case["digest"])


@pytest.mark.parametrize("fault", [OSError("no such library"), AttributeError("no such symbol")])
def test_without_the_function_in_c_rows_are_hashed_by_calls(monkeypatch, caplog, fault):
    def fail(name):
        raise fault

    monkeypatch.setattr("ctypes.CDLL", fail)
    with caplog.at_level("INFO"):
        assert digests.xxh3_128().address == 0
    assert str(fault) in caplog.text


def test_a_function_in_c_that_hashes_otherwise_is_not_used(monkeypatch, caplog):
    monkeypatch.setattr("xxhash.xxh3_128_intdigest", lambda data: 1)
    assert digests.xxh3_128().address == 0
    assert "is not the one of" in caplog.text


def digest_of(*records):
    digest = Digest()
    for record in records:
        digest.add(*record)
    return digest


@pytest.mark.parametrize(
    "other",
    [
        ("u", None, b"k", b"v", (("h", b"x"),)),
        ("t", 0, b"k", b"v", (("h", b"x"),)),
        ("t", None, b"", b"v", (("h", b"x"),)),
        ("t", None, None, b"v", (("h", b"x"),)),
        ("t", None, b"k", None, (("h", b"x"),)),
        ("t", None, b"k", b"", (("h", b"x"),)),
        ("t", None, b"k", b"v", ()),
        ("t", None, b"k", b"v", (("h", None),)),
        ("t", None, b"k", b"v", (("h", b""),)),
        ("t", None, b"kv", b"", (("h", b"x"),)),
        ("t", None, b"k", b"v", (("hx", b""),)),
    ],
)
def test_every_field_counts(other):
    assert digest_of(other).hex() != digest_of(("t", None, b"k", b"v", (("h", b"x"),))).hex()


def test_the_order_of_records_does_not_matter():
    one, two, three = (("t", None, b"%d" % n, b"v") for n in range(3))
    assert digest_of(one, two, three).hex() == digest_of(three, one, two).hex()


def test_the_number_of_equal_records_matters():
    record = ("t", None, b"k", b"v")
    digests = {digest_of(*[record] * n).hex() for n in range(5)}
    assert len(digests) == 5


def test_no_records_have_the_digest_zero():
    assert digest_of().hex() == "0" * 32
