"""InitProducerId: identities, and how one producer fences another."""

from __future__ import annotations

from integration.conformance.case import case
from integration.conformance.stage import NOBODYS_ID, Identity, Stage
from txnproducer._protocol import messages as m


@case()
def a_new_id_gets_a_producer_id_and_epoch_0(s: Stage) -> None:
    identity = s.init()
    s.describe(identity)


@case()
def asking_again_raises_the_epoch(s: Stage) -> None:
    s.init()
    s.init()
    s.describe("a")


@case()
def two_ids_get_two_producer_ids(s: Stage) -> None:
    s.init("a")
    s.init("b")


@case()
def without_a_transactional_id_every_asking_gets_a_new_producer_id(s: Stage) -> None:
    s.init_idempotent()
    s.init_idempotent()


@case()
def asking_with_the_present_identity_raises_the_epoch(s: Stage) -> None:
    identity = s.init()
    s.init(current=identity)
    s.describe(identity)


@case()
def asking_twice_with_the_same_identity_is_a_repetition(s: Stage) -> None:
    identity = s.init()
    s.init(current=identity)
    s.init(current=identity)


@case()
def asking_with_an_identity_two_epochs_old_is_fenced(s: Stage) -> None:
    identity = s.init()
    following = s.init(current=identity)
    s.init(current=following)
    s.init(current=identity)


@case()
def asking_with_the_identity_of_a_fenced_producer_is_fenced(s: Stage) -> None:
    identity = s.init()
    s.init()
    s.init(current=identity)


@case()
def asking_with_a_later_epoch_is_fenced(s: Stage) -> None:
    identity = s.init()
    s.init(current=identity.newer())


@case()
def asking_with_another_producer_id_is_fenced(s: Stage) -> None:
    identity = s.init()
    s.init(current=identity.stranger())


@case()
def asking_with_an_identity_for_an_unknown_id_gets_a_new_one(s: Stage) -> None:
    made_up = Identity(s.name("a"), NOBODYS_ID, 5)
    s.init(current=made_up)


@case()
def a_producer_id_without_an_epoch_is_invalid(s: Stage) -> None:
    s.init(current=Identity(s.name("a"), NOBODYS_ID, -1))


@case()
def a_time_out_of_0_is_invalid(s: Stage) -> None:
    s.init(timeout_ms=0)
    s.describe("a")


@case()
def a_negative_time_out_is_invalid(s: Stage) -> None:
    s.init(timeout_ms=-1)


@case()
def a_time_out_above_the_brokers_limit_is_invalid(s: Stage) -> None:
    s.init(timeout_ms=900_000)
    s.init(timeout_ms=900_001)


@case()
def an_empty_transactional_id_is_invalid(s: Stage) -> None:
    s.ask(m.InitProducerIdRequest("", 60_000))


@case()
def a_new_time_out_takes_the_place_of_the_old(s: Stage) -> None:
    s.init(timeout_ms=60_000)
    s.init(timeout_ms=30_000)
    s.describe("a")


@case()
def asking_during_a_transaction_aborts_it_first(s: Stage) -> None:
    t = s.partition()
    identity = s.open(t, "lost")
    s.init()
    s.settle(identity)
    s.describe(identity)
    s.init()
    s.look(t)


@case()
def the_producer_whose_transaction_was_taken_is_refused(s: Stage) -> None:
    t = s.partition()
    identity = s.open(t, "lost")
    s.init()
    s.settle(identity)
    s.produce(identity, t, 1, "too late")
    s.end(identity, commit=True)
    s.add(identity, t)
    s.look(t)


@case()
def asking_with_the_present_identity_during_a_transaction_aborts_it_first(s: Stage) -> None:
    t = s.partition()
    identity = s.open(t, "lost")
    s.init(current=identity)
    s.settle(identity)
    s.describe(identity)
    s.init(current=identity)
    s.describe(identity)
    s.look(t)


@case()
def asking_after_a_commit_raises_the_epoch(s: Stage) -> None:
    t = s.partition()
    identity = s.open(t, "kept")
    s.commit(identity)
    s.init()
    s.describe(identity)
    s.look(t)


@case()
def a_new_producer_begins_where_the_old_one_has_been(s: Stage) -> None:
    t = s.partition()
    identity = s.open(t, "first")
    s.commit(identity)
    after = s.open(t, "second")
    s.commit(after)
    s.look(t)


@case()
def an_identity_without_a_transactional_id_is_not_looked_at(s: Stage) -> None:
    identity = s.init_idempotent()
    s.ask(m.InitProducerIdRequest(None, 60_000, identity.producer_id, identity.producer_epoch))
    s.ask(m.InitProducerIdRequest(None, 0))


@case()
def asking_aborts_a_transaction_of_added_partitions_alone(s: Stage) -> None:
    t = s.partition()
    identity = s.init()
    s.add(identity, t)
    s.init()
    s.settle(identity)
    s.describe(identity)
    s.init()
    s.look(t)


@case()
def an_invalid_time_out_ends_no_transaction(s: Stage) -> None:
    t = s.partition()
    identity = s.open(t)
    s.init(timeout_ms=0)
    s.init(current=identity.older(), timeout_ms=60_000)
    s.init(current=identity.stranger())
    s.describe(identity)
    s.commit(identity)
    s.look(t)


@case()
def a_fenced_producer_that_asks_with_its_identity_ends_the_new_ones_transaction(s: Stage) -> None:
    t = s.partition()
    old = s.init()
    s.init()
    new = s.open(t)
    s.init(current=old)
    s.settle(new)
    s.describe(new)
    s.commit(new)
    s.init(current=old)
    s.look(t)


@case()
def a_bump_after_a_bump_after_a_commit(s: Stage) -> None:
    t = s.partition()
    identity = s.commit(s.open(t))
    following = s.init(current=identity)
    s.init(current=identity)
    s.init(current=following)
    s.init(current=identity)
    s.describe(identity)


@case(only=2)
def asking_with_the_identity_from_before_a_commit(s: Stage) -> None:
    t = s.partition()
    identity = s.open(t)
    s.commit(identity)
    s.init(current=identity)
    s.describe(identity)
