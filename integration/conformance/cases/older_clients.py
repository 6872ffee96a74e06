"""Clients of transactions v1 on a cluster of v2, and ids that change from one to the other.

Such a client adds its partitions itself, ends with EndTxn 4 and keeps its epoch (KIP-890).
"""

from __future__ import annotations

from integration.conformance.case import case
from integration.conformance.cases.time_outs import TIMEOUT_MS
from integration.conformance.stage import Identity, Stage
from txnproducer.records import TopicPartition


def go_on_too_late(s: Stage, identity: Identity, t: TopicPartition) -> None:
    """Go on with a transaction that the coordinator aborts."""
    s.settle(identity)
    s.describe(identity)
    s.end(identity, commit=True)
    s.end(identity, commit=False)
    s.produce(identity, t, 1, "too late")


@case(only=2, is_v2=False)
def an_older_client_keeps_its_epoch_from_commit_to_commit(s: Stage) -> None:
    t = s.partition()
    identity = s.open(t)
    s.commit(identity)
    s.describe(identity)
    s.add(identity, t)
    s.produce(identity, t, 1, "second")
    s.abort(identity)
    s.describe(identity)
    s.look(t)


@case(only=2, is_v2=False)
def an_older_clients_batch_outside_a_transaction_is_refused(s: Stage) -> None:
    t = s.partition()
    identity = s.init()
    s.produce(identity, t, 0, "lost")
    s.look(t)


@case(only=2, is_v2=False)
def an_older_client_cannot_abort_nothing(s: Stage) -> None:
    identity = s.init()
    s.end(identity, commit=False)
    s.describe(identity)


@case(only=2, is_v2=False)
def an_older_client_repeats_its_commit(s: Stage) -> None:
    t = s.partition()
    identity = s.open(t)
    s.commit(identity)
    s.commit(identity)
    s.end(identity, commit=False)
    s.look(t)


@case(only=2, is_v2=False)
def an_older_clients_offsets(s: Stage) -> None:
    t = s.partition()
    identity = s.init()
    s.commit_offset(identity, t, 4)
    s.add_offsets(identity)
    s.commit_offset(identity, t, 5)
    s.commit(identity)
    s.look_at_offset(t)


@case(only=2, is_v2=False)
def an_older_client_that_takes_too_long(s: Stage) -> None:
    t = s.partition()
    identity = s.open(t, timeout_ms=TIMEOUT_MS)
    go_on_too_late(s, identity, t)
    s.init(current=identity)
    s.describe(identity)
    s.look(t)


@case(only=2, is_v2=False)
def an_older_client_is_fenced(s: Stage) -> None:
    t = s.partition()
    identity = s.open(t)
    s.init()
    go_on_too_late(s, identity, t)
    s.init()
    s.look(t)


@case(only=2, is_v2=False)
def an_older_client_bumps_its_epoch_itself(s: Stage) -> None:
    t = s.partition()
    identity = s.open(t)
    s.init(current=identity)
    s.settle(identity)
    s.describe(identity)
    identity = s.init(current=identity)
    s.add(identity, t)
    s.produce(identity, t, 0, "kept")
    s.commit(identity)
    s.look(t)


@case(only=2, is_v2=False)
def a_producer_changes_to_the_second_version_between_transactions(s: Stage) -> None:
    t = s.partition()
    identity = s.commit(s.open(t, "old"))
    s.is_v2 = True
    s.produce(identity, t, 1, "new")
    identity = s.commit(identity)
    s.describe(identity)
    s.produce(identity, t, 0, "newer")
    s.commit(identity)
    s.look(t)


@case(only=2, is_v2=False)
def a_producer_changes_to_the_second_version_without_a_bump_to_another_partition(
    s: Stage,
) -> None:
    t, u = s.partitions("t", 2)
    identity = s.commit(s.open(t, "old"))
    s.is_v2 = True
    s.produce(identity, u, 0, "new")
    s.commit(identity)
    s.look(t, u)


@case(only=2, is_v2=False)
def a_producer_changes_to_the_second_version_within_a_transaction(s: Stage) -> None:
    t, u = s.partitions("t", 2)
    identity = s.open(t, "old")
    s.is_v2 = True
    s.produce(identity, u, 0, "new")
    s.describe(identity)
    s.commit(identity)
    s.describe(identity)
    s.look(t, u)


@case(only=2)
def a_producer_changes_back_to_the_first_version_between_transactions(s: Stage) -> None:
    t = s.partition()
    identity = s.commit(s.open(t, "new"))
    s.is_v2 = False
    s.add(identity, t)
    s.produce(identity, t, 0, "old")
    s.commit(identity)
    s.describe(identity)
    s.look(t)


@case(only=2)
def a_commit_by_the_second_version_is_repeated_by_the_first(s: Stage) -> None:
    t = s.partition()
    identity = s.open(t)
    after = s.commit(identity)
    s.is_v2 = False
    s.end(identity, commit=True)
    s.end(after, commit=True)
    s.end(after, commit=False)


@case(only=2, is_v2=False)
def a_commit_by_the_first_version_is_repeated_by_the_second(s: Stage) -> None:
    t = s.partition()
    identity = s.open(t)
    s.commit(identity)
    s.is_v2 = True
    s.end(identity, commit=True)
    s.end(identity, commit=False)
    s.settle(identity)
    s.describe(identity)


@case(only=2, is_v2=False)
def a_new_client_follows_an_older_one(s: Stage) -> None:
    t = s.partition()
    old = s.open(t, "old")
    s.is_v2 = True
    s.init()
    s.settle(old)
    new = s.init()
    s.produce(new, t, 0, "new")
    s.commit(new)
    s.look(t)
