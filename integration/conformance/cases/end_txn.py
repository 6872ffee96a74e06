"""EndTxn: commits, aborts, repetitions, and the epochs that follow (KIP-890)."""

from __future__ import annotations

from integration.conformance.case import case, cases
from integration.conformance.stage import NOBODYS_ID, End, Identity, Stage


@case()
def committed_records_are_read(s: Stage) -> None:
    t = s.partition()
    identity = s.open(t, "a", "b")
    s.look(t)
    s.commit(identity)
    s.describe(identity)
    s.look(t)


@case()
def aborted_records_are_not_read(s: Stage) -> None:
    t = s.partition()
    identity = s.open(t, "a", "b")
    s.abort(identity)
    s.describe(identity)
    s.look(t)


@case()
def every_partition_of_the_transaction_gets_its_marker(s: Stage) -> None:
    t, u, v = s.partitions("t", 3)
    identity = s.init()
    s.begin(identity, t, u, v)
    for place in (t, u, v):
        s.produce(identity, place, 0, "kept")
    s.commit(identity)
    s.look(t, u, v)


@case()
def transactions_follow_one_another(s: Stage) -> None:
    t = s.partition()
    identity = s.open(t, "first")
    identity = s.commit(identity)
    s.begin(identity, t)
    s.produce(identity, t, 0 if s.is_v2 else 1, "second")
    identity = s.abort(identity)
    s.begin(identity, t)
    s.produce(identity, t, 0 if s.is_v2 else 2, "third")
    s.commit(identity)
    s.look(t)


@cases(
    {
        "committing_before_the_first_transaction": (None, Stage.commit),
        "aborting_before_the_first_transaction": (None, Stage.abort),
        "committing_nothing_after_a_commit": (Stage.commit, Stage.commit),
        "aborting_nothing_after_a_commit": (Stage.commit, Stage.abort),
        "committing_nothing_after_an_abort": (Stage.abort, Stage.commit),
        "aborting_nothing_after_an_abort": (Stage.abort, Stage.abort),
    }
)
def ending_nothing(s: Stage, before: End | None, end: End) -> None:
    identity = s.init() if before is None else before(s, s.open(s.partition()))
    end(s, identity)
    s.describe(identity)


@case(only=2)
def aborting_nothing_twice_raises_the_epoch_twice(s: Stage) -> None:
    identity = s.init()
    identity = s.abort(identity)
    identity = s.abort(identity)
    s.describe(identity)


@cases(
    {
        "a_commit_that_is_repeated_gets_the_same_answer": (Stage.commit,) * 3,
        "an_abort_that_is_repeated_gets_the_same_answer": (Stage.abort,) * 2,
        "a_committed_transaction_cannot_be_aborted": (Stage.commit, Stage.abort),
        "an_aborted_transaction_cannot_be_committed": (Stage.abort, Stage.commit),
    }
)
def ending_again(s: Stage, *ends: End) -> None:
    t = s.partition()
    identity = s.open(t)
    for end in ends:
        end(s, identity)
    s.describe(identity)
    s.look(t)


@case(only=2)
def a_repetition_after_the_next_transaction_has_begun(s: Stage) -> None:
    t = s.partition()
    identity = s.open(t)
    after = s.commit(identity)
    s.produce(after, t, 0, "second")
    s.end(identity, commit=True)
    s.end(identity, commit=False)
    s.describe(identity)


@case(only=2)
def an_end_two_epochs_old_is_fenced(s: Stage) -> None:
    t = s.partition()
    identity = s.open(t)
    after = s.commit(identity)
    s.produce(after, t, 0, "second")
    s.commit(after)
    s.end(identity, commit=True)
    s.end(identity, commit=False)


@case()
def an_old_epoch_ends_nothing(s: Stage) -> None:
    identity = s.init()
    s.init()
    s.end(identity, commit=True)
    s.end(identity, commit=False)
    s.describe(identity)


@case()
def an_old_epoch_does_not_end_the_new_ones_transaction(s: Stage) -> None:
    t = s.partition()
    old = s.init()
    s.init()
    s.open(t)
    s.end(old, commit=True)
    s.end(old, commit=False)
    s.describe(old)
    s.look(t)


@case()
def a_later_epoch_ends_nothing(s: Stage) -> None:
    t = s.partition()
    identity = s.open(t)
    s.end(identity.newer(), commit=True)
    s.end(identity.newer(2), commit=False)
    s.describe(identity)


@case()
def a_strange_producer_id_ends_nothing(s: Stage) -> None:
    t = s.partition()
    identity = s.open(t)
    s.end(identity.stranger(), commit=True)
    s.describe(identity)


@case()
def an_unknown_id_ends_nothing(s: Stage) -> None:
    s.end(Identity(s.name("nobody"), NOBODYS_ID, 0), commit=True)
    s.describe("nobody")


@case()
def an_empty_id_ends_nothing(s: Stage) -> None:
    s.end(Identity("", NOBODYS_ID, 0), commit=True)


@case()
def the_former_identity_is_refused_after_initialising_behind_a_commit(s: Stage) -> None:
    t = s.partition()
    identity = s.open(t)
    s.commit(identity)
    s.init()
    s.end(identity, commit=True)
    s.produce(identity, t, 1, "too late")
    s.look(t)


@case(only=2)
def after_a_commit_the_former_identity_writes_nothing(s: Stage) -> None:
    t = s.partition()
    identity = s.open(t)
    s.commit(identity)
    s.produce(identity, t, 1, "too late")
    s.look(t)


@case()
def a_bump_by_its_owner_after_an_abort_begins_anew(s: Stage) -> None:
    t = s.partition()
    identity = s.abort(s.open(t))
    identity = s.init(current=identity)
    s.begin(identity, t)
    s.produce(identity, t, 0, "second")
    s.commit(identity)
    s.look(t)
