"""The rules of the ledger: what fits a batch, what stops it before a row is written."""

from __future__ import annotations

import pytest

from txnproducer.records import OffsetAndMetadata
from txnproducer.spark.errors import LedgerError, PartialReplayError
from txnproducer.spark.ledger import MOST_METADATA_BYTES, Ledger, LedgerEntry, LedgerRules

LEDGER = Ledger("127.0.0.1:9092", "orders", "topic", {})


def entry(batch_id, writers=2, query="q", rows=10):
    return LedgerEntry(batch_id, query, writers, rows, "d" * 32)


def check(entries, batch_id, writers=2, **rules):
    return LedgerRules(**rules).check(entries, batch_id, "q", writers)


def test_ids_and_groups_are_named_after_sink_and_partition():
    assert LEDGER.transactional_id(3) == "orders.p3"
    assert LEDGER.group(3) == "__txn.orders.p3"


def test_an_entry_is_read_back_as_it_was_written():
    stored = OffsetAndMetadata(7, entry(7).metadata())
    assert LedgerEntry.parse("group", stored) == entry(7)


def test_an_entry_never_grows_beyond_what_the_broker_takes():
    with pytest.raises(LedgerError, match="query_id is too long"):
        entry(7, query="q" * MOST_METADATA_BYTES).metadata()


@pytest.mark.parametrize("metadata", ["", "{}", "[]", "not json", '{"v":1}'])
def test_offsets_of_a_consumer_are_not_taken_for_a_ledger(metadata):
    with pytest.raises(LedgerError, match="is no ledger"):
        LedgerEntry.parse("__txn.orders.p0", OffsetAndMetadata(5, metadata))


def test_an_entry_of_a_later_format_is_refused():
    later = entry(7).metadata().replace('"v":1', '"v":2')
    with pytest.raises(LedgerError, match="format 2"):
        LedgerEntry.parse("group", OffsetAndMetadata(7, later))


def test_a_first_batch_needs_no_ledger():
    assert check({}, 0) is False


def test_the_batch_after_the_last_one_is_new():
    assert check({0: entry(4), 1: entry(4)}, 5) is False


def test_a_batch_that_every_partition_holds_is_a_replay():
    assert check({0: entry(5), 1: entry(5)}, 5) is True


@pytest.mark.parametrize(
    ("entries", "writers"),
    [
        ({0: entry(5), 1: entry(4)}, 2),
        ({0: entry(5, writers=3), 1: entry(5, writers=3), 2: entry(5, writers=3)}, 2),
        ({0: entry(5), 1: entry(5)}, 3),
    ],
    ids=["one of two", "fewer writers now", "more writers now"],
)
def test_a_batch_that_was_committed_in_part_stops_and_says_what_is_there(entries, writers):
    with pytest.raises(PartialReplayError, match=r"batch 5 .* rows of it"):
        check(entries, 5, writers)


def test_another_querys_ledger_stops_the_batch():
    with pytest.raises(LedgerError, match=r"belongs to another query.*take_over"):
        check({0: entry(4, query="other"), 1: entry(4)}, 5)


def test_a_ledger_ahead_of_the_batch_stops_it():
    with pytest.raises(LedgerError, match="committed batch 9 already, this is batch 5"):
        check({0: entry(9), 1: entry(4)}, 5)


def test_taking_over_counts_foreign_and_later_entries_as_none():
    entries = {0: entry(9), 1: entry(5, query="other")}
    assert check(entries, 5, on_foreign_ledger="take_over") is False


def test_no_ledger_at_all_behind_the_first_batch_stops_it():
    with pytest.raises(LedgerError, match=r"no ledger.*on_missing_ledger"):
        check({}, 5)
    assert check({}, 5, on_missing_ledger="write") is False


def test_a_partition_of_the_batch_before_whose_ledger_is_gone_stops_it():
    with pytest.raises(LedgerError, match=r"of \[1\] are missing"):
        check({0: entry(4, writers=2)}, 5)
    assert check({0: entry(4, writers=2)}, 5, on_missing_ledger="write") is False


def test_a_partition_that_was_never_used_is_no_error():
    assert check({0: entry(4, writers=1)}, 5, writers=3) is False
