"""Produce with sequences: idempotence, gaps, epochs."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TypeAlias

from crc32c import crc32c

from integration.conformance.case import case, cases
from integration.conformance.stage import Identity, Stage

Build: TypeAlias = Callable[[Stage, Identity], bytes]

_CRC_AT, _CHECKED_FROM = 17, 21
_EPOCH_AT, _SEQUENCE_AT, _COUNT_AT = 51, 53, 57


def _with_field(batch: bytes, layout: str, at: int, value: int) -> bytes:
    changed = bytearray(batch)
    struct.pack_into(layout, changed, at, value)
    struct.pack_into(">I", changed, _CRC_AT, crc32c(bytes(changed[_CHECKED_FROM:])))
    return bytes(changed)


def with_count(batch: bytes, count: int) -> bytes:
    """Return a batch that claims another number of records."""
    return _with_field(batch, ">i", _COUNT_AT, count)


def with_sequence(batch: bytes, sequence: int) -> bytes:
    """Return a batch with another first sequence."""
    return _with_field(batch, ">i", _SEQUENCE_AT, sequence)


def with_epoch(batch: bytes, epoch: int) -> bytes:
    """Return a batch with another epoch."""
    return _with_field(batch, ">h", _EPOCH_AT, epoch)


@case()
def batches_follow_one_another(s: Stage) -> None:
    t = s.partition()
    identity = s.open(t, "a", "b")
    s.produce(identity, t, 2, "c")
    s.produce(identity, t, 3, "d", "e")
    s.commit(identity)
    s.look(t)


@case()
def the_last_five_batches_are_known_again(s: Stage) -> None:
    t = s.partition()
    identity = s.open(t, "0")
    for sequence in range(1, 5):
        s.produce(identity, t, sequence, str(sequence))
    for sequence in range(5):
        s.produce(identity, t, sequence, str(sequence))
    s.commit(identity)
    s.look(t)


@case()
def an_older_batch_is_not_known_again(s: Stage) -> None:
    t = s.partition()
    identity = s.open(t, "0")
    for sequence in range(1, 6):
        s.produce(identity, t, sequence, str(sequence))
    s.produce(identity, t, 0, "0")
    s.produce(identity, t, 6, "6")
    s.look(t)


@case()
def a_batch_with_the_same_first_but_another_last_sequence_is_no_duplicate(s: Stage) -> None:
    t = s.partition()
    identity = s.open(t, "a", "b")
    s.produce(identity, t, 0, "a")
    s.produce(identity, t, 0, "a", "b", "c")
    s.produce(identity, t, 1, "b")
    s.look(t)


@case()
def a_gap_is_refused(s: Stage) -> None:
    t = s.partition()
    identity = s.open(t, "a")
    s.produce(identity, t, 2, "c")
    s.produce(identity, t, 1, "b")
    s.look(t)


@case()
def a_transaction_that_does_not_begin_with_0(s: Stage) -> None:
    t = s.partition()
    identity = s.init()
    s.begin(identity, t)
    s.produce(identity, t, 3, "a")
    s.produce(identity, t, 0, "a")
    s.look(t)


@cases(
    {
        "an_idempotent_producer_that_does_not_begin_with_0": ((3, "a"), (4, "b")),
        "an_idempotent_producer_is_held_to_its_sequences": (
            (0, "a"),
            (0, "a"),
            (2, "c"),
            (1, "b"),
        ),
        "sequences_go_from_the_greatest_to_0": ((2**31 - 2, "ab"), (0, "c"), (1, "d")),
        "a_batch_may_reach_over_the_greatest_sequence": ((2**31 - 1, "ab"), (1, "c")),
    }
)
def an_idempotent_producer_writes(s: Stage, *batches: tuple[int, str]) -> None:
    t = s.partition()
    identity = s.init_idempotent()
    for sequence, values in batches:
        s.produce(identity, t, sequence, *values)
    s.look(t)


@case()
def each_partition_has_its_own_sequence(s: Stage) -> None:
    t, u = s.partitions("t", 2)
    identity = s.init_idempotent()
    s.produce(identity, t, 0, "a")
    s.produce(identity, u, 0, "a")
    s.produce(identity, u, 1, "b")
    s.produce(identity, t, 1, "b")
    s.look(t, u)


@case()
def a_new_epoch_begins_with_0(s: Stage) -> None:
    t = s.partition()
    identity = s.init_idempotent()
    s.produce(identity, t, 0, "a")
    s.produce(identity.newer(), t, 1, "b")
    s.produce(identity.newer(), t, 0, "b")
    s.produce(identity, t, 1, "c")
    s.look(t)


@case()
def a_new_epoch_of_a_transactional_producer_begins_with_0(s: Stage) -> None:
    t = s.partition()
    s.commit(s.open(t))
    after = s.init()
    s.begin(after, t)
    s.produce(after, t, 1, "b")
    s.produce(after, t, 0, "b")
    s.look(t)


@case()
def a_partition_that_the_producer_comes_back_to_after_a_bump(s: Stage) -> None:
    t, u = s.partitions("t", 2)
    identity = s.init()
    s.begin(identity, t, u)
    s.produce(identity, t, 0, "a")
    s.produce(identity, u, 0, "a")
    identity = s.commit(identity)
    s.begin(identity, t)
    s.produce(identity, t, 0 if s.is_v2 else 1, "b")
    identity = s.commit(identity)
    s.begin(identity, u)
    s.produce(identity, u, 0 if s.is_v2 else 1, "c")
    s.commit(identity)
    s.look(t, u)


@case()
def a_duplicate_of_the_former_transaction_is_not_appended(s: Stage) -> None:
    t = s.partition()
    identity = s.open(t, "a")
    after = s.commit(identity)
    s.begin(after, t)
    s.produce(after, t, 0 if s.is_v2 else 1, "b")
    s.produce(identity, t, 0, "a")
    s.look(t)


@case()
def a_record_without_a_producer_is_appended_each_time(s: Stage) -> None:
    t = s.partition()
    nobody = Identity(None, -1, -1)
    s.produce(nobody, t, -1, "a")
    s.produce(nobody, t, -1, "a")
    s.look(t)


@cases(
    {
        "one_acknowledgement_is_enough": (1,),
        "two_acknowledgements_cannot_be_asked_for": (2,),
    }
)
def asking_for_acknowledgements(s: Stage, acks: int) -> None:
    t = s.partition()
    identity = s.init_idempotent()
    s.produce(identity, t, 0, "a", acks=acks)
    s.look(t)


@case()
def an_unknown_topic_takes_no_batch(s: Stage) -> None:
    identity = s.init_idempotent()
    s.produce(identity, s.unknown_partition(), 0, "a")


@case()
def a_batch_with_a_wrong_checksum_is_refused(s: Stage) -> None:
    t = s.partition()
    identity = s.init_idempotent()
    damaged = bytearray(s.batch(identity, 0, "a"))
    damaged[-1] ^= 1
    s.produce_batches(None, [(t, bytes(damaged))])
    s.produce(identity, t, 0, "a")
    s.look(t)


@case()
def a_compressed_batch_counts_as_its_records(s: Stage) -> None:
    t = s.partition()
    identity = s.init_idempotent()
    s.produce_batches(None, [(t, s.batch(identity, 0, "a", "b", "c", compression="gzip"))])
    s.produce(identity, t, 3, "d")
    s.look(t)


@cases(
    {
        "a_batch_that_was_cut_short_is_refused": (
            lambda s, identity: s.batch(identity, 0, "a")[:-3],
        ),
        "two_batches_for_one_partition_are_refused": (
            lambda s, identity: s.batch(identity, 0, "a") + s.batch(identity, 1, "b"),
        ),
        "a_control_batch_of_a_client_is_refused": (
            lambda s, identity: s.batch(identity, 0, "a", is_control=True),
        ),
        "a_batch_whose_count_is_not_its_records_is_refused": (
            lambda s, identity: with_count(s.batch(identity, 0, "a", "b"), 3),
        ),
        "a_batch_with_a_producer_but_no_sequence_is_refused": (
            lambda s, identity: with_sequence(s.batch(identity, 0, "a"), -1),
        ),
        "a_batch_with_a_negative_epoch_is_refused": (
            lambda s, identity: with_epoch(s.batch(identity, 0, "a"), -1),
        ),
        "a_batch_that_is_too_large_is_refused": (
            lambda s, identity: s.batch(identity, 0, "x" * 1_048_588),
        ),
    }
)
def a_batch_is_refused(s: Stage, build: Build) -> None:
    t = s.partition()
    identity = s.init_idempotent()
    s.produce_batches(None, [(t, build(s, identity))])
    s.look(t)


@case()
def the_same_topic_may_be_produced_to_again_and_again_without_waiting(s: Stage) -> None:
    t, u = s.partitions("t", 2)
    identity = s.init_idempotent()
    for sequence in range(8):
        batches = [(place, s.batch(identity, sequence, str(sequence))) for place in (t, u)]
        s.produce_batches(None, batches)
    s.look(t, u)


@case()
def a_bumped_idempotent_producer_takes_its_partitions_along_one_by_one(s: Stage) -> None:
    t, u = s.partitions("t", 2)
    identity = s.init_idempotent()
    s.produce(identity, t, 0, "a")
    s.produce(identity, u, 0, "a")
    s.produce(identity.newer(), t, 0, "b")
    s.produce(identity, u, 1, "b")
    s.produce(identity.newer(2), u, 0, "c")
    s.produce(identity.newer(), u, 0, "d")
    s.look(t, u)


@case()
def a_compacted_topic_takes_no_record_without_a_key(s: Stage) -> None:
    t, u = s.partitions("t", 2, is_compacted=True)
    identity = s.init_idempotent()
    s.produce_batches(None, [(t, s.batch(identity, 0, "k=a", "b", "k=c", "d"))])
    s.produce_batches(
        None, [(t, s.batch(identity, 0, "k=a", "k=c")), (u, s.batch(identity, 0, "b"))]
    )
    s.look(t, u)


@case()
def one_refused_batch_spoils_no_other(s: Stage) -> None:
    t, u, v = s.partitions("t", 3)
    identity = s.init_idempotent()
    s.produce(identity, u, 0, "a")
    batches = [
        (t, s.batch(identity, 0, "a")),
        (u, s.batch(identity, 5, "b")),
        (v, s.batch(identity, 0, "a")),
    ]
    s.produce_batches(None, batches)
    s.look(t, u, v)


@case()
def an_unknown_topic_spoils_no_other_batch(s: Stage) -> None:
    t = s.partition()
    identity = s.init_idempotent()
    batches = [(t, s.batch(identity, 0, "a")), (s.unknown_partition(), s.batch(identity, 0, "a"))]
    s.produce_batches(None, batches)
    s.look(t)
