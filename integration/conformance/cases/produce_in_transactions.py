"""Produce and the transaction that it belongs to: verification, implicit adding, fencing."""

from __future__ import annotations

from integration.conformance.case import case
from integration.conformance.stage import NOBODYS_ID, Identity, Stage


@case(only=2)
def the_first_batch_adds_its_partition(s: Stage) -> None:
    t, u = s.partitions("t", 2)
    identity = s.open(t)
    s.describe(identity)
    s.produce(identity, u, 0, "more")
    s.describe(identity)
    s.commit(identity)
    s.look(t, u)


@case(only=1)
def a_batch_outside_a_transaction_is_refused(s: Stage) -> None:
    t = s.partition()
    identity = s.init()
    s.produce(identity, t, 0, "lost")
    s.look(t)


@case(only=1)
def a_batch_for_a_partition_that_was_not_added_is_refused(s: Stage) -> None:
    t, u = s.partitions("t", 2)
    identity = s.open(t)
    s.produce(identity, u, 0, "lost")
    s.look(t, u)


@case(only=1)
def a_batch_after_the_commit_is_refused(s: Stage) -> None:
    t = s.partition()
    identity = s.commit(s.open(t))
    s.produce(identity, t, 1, "lost")
    s.look(t)


@case(only=1)
def a_partition_counts_as_added_once_it_was_refused_and_then_added(s: Stage) -> None:
    t = s.partition()
    identity = s.init()
    s.produce(identity, t, 0, "lost")
    s.add(identity, t)
    s.produce(identity, t, 0, "kept")
    s.commit(identity)
    s.look(t)


@case(only=2)
def partitions_that_were_added_the_old_way_take_batches(s: Stage) -> None:
    t = s.partition()
    identity = s.init()
    s.add(identity, t)
    s.produce(identity, t, 0, "kept")
    s.commit(identity)
    s.look(t)


@case()
def a_transactional_batch_without_a_transactional_id(s: Stage) -> None:
    t = s.partition()
    identity = s.init()
    s.begin(identity, t)
    s.produce_batches(None, [(t, s.batch(identity, 0, "lost"))])
    s.look(t)


@case()
def a_batch_under_anothers_transactional_id(s: Stage) -> None:
    t = s.partition()
    identity, other = s.init("a"), s.init("b")
    s.begin(identity, t)
    s.begin(other, t)
    s.produce_batches(other.transactional_id, [(t, s.batch(identity, 0, "lost"))])
    s.look(t)


@case()
def a_batch_under_an_unknown_transactional_id(s: Stage) -> None:
    t = s.partition()
    identity = Identity(s.name("nobody"), NOBODYS_ID, 0)
    s.produce(identity, t, 0, "lost")
    s.look(t)


@case()
def a_batch_that_is_not_transactional_in_the_midst_of_a_transaction(s: Stage) -> None:
    t = s.partition()
    identity = s.open(t)
    batch = s.batch(identity, 1, "lost", is_transactional=False)
    s.produce_batches(identity.transactional_id, [(t, batch)])
    s.look(t)


@case()
def a_batch_that_is_not_transactional_outside_a_transaction(s: Stage) -> None:
    t = s.partition()
    identity = s.init()
    batch = s.batch(identity, 0, "plain", is_transactional=False)
    s.produce_batches(identity.transactional_id, [(t, batch)])
    s.describe(identity)
    s.look(t)


@case()
def a_fenced_producer_writes_nothing_where_it_has_written(s: Stage) -> None:
    t = s.partition()
    identity = s.commit(s.open(t))
    s.open(t, "new")
    s.produce(identity, t, 1, "too late")
    s.look(t)


@case()
def a_fenced_producer_writes_nothing_where_nobody_has_written(s: Stage) -> None:
    t = s.partition()
    identity = s.init()
    s.init()
    s.produce(identity, t, 0, "too late")
    s.look(t)


@case()
def a_fenced_producer_writes_nothing_into_the_new_ones_transaction(s: Stage) -> None:
    t = s.partition()
    identity = s.init()
    s.init()
    after = s.init()
    s.begin(after, t)
    s.produce(identity, t, 0, "too late")
    s.produce(after, t, 0, "new")
    s.produce(identity, t, 1, "too late")
    s.look(t)


@case()
def an_epoch_that_nobody_got_writes_nothing(s: Stage) -> None:
    t = s.partition()
    identity = s.init()
    s.begin(identity, t)
    s.produce(identity.newer(), t, 0, "lost")
    s.produce(identity, t, 0, "kept")
    s.look(t)


@case()
def an_epoch_that_nobody_got_writes_nothing_in_the_midst_of_a_transaction(s: Stage) -> None:
    t = s.partition()
    identity = s.open(t)
    s.produce(identity.newer(), t, 0, "lost")
    s.produce(identity, t, 1, "kept")
    s.look(t)


@case()
def a_strange_producer_id_writes_nothing(s: Stage) -> None:
    t = s.partition()
    identity = s.init()
    s.begin(identity, t)
    s.produce(identity.stranger(), t, 0, "lost")
    s.look(t)


