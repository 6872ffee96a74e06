"""Rows are hashed, and find their partitions, as their records would one by one, in both twins."""

from __future__ import annotations

from array import array
from importlib import import_module
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txnproducer._record import rows as python_rows
from txnproducer._record.murmur2 import murmur2
from txnproducer._record.record_hash import RecordHash, laid_out
from txnproducer._record.rows import MAX_PARTITIONS, NO_PARTITION

from .strategies import BASE_MS
from .test_rows import each_implementation, laid_out_columns, laid_out_rows, needs_compiled

digest = pytest.importorskip(
    "txnproducer.spark.ledger.digest", reason="xxhash is not installed (extra `spark`)"
)

BY_CALL = RecordHash(digest.xxh3_128().of)
HASHES = st.sampled_from([digest.xxh3_128(), BY_CALL])


class HashTests:
    rows: Any

    @each_implementation
    @given(
        drawn=laid_out_rows(),
        topic=st.sampled_from(["t", "a longer topic", "thème"]),
        places=st.one_of(st.none(), st.randoms(use_true_random=False)),
        record_hash=HASHES,
    )
    def test_the_hashes_of_rows_add_up_to_those_of_their_records(
        self, drawn, topic, places, record_hash
    ):
        records, columns = drawn
        partitions = None
        if places is not None:
            partitions = array("i", [places.randint(-1, 2**31 - 1) for _ in records])
        data = topic.encode()

        found = self.rows(*columns).hash_sum(data, partitions, record_hash)

        total = sum(
            BY_CALL.of(laid_out(data, -1 if partitions is None else partitions[row], *record[1:]))
            for row, record in enumerate(records)
        )
        sizes = (len(part or b"") for record in records for part in record[1:3])
        assert found == (total % (1 << 128), sum(sizes))

    def test_sums_are_carried_beyond_64_bits_and_cut_at_128(self):
        rows = self.rows(3, (b"1", b"2", b"3"), None, None, BASE_MS)
        highest = RecordHash(lambda data: (1 << 128) - 1)

        assert rows.hash_sum(b"t", None, highest)[0] == (1 << 128) - 3

    def test_no_rows_have_the_sum_zero(self):
        assert self.rows(0, (), None, None, BASE_MS).hash_sum(b"t", None, BY_CALL) == (0, 0)

    def test_partitions_of_other_rows_are_refused(self):
        rows = self.rows(2, (b"0", b"1"), None, None, BASE_MS)

        with pytest.raises(ValueError, match="1 partitions for 2 rows"):
            rows.hash_sum(b"t", array("i", [0]), BY_CALL)

    def test_an_error_of_a_hash_is_raised(self):
        def fail(data):
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            self.rows(1, (b"0",), None, None, BASE_MS).hash_sum(b"t", None, RecordHash(fail))

    @each_implementation
    @given(
        keys=st.lists(st.one_of(st.none(), st.binary(max_size=9)), max_size=40),
        partition_count=st.sampled_from([1, 2, 3, 50, MAX_PARTITIONS]),
        data=st.data(),
    )
    def test_a_key_leads_to_the_partition_that_kafka_gives_it(self, keys, partition_count, data):
        column = data.draw(laid_out_columns(tuple(keys)))

        places = self.rows(len(keys), None, column, None, BASE_MS).places(partition_count)

        assert places == array(
            "i",
            [
                NO_PARTITION if key is None else (murmur2(key) & 0x7FFFFFFF) % partition_count
                for key in keys
            ],
        )

    @pytest.mark.parametrize("count", [0, -1, MAX_PARTITIONS + 1])
    def test_a_number_of_partitions_that_no_topic_has_is_refused(self, count):
        with pytest.raises(ValueError, match="there is no topic of"):
            self.rows(1, None, (b"k",), None, BASE_MS).places(count)


class TestPython(HashTests):
    rows = python_rows.Rows


@needs_compiled
class TestCompiled(HashTests):
    @property
    def rows(self) -> Any:
        return import_module("txnproducer._record._speedups").Rows


def test_this_installation_hashes_rows_without_a_call_for_each():
    # Where PyPI's xxhash is installed, as for the sink; else it is only slower.
    assert digest.xxh3_128().address
