"""A database and a ledger that do not fit, since one of them was restored, copied or lost."""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from tests.outbox.outboxes import (
    CONFIG,
    CrashError,
    all_of,
    crash,
    drain,
    enqueue,
    numbers,
    sent,
    soon,
)
from txnproducer.ledger import Ledger, LedgerError
from txnproducer.outbox import Outbox, OutboxError, OutboxRelay


def saved(outbox):
    with outbox.engine.begin() as connection:
        return {
            table.name: [row._asdict() for row in connection.execute(sa.select(table))]
            for table in outbox.tables
        }


def restore(outbox, rows):
    with outbox.engine.begin() as connection:
        for table in outbox.tables:
            connection.execute(sa.delete(table))
            if rows[table.name]:
                connection.execute(sa.insert(table), rows[table.name])


@pytest.fixture
def set_back(outbox, relay, kafka):
    """Send twelve rows, and set the database back to the time after the first five."""
    enqueue(outbox, 12)
    one = relay()
    one.run_once()
    one.close()
    backup = saved(outbox)
    drain(relay())
    assert sent(kafka) == all_of(12)
    restore(outbox, backup)


@pytest.mark.usefixtures("set_back")
def test_a_database_that_was_restored_stops_the_relay(relay, kafka):
    with pytest.raises(OutboxError, match=r"at batch 3, .* batch 1: the database was restored"):
        relay().run_once()
    sending = relay(on_set_back="send")
    drain(sending)
    # The rows that were back are sent again.
    assert len(numbers(kafka)) == 12 + 7
    assert not sending._accepts_set_back, "the option is for one start"
    drain(relay())


@pytest.mark.usefixtures("set_back")
def test_the_way_out_sends_what_is_left_once(outbox, relay, kafka):
    enqueue(outbox, 6, first=12)
    with pytest.raises(OutboxError, match=r'Way out: .*on_set_back="send".* Delete those'):
        relay().run_once()
    with outbox.engine.begin() as connection:
        connection.execute(sa.delete(outbox.rows).where(outbox.rows.c.id <= 12))
    drain(relay(on_set_back="send"))
    assert sent(kafka) == all_of(18)


def test_a_database_that_is_restored_under_a_running_relay_stops_it(outbox, relay, kafka):
    enqueue(outbox, 12)
    one = relay()
    one.run_once()
    backup = saved(outbox)
    drain(one)
    restore(outbox, backup)
    with pytest.raises(OutboxError, match="the database was restored"):
        one.run(soon())
    assert sent(kafka) == all_of(12)


def test_a_database_that_goes_back_to_before_a_cut_stops_the_relay(outbox, relay, kafka, steps):
    kafka.create_topic("latest", 1, compacted=True)
    enqueue(outbox, 3)
    with Session(outbox.engine) as session, session.begin():
        outbox.enqueue(session, "latest", b"without a key")
    backup = {}

    def save_and_die_later():
        backup.update(saved(outbox))
        steps.at, steps.then = "before delete_sent", crash

    steps.at, steps.then = "before cut", save_and_die_later
    with pytest.raises(CrashError):
        relay().run_once()
    assert sorted(numbers(kafka)) == [0, 1]
    # As after a failover to a replica that lacks the last change.
    restore(outbox, backup)
    with pytest.raises(OutboxError, match=r"at batch 1, .* batch 1: Kafka has other rows"):
        relay().run_once()
    assert outbox.backlog()["waiting"] == 4
    drain(relay(on_set_back="send"))
    assert sorted(numbers(kafka)) == [0, 0, 1, 1, 2]
    assert outbox.backlog() == {"waiting": 0, "dead": 1}


def test_a_copy_of_the_database_with_this_relay_id_is_refused(
    outbox, relay, kafka, steps, tmp_path
):
    enqueue(outbox, 1)
    drain(relay())
    copy = Outbox(sa.create_engine(f"sqlite:///{tmp_path}/copy.db"))
    copy.create_tables()
    restore(copy, saved(outbox))
    enqueue(outbox, 1, first=1)
    steps.at, steps.then = "after next_batch", crash
    with pytest.raises(CrashError):
        relay().run_once()
    enqueue(copy, 1, first=2)
    with OutboxRelay(copy, CONFIG, relay_id="r") as sending:
        drain(sending)
    with pytest.raises(OutboxError, match="Kafka has other rows"):
        relay().run_once()
    assert outbox.backlog()["waiting"] == 1
    assert numbers(kafka) == [0, 2]
    copy.engine.dispose()


def test_a_row_that_is_back_under_a_running_relay_after_it_was_sent_is_deleted(
    outbox, relay, kafka, steps
):
    enqueue(outbox, 8)
    one, backup = relay(), {}
    steps.at, steps.then = "before delete_sent", lambda: backup.update(saved(outbox))
    one.run_once()
    restore(outbox, backup)
    drain(one)
    assert sent(kafka) == all_of(8)
    assert outbox.backlog()["waiting"] == 0


@pytest.mark.parametrize("is_committed", [True, False])
def test_a_batch_that_a_version_without_marks_has_assigned_is_settled(
    outbox, relay, kafka, steps, monkeypatch, is_committed
):
    drain(relay())  # so that the ledger has its first entry
    enqueue(outbox, 4)
    advance = Ledger.advance

    def advance_as_before(self, position, *, after):
        del position["mark"]
        advance(self, position, after=after)

    monkeypatch.setattr(Ledger, "advance", advance_as_before)
    steps.at, steps.then = f"{'after' if is_committed else 'before'} commit_transaction", crash
    with pytest.raises(CrashError):
        relay().run_once()
    monkeypatch.setattr(Ledger, "advance", advance)
    with outbox.engine.begin() as connection:
        connection.execute(sa.update(outbox.rows).values(batch=1))  # its number was the mark
    drain(relay())
    assert sent(kafka) == all_of(4)
    assert outbox.backlog()["waiting"] == 0


def test_a_ledger_that_was_lost_stops_the_relay(outbox, relay, kafka):
    enqueue(outbox, 12)
    drain(relay())
    other = "other.ledger"
    kafka.create_topic(other, 1, config={"cleanup.policy": "compact"})
    with pytest.raises(LedgerError, match="has no entry"):
        relay(ledger_topic=other).run_once()
    drain(relay(ledger_topic=other, on_set_back="send"))
    enqueue(outbox, 4, first=12)
    drain(relay(ledger_topic=other))
    assert sent(kafka) == all_of(16)
