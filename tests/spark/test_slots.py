"""A batch that comes again is matched with committed slots by rows and digest, not by number."""

from __future__ import annotations

import itertools

import pytest

from txnproducer.spark.errors import ReplayMismatchError
from txnproducer.spark.ledger.digest import Digest
from txnproducer.spark.ledger.entries import LedgerEntry
from txnproducer.spark.ledger.slots import Slot, assign_slots

EMPTY = (0, Digest().hex())


def content(name):
    """Return the rows and the digest of a partition. Those of equal names are equal."""
    return EMPTY if name == "-" else (10, name * 32)


def assign(committed, now, on_replay_mismatch="stop"):
    """Assign slots: `committed` are names by slot, `now` has a name for each partition."""
    done = {
        number: LedgerEntry(5, "q", len(now), *content(name)) for number, name in committed.items()
    }
    found = {number: content(name) for number, name in enumerate(now)}
    return assign_slots(5, done, found, on_replay_mismatch)


def test_a_batch_that_is_numbered_as_before_keeps_its_slots():
    assert assign({}, "abc") == {n: Slot(n, False, content("abc"[n])) for n in range(3)}
    slots = assign({1: "b"}, "abc")
    assert {part: slot.number for part, slot in slots.items()} == {0: 0, 1: 1, 2: 2}
    assert [slot.is_committed for slot in slots.values()] == [False, True, False]


# Different partitions, equal ones, empty ones.
@pytest.mark.parametrize("names", ["abcd", "aabc", "aabb", "aaaa", "a--b", "----"])
def test_each_part_is_written_once_for_all_committed_parts_and_all_numberings(names):
    for count in range(len(names) + 1):
        for written in itertools.combinations(range(len(names)), count):
            committed = {number: names[number] for number in written}
            for now in set(itertools.permutations(names)):
                slots = assign(committed, now)
                assert sorted(slots) == list(range(len(names)))
                assert sorted(slot.number for slot in slots.values()) == sorted(slots)
                in_the_end = dict(committed)
                for part, slot in slots.items():
                    assert slot.found == content(now[part])
                    assert slot.is_committed == (slot.number in committed)
                    if slot.is_committed:
                        assert committed[slot.number] == now[part]
                    else:
                        in_the_end[slot.number] = now[part]
                assert sorted(in_the_end.values()) == sorted(names)


def test_a_second_crash_in_another_numbering_is_recovered():
    first = assign({0: "a"}, "dcba")
    assert {part: slot.number for part, slot in first.items()} == {3: 0, 1: 1, 2: 2, 0: 3}
    second = assign({0: "a", first[0].number: "d"}, "bdca")
    assert (second[3].number, second[1].number) == (0, 3)
    assert sorted(slot.number for slot in second.values() if not slot.is_committed) == [1, 2]


@pytest.mark.parametrize("now", ["xbc", "bbc", "abb", "---"])
def test_a_committed_part_that_is_not_there_again_stops_the_batch(now):
    told = (
        r"(?s)batch 5 comes again.* 10 rows \(digest c{32}\) were committed as part 2; now .*keep"
    )
    with pytest.raises(ReplayMismatchError, match=told):
        assign(
            {0: "a", 2: "c"} if now == "abb" else {0: "a", 1: "b", 2: "c"}, now.replace("c", "z")
        )


def test_one_committed_part_is_not_matched_with_two_partitions_nor_two_with_one():
    assert [slot.is_committed for slot in assign({2: "a"}, "aab").values()].count(True) == 1
    with pytest.raises(ReplayMismatchError, match="committed as part 1"):
        assign({0: "a", 1: "a"}, "abc")


def test_a_kept_part_takes_the_place_of_its_number_if_it_fits_nowhere():
    slots = assign({0: "a", 1: "x"}, "bca", "keep")
    # The part that is there again is found; the other one stands for the partition of its number.
    assert {part: slot.number for part, slot in slots.items()} == {2: 0, 1: 1, 0: 2}
    assert [slots[part].is_committed for part in range(3)] == [False, True, True]
    slots = assign({0: "a", 2: "x"}, "bca", "keep")
    assert {part: slot.number for part, slot in slots.items()} == {2: 0, 0: 2, 1: 1}


def test_a_partition_that_changes_between_two_passes_is_refused(caplog):
    slot = Slot(3, found=content("a"))
    slot.check(5, 0, content("a"), "stop")
    for other in ((11, "a" * 32), (10, "b" * 32)):
        with pytest.raises(
            ReplayMismatchError, match=r"partition 0 has changed between .*10 rows"
        ):
            slot.check(5, 0, other, "stop")
    slot.check(5, 0, content("b"), "keep")
    assert "partition 0 has changed" in caplog.text
    Slot(3).check(5, 0, content("b"), "stop")  # nobody has read it before
