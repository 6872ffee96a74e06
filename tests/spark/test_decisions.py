"""The decision about prepared parts: its durable text, and the pieces that it is cut into."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest

from txnproducer.records import OffsetAndMetadata, ProducerIdAndEpoch
from txnproducer.spark import LedgerError
from txnproducer.spark.ledger import decisions
from txnproducer.spark.ledger.decisions import Decision, parse_decision, parse_one, pieces_of
from txnproducer.spark.ledger.entries import (
    MOST_METADATA_BYTES,
    Found,
    LedgerBatch,
    LedgerEntry,
    PlanEntry,
)

BATCH = LedgerBatch(4, "query", 2)
PARTS = {0: ProducerIdAndEpoch(1000, 3), 1: ProducerIdAndEpoch(1001, 0)}
SMALL = Decision(7, BATCH, True, PARTS)
LARGE = Decision(
    8,
    replace(BATCH, writers=1000),
    False,
    {slot: ProducerIdAndEpoch((1 << 62) + slot, 32_000) for slot in range(1000)},
)
ENTRY = LedgerEntry(4, "query", 2, 10, "0" * 32, decision=7)


def parsed(stored):
    return parse_decision([Found("the group", one) for one in stored])


def test_the_text_stays_as_it_is_since_it_outlives_the_program():
    assert SMALL.stored() == [
        OffsetAndMetadata(
            7,
            '{"v":1,"of":1,"digest":"86aeddc4f03146d765db51104f18d296",'
            '"text":"{\\"batch\\":[4,\\"query\\",2],\\"v2\\":true,'
            '\\"parts\\":[[0,1000,3],[1,1001,0]]}"}',
        )
    ]


def test_in_a_topic_it_is_one_text():
    stored = SMALL.as_one()
    text = '{"v":1,"batch":[4,"query",2],"v2":true,"parts":[[0,1000,3],[1,1001,0]]}'
    assert stored == OffsetAndMetadata(7, text)
    for decision in (SMALL, LARGE):
        assert parse_one(Found("the topic", decision.as_one())) == decision
    for text in (
        "",
        "{}",
        '{"v":1,"batch":7,"v2":true,"parts":[]}',
        '{"v":1,"batch":[4,"query",2],"v2":true,"parts":[[0,"x",3]]}',
    ):
        with pytest.raises(LedgerError, match="the topic does not hold a ledger's decision"):
            parse_one(Found("the topic", OffsetAndMetadata(7, text)))


@pytest.mark.parametrize("decision", [SMALL, LARGE])
def test_a_decision_is_read_as_it_was_written(decision):
    stored = decision.stored()
    assert parsed(stored) == decision
    assert pieces_of(Found("group", stored[0])) == len(stored)
    assert all(len(one.metadata.encode()) <= MOST_METADATA_BYTES for one in stored)


def test_a_thousand_parts_are_cut_into_groups_and_count_only_together():
    stored = LARGE.stored()
    assert len(stored) > 5
    for number in range(len(stored)):
        assert parsed(stored[:number] + stored[number + 1 :]) is None
    swapped = [stored[1], stored[0], *stored[2:]]
    assert parsed(swapped) is None


def test_pieces_of_two_decisions_are_none():
    older = LARGE.stored()
    newer = replace(LARGE, batch=replace(LARGE.batch, batch_id=5)).stored()
    renumbered = replace(LARGE, number=9).stored()
    for other in (newer, renumbered):
        for number in range(len(older)):
            mixed = older[:number] + other[number:]
            assert (parsed(mixed) is None) == (number > 0)


@pytest.mark.parametrize("seed", range(20))
def test_a_damaged_text_is_no_decision(seed):
    rng = random.Random(seed)
    stored = LARGE.stored()
    at = rng.randrange(len(stored))
    fields = json.loads(stored[at].metadata)
    text = fields["text"]
    cut = rng.randrange(len(text))
    fields["text"] = text[:cut] + text[cut + 1 :]
    stored[at] = OffsetAndMetadata(stored[at].offset, json.dumps(fields))
    assert parsed(stored) is None


def test_a_newer_format_and_a_consumers_offset_are_refused():
    newer = OffsetAndMetadata(1, '{"v":2}')
    with pytest.raises(LedgerError, match="decision of format 2; this version reads format 1"):
        parsed([newer])
    for text in (
        "",
        "null",
        "[]",
        '{"v":1}',
        '{"v":1,"of":"x","digest":"","text":""}',
        '{"v":1,"of":Infinity,"digest":"","text":""}',
    ):
        with pytest.raises(LedgerError, match="the group does not hold a ledger's decision"):
            pieces_of(Found("the group", OffsetAndMetadata(1, text)))


def test_a_query_id_that_leaves_no_room_is_cut_like_the_parts():
    decision = replace(SMALL, batch=replace(BATCH, query_id="q" * 9000))
    assert parsed(decision.stored()) == decision


def test_quotes_beyond_all_measure_are_refused():
    decision = replace(SMALL, batch=replace(BATCH, query_id='"' * 2000))
    with pytest.raises(LedgerError, match="query_id is too long"):
        decision.stored()


def test_a_part_is_committed_if_its_entry_is_of_this_decision():
    assert SMALL.has_committed(ENTRY)
    for other in (
        None,
        replace(ENTRY, decision=6),
        replace(ENTRY, decision=None),
        replace(ENTRY, batch_id=3),
        replace(ENTRY, batch_id=5),
        replace(ENTRY, batch_id=5, decision=0),
        replace(ENTRY, query_id="other"),
    ):
        assert not SMALL.has_committed(other)


def test_the_leases_are_those_of_started_transactions_without_claims():
    leases = SMALL.leases(lambda slot: f"sink.p{slot}")
    assert [leases[0].transactional_id, leases[1].transactional_id] == ["sink.p0", "sink.p1"]
    assert {slot: lease.producer for slot, lease in leases.items()} == PARTS
    for lease in leases.values():
        assert (lease.is_transaction_v2, lease.is_started, lease.claims) == (True, True, ())


def test_the_plan_of_prepared_parts_has_a_format_that_older_versions_refuse():
    prepared = PlanEntry(3, "query", 2, is_prepared=True)
    assert json.loads(prepared.stored().metadata)["v"] == 2
    assert PlanEntry.parse("group", prepared.stored()) == prepared
    plain = PlanEntry(3, "query", 2)
    assert json.loads(plain.stored().metadata)["v"] == 1
    assert PlanEntry.parse("group", plain.stored()) == plain
    with pytest.raises(LedgerError, match="format 2; this version reads format 1"):
        LedgerEntry.parse("group", prepared.stored())


def test_the_digest_is_of_all_pieces():
    assert decisions._digest("") == "99aa06d3014798d86001c324468d497f"