@case()
def one_refused_batch_spoils_no_other_of_the_transaction(s: Stage) -> None:
    t, u = s.partitions("t", 2)
    identity = s.open(t)
    s.begin(identity, u)
    batches = [(t, s.batch(identity, 5, "lost")), (u, s.batch(identity, 0, "kept"))]
    s.produce_batches(identity.transactional_id, batches)
    s.commit(identity)
    s.look(t, u)


@case()
def one_request_may_begin_the_transaction_in_many_partitions(s: Stage) -> None:
    places = s.partitions("t", 3)
    identity = s.init()
    s.begin(identity, *places)
    s.produce_batches(
        identity.transactional_id, [(place, s.batch(identity, 0, "x")) for place in places]
    )
    s.commit(identity)
    s.look(*places)


@case()
def an_unknown_topic_spoils_no_other_batch_of_the_transaction(s: Stage) -> None:
    t = s.partition()
    identity = s.init()
    s.begin(identity, t)
    batches = [
        (t, s.batch(identity, 0, "kept")),
        (s.unknown_partition(), s.batch(identity, 0, "lost")),
    ]
    s.produce_batches(identity.transactional_id, batches)
    s.commit(identity)
    s.look(t)


@case()
def a_first_batch_that_was_refused_may_come_again(s: Stage) -> None:
    t = s.partition()
    identity = s.init()
    s.begin(identity, t)
    damaged = bytearray(s.batch(identity, 0, "a"))
    damaged[-1] ^= 1
    s.produce_batches(identity.transactional_id, [(t, bytes(damaged))])
    s.produce(identity, t, 0, "a")
    s.commit(identity)
    s.look(t)


@case()
def one_acknowledgement_is_enough_in_a_transaction(s: Stage) -> None:
    t = s.partition()
    identity = s.init()
    s.begin(identity, t)
    s.produce(identity, t, 0, "a", acks=1)
    s.commit(identity)
    s.look(t)


@case()
def one_request_holds_one_producers_transaction(s: Stage) -> None:
    t, u = s.partitions("t", 2)
    identity, other = s.init("a"), s.init("b")
    s.begin(identity, t)
    s.begin(other, u)
    batches = [(t, s.batch(identity, 0, "lost")), (u, s.batch(other, 0, "lost"))]
    s.produce_batches(identity.transactional_id, batches)
    s.look(t, u)


@case()
def a_request_may_hold_a_plain_batch_beside_a_transactional_one(s: Stage) -> None:
    t, u = s.partitions("t", 2)
    identity = s.init()
    s.begin(identity, t)
    plain = s.batch(Identity(None, -1, -1), -1, "plain")
    s.produce_batches(identity.transactional_id, [(t, s.batch(identity, 0, "open")), (u, plain)])
    s.describe(identity)
    s.look(t, u)


@case(only=1)
def a_partition_that_was_not_added_spoils_no_other_batch(s: Stage) -> None:
    t, u = s.partitions("t", 2)
    identity = s.init()
    s.add(identity, t)
    batches = [(t, s.batch(identity, 0, "kept")), (u, s.batch(identity, 0, "lost"))]
    s.produce_batches(identity.transactional_id, batches)
    s.commit(identity)
    s.look(t, u)


@case(only=1)
def a_refused_first_batch_keeps_later_ones_out_until_it_comes_again(s: Stage) -> None:
    t = s.partition()
    identity = s.init()
    s.produce(identity, t, 0, "0")
    s.add(identity, t)
    s.produce(identity, t, 1, "1")
    s.produce(identity, t, 0, "0")
    s.produce(identity, t, 1, "1")
    s.commit(identity)
    s.look(t)


@case()
def a_gap_at_the_beginning_of_the_second_transaction(s: Stage) -> None:
    t = s.partition()
    identity = s.commit(s.open(t))
    following = 0 if s.is_v2 else 1
    s.begin(identity, t)
    s.produce(identity, t, following + 1, "second")
    s.produce(identity, t, following, "first")
    s.produce(identity, t, following + 1, "second")
    s.commit(identity)
    s.look(t)


@case()
def a_transaction_goes_on_after_a_refused_batch(s: Stage) -> None:
    t, u = s.partitions("t", 2)
    identity = s.open(t)
    s.produce(identity, t, 4, "lost")
    s.begin(identity, u)
    s.produce(identity, u, 0, "kept")
    s.commit(identity)
    s.look(t, u)


@case()
def a_transaction_of_refused_batches_alone_can_be_aborted(s: Stage) -> None:
    t = s.partition()
    identity = s.init()
    s.begin(identity, t)
    damaged = s.batch(identity, 0, "a")[:-1] + b"x"
    s.produce_batches(identity.transactional_id, [(t, damaged)])
    s.abort(identity)
    s.describe(identity)
    s.look(t)


@case()
def an_idempotent_producer_is_not_touched_by_transactions_of_others(s: Stage) -> None:
    t = s.partition()
    plain = s.init_idempotent()
    s.produce(plain, t, 0, "plain 1")
    identity = s.open(t)
    s.produce(plain, t, 1, "plain 2")
    s.abort(identity)
    s.produce(plain, t, 2, "plain 3")
    s.look(t)
