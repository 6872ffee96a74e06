"""The outbox with SQLite and the model broker: rows, failures, bad use."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any, cast

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from tests.outbox.outboxes import (
    CONFIG,
    KEYS,
    all_of,
    built,
    drain,
    enqueue,
    numbers,
    sent,
)
from txnproducer._shell.stops import pause
from txnproducer.config import ProducerConfig
from txnproducer.errors import InvalidTimestampError
from txnproducer.outbox import Outbox, OutboxError, OutboxRelay, tables
from txnproducer.outbox import relay as module
from txnproducer.outbox.batches import Batches


def test_rows_become_records_with_all_they_have_and_are_deleted(outbox, relay, kafka):
    with Session(outbox.engine) as session, session.begin():
        outbox.enqueue(session, "orders", "ä", key=b"k", headers={"trace": "1", "none": None})
        outbox.enqueue(session, "orders", None, key="k")
    drain(relay())
    first, second = kafka.records("orders")
    assert (first.key, first.value, second.value) == (b"k", "ä".encode(), None)
    assert [tuple(one) for one in first.headers] == [("trace", b"1"), ("none", None)]
    assert outbox.backlog() == {"waiting": 0, "dead": 0}


def test_the_time_of_a_record_is_that_of_its_sending(outbox, relay, kafka, monkeypatch):
    now_ms = tables.now_ms()
    # The relay was down for longer than brokers keep records.
    with monkeypatch.context() as patch:
        patch.setattr(tables, "now_ms", lambda: now_ms - 8 * 24 * 3600 * 1000)
        enqueue(outbox, 1)
    drain(relay())
    (record,) = kafka.records("orders")
    assert record.timestamp_ms >= now_ms


def test_a_refused_time_is_no_fault_of_a_row(outbox, relay, kafka, steps):
    one = relay()
    one.run_once()  # so that the ledger has its first entry
    enqueue(outbox, 1)

    def refuse():
        raise InvalidTimestampError("the relay's clock is wrong")

    steps.at, steps.then = "before send", refuse
    with pytest.raises(InvalidTimestampError):
        one.run_once()
    assert outbox.backlog() == {"waiting": 1, "dead": 0}


def test_a_row_of_a_transaction_that_is_rolled_back_is_not_sent(outbox, relay, kafka):
    with Session(outbox.engine) as session:
        outbox.enqueue(session, "orders", "1", key="ann")
        session.rollback()
    drain(relay())
    assert sent(kafka) == {}


def test_batches_follow_each_other_and_keep_the_order_of_keys(outbox, relay, kafka):
    enqueue(outbox, 23)
    one = relay()
    assert [one.run_once().rows for _ in range(6)] == [5, 5, 5, 5, 3, 0]
    assert sent(kafka) == all_of(23)


def test_a_batch_is_bounded_in_bytes_and_has_one_row_at_least(outbox, relay):
    with Session(outbox.engine) as session, session.begin():
        for size in (10, 10, 500, 10):
            outbox.enqueue(session, "orders", b"x" * size, key=b"k")
    one = relay(batch_bytes=100)
    assert [one.run_once().rows for _ in range(4)] == [2, 1, 1, 0]


def test_a_row_that_is_committed_late_with_a_lower_id_is_sent(outbox, relay, kafka):
    enqueue(outbox, 3)
    # Its id was given before the others', as in PostgreSQL, where ids do not wait for commits.
    with outbox.engine.begin() as connection:
        late = connection.execute(sa.select(outbox.rows).where(outbox.rows.c.id == 1)).one()
        connection.execute(sa.delete(outbox.rows).where(outbox.rows.c.id == 1))
    one = relay()
    drain(one)
    with outbox.engine.begin() as connection:
        connection.execute(sa.insert(outbox.rows).values(late._asdict()))
    drain(one)
    assert sorted(numbers(kafka)) == [0, 1, 2]


# --- rows that cannot be sent --------------------------------------------------------------------


def test_a_row_that_no_broker_takes_moves_to_the_dead_rows(outbox, relay, kafka):
    enqueue(outbox, 2)
    with Session(outbox.engine) as session, session.begin():
        outbox.enqueue(session, "orders", b"x" * 5000, key="ann", headers={"a": "1"})
    enqueue(outbox, 2, first=2)
    one = relay(config=built(max_request_size=4000))
    reports = [one.run_once() for _ in range(5)]
    assert [sum(column) for column in zip(*reports, strict=True)] == [4, 1]
    assert sent(kafka) == all_of(4)
    assert outbox.backlog() == {"waiting": 0, "dead": 1}
    with outbox.engine.begin() as connection:
        dead = connection.execute(sa.select(outbox.dead)).one()
    assert (dead.value, dead.headers) == (b"x" * 5000, '[["a", "MQ=="]]')
    assert dead.error.startswith("RecordTooLargeError: ")


def test_rows_beside_one_that_a_broker_refuses_are_sent(outbox, relay, kafka):
    kafka.create_topic("latest", 1, compacted=True)
    enqueue(outbox, 150)
    with Session(outbox.engine) as session, session.begin():
        outbox.enqueue(session, "latest", b"without a key")
    enqueue(outbox, 150, first=150)
    drain(relay(batch_rows=500))
    assert sent(kafka) == all_of(300)
    assert outbox.backlog() == {"waiting": 0, "dead": 1}
    with outbox.engine.begin() as connection:
        dead = connection.execute(sa.select(outbox.dead)).one()
    assert (dead.topic, dead.error.partition(":")[0]) == ("latest", "InvalidRecordError")


def test_a_dead_row_that_is_put_back_with_its_id_may_die_again(outbox, relay, kafka):
    with Session(outbox.engine) as session, session.begin():
        outbox.enqueue(session, "orders", b"x" * 5000, key="ann")
    one = relay(config=built(max_request_size=4000))
    with outbox.engine.begin() as connection:
        row = connection.execute(sa.select(outbox.rows)).one()._asdict()
    drain(one)
    with outbox.engine.begin() as connection:
        connection.execute(sa.insert(outbox.rows).values(row))
    drain(one)
    assert outbox.backlog() == {"waiting": 0, "dead": 2}


def test_a_batch_of_dead_rows_alone_does_not_stop_the_next(outbox, relay, kafka):
    with Session(outbox.engine) as session, session.begin():
        outbox.enqueue(session, "orders", b"x" * 5000, key="ann")
    config = built(max_request_size=4000)
    assert relay(config=config).run_once() == (0, 1)
    enqueue(outbox, 4)
    drain(relay())
    drain(relay())
    assert sent(kafka) == all_of(4)


# --- a database that fails -----------------------------------------------------------------------


def test_missing_tables_are_named(kafka, tmp_path):
    engine = sa.create_engine(f"sqlite:///{tmp_path}/empty.db")
    with pytest.raises(OutboxError, match=r"txn_outbox_relays.*create_tables"):
        OutboxRelay(Outbox(engine), CONFIG, relay_id="r").run_once()
    with pytest.raises(OutboxError, match="without an engine"):
        OutboxRelay(Outbox(), CONFIG, relay_id="r")


def test_a_database_that_fails_for_a_while_is_waited_for(outbox, relay, kafka, monkeypatch):
    enqueue(outbox, 4)
    one, stop, failures = relay(idle_s=0.01), threading.Event(), [1, 1]
    usual = Batches.next_batch

    def fail_twice(self, *args, **kwargs):
        if failures:
            failures.pop()
            raise sa.exc.OperationalError("SELECT", {}, Exception("the server has gone away"))
        batch = usual(self, *args, **kwargs)
        if not batch.rows:
            stop.set()
        return batch

    monkeypatch.setattr(Batches, "next_batch", fail_twice)
    monkeypatch.setattr(module, "_FIRST_PAUSE_MS", 1)
    one.run(stop)
    assert sent(kafka) == all_of(4)


# --- bad use -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"topic": "a b"}, "topic="),
        ({"topic": None}, "topic="),
        ({"value": 5}, "value="),
        ({"key": 5}, "key="),
        ({"headers": {"a": 1}}, "headers"),
        ({"headers": [("a", b"1")]}, "headers must be a mapping of names to bytes, or None, not"),
        ({"headers": {1: "a"}}, "headers"),
        ({"headers": {"\ud800": "a"}}, "surrogates"),
    ],
)
def test_a_row_that_does_not_fit_is_refused_before_it_is_written(outbox, arguments, named):
    given = {"topic": "orders", "value": b"1", **arguments}
    with outbox.engine.begin() as connection, pytest.raises((TypeError, ValueError), match=named):
        outbox.enqueue(connection, **given)
    assert outbox.backlog()["waiting"] == 0


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"relay_id": "a b"}, "relay_id="),
        ({"relay_id": None}, "relay_id="),
        ({"ledger_topic": None}, "ledger_topic="),
        ({"ledger_topic": ""}, "ledger_topic="),
        ({"ledger_topic": "a b"}, "ledger_topic="),
        ({"idle_s": "1"}, "idle_s="),
        ({"shards": []}, "shards="),
        ({"shards": [64]}, "shards="),
        ({"shards": 5}, "shards="),
        ({"shards": [1, "2"]}, "shards="),
        ({"batch_rows": 0}, "batch_rows="),
        ({"idle_s": 0}, "idle_s="),
        ({"on_set_back": "ignore"}, "on_set_back="),
        (
            {"config": ProducerConfig.build(bootstrap_servers="a:1", transactional_id="t")},
            "relay_id",
        ),
        (
            {"config": ProducerConfig.build(bootstrap_servers="a:1", value_serializer=str)},
            "serializer",
        ),
    ],
)
def test_an_argument_of_a_relay_that_does_not_fit_is_named(relay, options, named):
    with pytest.raises(ValueError, match=named):
        relay(**options)


@pytest.mark.parametrize("rows", ["5", 1.5])
def test_a_number_of_rows_that_is_none_is_named(relay, rows):
    with pytest.raises(TypeError, match="batch_rows must be an int, not"):
        relay(batch_rows=rows)


def test_an_asyncio_session_is_refused_with_the_way_out(outbox):
    class AsyncSession:
        async def execute(self, statement):
            raise AssertionError("never awaited")

    async def enqueue_wrongly():
        outbox.enqueue(AsyncSession(), "orders", b"1")

    with pytest.raises(TypeError, match=r"await session\.execute\(outbox\.insert"):
        asyncio.run(enqueue_wrongly())


def test_an_engine_without_transactions_is_refused(outbox, kafka):
    engine = sa.create_engine(outbox.engine.url, isolation_level="AUTOCOMMIT")
    with pytest.raises(OutboxError, match="AUTOCOMMIT"):
        OutboxRelay(Outbox(engine), CONFIG, relay_id="r").run_once()
    engine.dispose()
    with pytest.raises(TypeError, match="create_engine"):
        Outbox(cast(Any, "sqlite://"))


def test_the_tables_may_be_in_a_schema_and_on_metadata_that_has_them_already(kafka, tmp_path):
    engine = sa.create_engine(f"sqlite:///{tmp_path}/shop.db")

    @sa.event.listens_for(engine, "connect")
    def attach(connection, _):
        connection.execute(f"ATTACH DATABASE '{tmp_path}/app.db' AS app")

    metadata = sa.MetaData(schema="app")
    enqueuing = Outbox(metadata=metadata)
    outbox = Outbox(engine, metadata=metadata)
    assert outbox.rows is enqueuing.rows
    outbox.create_tables()
    with engine.begin() as connection:
        enqueuing.enqueue(connection, "orders", "1", key="ann")
    with OutboxRelay(outbox, CONFIG, relay_id="r") as one:
        drain(one)
    assert sent(kafka) == {"ann": [1]}
    engine.dispose()


def test_a_pause_ends_early_if_the_event_is_set():
    stop = threading.Event()
    threading.Timer(0.1, stop.set).start()
    began_s = time.monotonic()
    pause(stop, 20)
    assert time.monotonic() - began_s < 10


def test_a_key_has_its_shard_for_ever():
    assert [tables._shard_of(key.encode()) for key in KEYS] == [51, 0, 62, 27]
    assert {tables._shard_of(None) for _ in range(2000)} == set(range(64))
