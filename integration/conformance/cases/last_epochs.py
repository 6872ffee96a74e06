"""The end of the epochs: 32766 is the last that a client gets, then there is a new producer id.

On a real broker each case asks for 32 thousand epochs, which takes it some seconds.
"""

from __future__ import annotations

from integration.conformance.case import case
from integration.conformance.stage import Stage

LAST = 32_766


@case()
def after_the_last_epoch_initialising_gets_a_new_producer_id(s: Stage) -> None:
    s.init_until(LAST - 2)
    s.init()
    s.init()
    s.init()
    s.init()
    s.describe("a")


@case()
def after_the_last_epoch_a_bump_gets_a_new_producer_id(s: Stage) -> None:
    identity = s.init_until(LAST)
    after = s.init(current=identity)
    s.init(current=identity)
    s.init(current=after)
    s.init(current=identity)
    s.describe("a")


@case()
def the_second_repetition_of_a_bump_behind_the_last_epoch_is_fenced(s: Stage) -> None:
    identity = s.init_until(LAST)
    s.init(current=identity)
    s.init(current=identity)
    s.init(current=identity)
    s.describe("a")


@case()
def a_commit_under_the_last_epoch(s: Stage) -> None:
    t = s.partition()
    identity = s.init_until(LAST)
    s.begin(identity, t)
    s.produce(identity, t, 0, "kept")
    after = s.commit(identity)
    s.describe(identity)
    s.look(t)
    s.commit(identity)
    s.end(identity, commit=False)
    s.begin(after, t)
    s.produce(after, t, 0 if s.is_v2 else 1, "kept")
    s.commit(after)
    s.look(t)
    s.init()


@case()
def fencing_a_transaction_under_the_last_epoch(s: Stage) -> None:
    t = s.partition()
    identity = s.init_until(LAST)
    s.begin(identity, t)
    s.produce(identity, t, 0, "lost")
    s.init()
    s.settle(identity)
    s.describe(identity)
    s.look(t)
    s.end(identity, commit=False)
    s.init()
    s.describe(identity)


@case()
def a_repeated_bump_to_the_last_epoch_is_answered_with_an_unknown_error(s: Stage) -> None:
    identity = s.init_until(LAST - 1)
    last = s.init(current=identity)
    s.init(current=identity)
    s.init(current=identity)
    s.describe("a")
    s.init(current=last)
    s.describe("a")


@case()
def a_fenced_producers_bump_under_the_last_epoch_is_answered_with_an_unknown_error(
    s: Stage,
) -> None:
    t = s.partition()
    fenced = s.init_until(LAST - 1)
    identity = s.init()
    s.init(current=fenced)
    s.init(current=identity.newer())
    s.describe("a")
    s.begin(identity, t)
    s.produce(identity, t, 0, "lost")
    s.init(current=fenced)
    s.settle(identity)
    s.describe("a")
    s.init(current=fenced)
    s.init(current=identity)
    s.describe("a")
    s.init()
    s.look(t)
