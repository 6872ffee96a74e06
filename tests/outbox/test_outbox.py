"""The outbox with SQLite and the model broker: crashes and take-overs at every step of a relay."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import defaultdict
from typing import Any, cast

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from tests.ledger.model_ledger import read_from
from txnproducer._shell.stops import pause
from txnproducer.config import ProducerConfig
from txnproducer.errors import KafkaError
from txnproducer.ledger import Ledger, LedgerError
from txnproducer.outbox import Outbox, OutboxError, OutboxRelay, SupersededError, tables
from txnproducer.outbox import relay as module
from txnproducer.outbox.batches import Batches
from txnproducer.outbox.starts import Starts
from txnproducer.producer import TransactionalProducer
from txnproducer.testing import InMemoryKafka

LEDGERS = "outbox.ledger"


def built(**settings):
    return ProducerConfig.build(bootstrap_servers="model:9092", **settings)


CONFIG = built()
KEYS = ("ann", "bob", "eve", "joe")


@pytest.fixture
def kafka(monkeypatch):
    with InMemoryKafka(topics={"orders": 3}) as cluster:
        cluster.create_topic(LEDGERS, 1, config={"cleanup.policy": "compact"})
        read_from(cluster, monkeypatch)

        class Producers:
            """Stands for the class, with producers of the cluster."""

            @staticmethod
            def from_config(config):
                settings = {"linger_ms": 0, "max_request_size": config.max_request_size}
                return cluster.producer(transactional_id=config.transactional_id, **settings)

        monkeypatch.setattr(module, "TransactionalProducer", Producers)
        yield cluster


@pytest.fixture
def outbox(tmp_path):
    engine = sa.create_engine(f"sqlite:///{tmp_path}/outbox.db")
    made = Outbox(engine)
    made.create_tables()
    yield made
    engine.dispose()


@pytest.fixture
def relay(outbox, kafka):
    """Return a function that makes a relay; all are closed in the end."""
    made = []

    def make(relay_id="r", **options):
        options.setdefault("batch_rows", 5)
        config = options.pop("config", CONFIG)
        made.append(OutboxRelay(outbox, config, relay_id=relay_id, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


def enqueue(outbox, count, first=0):
    with Session(outbox.engine) as session, session.begin():
        for number in range(first, first + count):
            outbox.enqueue(session, "orders", str(number), key=KEYS[number % len(KEYS)])


def drain(relay):
    while any(relay.run_once()):
        pass


def soon():
    """Return an event that ends a relay which goes on where it must not."""
    stop = threading.Event()
    timer = threading.Timer(5, stop.set)
    timer.daemon = True
    timer.start()
    return stop


def drain_as_run_does(relay):
    """Send all rows. Begin again after failures that pass."""
    for _ in range(8):
        try:
            drain(relay)
        except SupersededError:
            raise
        except (KafkaError, sa.exc.OperationalError) as error:
            if not module._passes(error):
                raise
        else:
            return
    raise AssertionError("the failure does not pass")


def sent(kafka):
    """Return the numbers of the records by key, in the order of their partition."""
    found = defaultdict(list)
    for record in kafka.records("orders"):
        found[(record.key or b"").decode()].append(int(record.value))
    return dict(found)


def numbers(kafka):
    """Return the numbers of all records."""
    return [int(record.value) for record in kafka.records("orders")]


def all_of(count):
    return {key: list(range(place, count, len(KEYS))) for place, key in enumerate(KEYS)}


def test_rows_become_records_with_all_they_have_and_are_deleted(outbox, relay, kafka):
    with Session(outbox.engine) as session, session.begin():
        outbox.enqueue(session, "orders", "ä", key=b"k", headers={"trace": "1", "none": None})
        outbox.enqueue(session, "orders", None, key="k")
    drain(relay())
    first, second = kafka.records("orders")
    assert (first.key, first.value, second.value) == (b"k", "ä".encode(), None)
    assert [tuple(one) for one in first.headers] == [("trace", b"1"), ("none", None)]
    assert first.timestamp_ms > 1_700_000_000_000
    assert outbox.backlog() == {"waiting": 0, "dead": 0}


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


# --- crashes -------------------------------------------------------------------------------------


class CrashError(BaseException):
    """Ends a process at a point."""


class Steps:
    """Counts the steps of a relay, and calls a function before one of them, or after it."""

    def __init__(self, monkeypatch):
        self.number = 0
        self.at = None
        self.then = None
        self.names = []
        for name in ("take_over", "settle", "take_others", "check", "settle_other", "adopt"):
            self._wrap(monkeypatch, Starts, name)
        for name in ("next_batch", "delete_sent", "cut", "bury"):
            self._wrap(monkeypatch, Batches, name)
        for name in ("init_transactions", "send", "commit_transaction"):
            self._wrap(monkeypatch, TransactionalProducer, name)
        for name in ("take_over", "advance"):
            self._wrap(monkeypatch, Ledger, name)

    def _wrap(self, monkeypatch, kind, name):
        usual = getattr(kind, name)

        def step(*args, **kwargs):
            self._count(f"before {name}")
            result = usual(*args, **kwargs)
            self._count(f"after {name}")
            return result

        monkeypatch.setattr(kind, name, step)

    def _count(self, name):
        if self.then is None:
            return
        self.number += 1
        self.names.append(name)
        if self.at in (self.number, name):
            then, self.then = self.then, None
            then()


@pytest.fixture
def steps(monkeypatch):
    return Steps(monkeypatch)


def crash():
    raise CrashError


# A start has 18 steps, and each of the two batches of 3 rows 14.
POINTS = range(1, 47)


@pytest.mark.parametrize("point", POINTS)
def test_a_relay_that_is_killed_at_any_step_is_followed_by_one_that_is_exact(
    outbox, relay, kafka, steps, point
):
    enqueue(outbox, 8)
    dying = relay(batch_rows=3)
    steps.at, steps.then = point, crash
    # A process that is killed closes nothing.
    close, dying.close = dying.close, lambda: None
    with pytest.raises(CrashError):
        drain(dying)
    dying.close = close
    following = relay(batch_rows=4)
    drain(following)
    enqueue(outbox, 4, first=8)
    drain(following)
    assert sent(kafka) == all_of(12)
    assert outbox.backlog() == {"waiting": 0, "dead": 0}


@pytest.mark.parametrize("point", POINTS)
def test_a_relay_that_sleeps_at_any_step_and_wakes_after_a_take_over_changes_nothing(
    outbox, relay, kafka, steps, point
):
    enqueue(outbox, 8)
    sleeper, following = relay(batch_rows=3), relay(batch_rows=4)
    steps.at, steps.then = point, lambda: drain(following)
    if point == 1:  # it has not begun, so it takes over in its turn
        drain_as_run_does(sleeper)
        sleeper, following = following, sleeper
    with pytest.raises(SupersededError):
        drain_as_run_does(sleeper)
    assert steps.then is None
    assert sent(kafka) == all_of(8)
    # The one that has taken its place goes on, although it may have been fenced by the sleeper.
    enqueue(outbox, 4, first=8)
    drain_as_run_does(following)
    assert sent(kafka) == all_of(12)


@pytest.mark.parametrize("point", POINTS)
def test_an_answer_of_the_database_that_is_lost_at_any_step_changes_nothing(
    outbox, relay, kafka, steps, point
):
    def lose():
        raise sa.exc.OperationalError("COMMIT", {}, Exception("the connection was lost"))

    enqueue(outbox, 8)
    one = relay(batch_rows=3)
    steps.at, steps.then = point, lose
    drain_as_run_does(one)
    assert steps.then is None
    assert sent(kafka) == all_of(8)
    assert outbox.backlog() == {"waiting": 0, "dead": 0}


@pytest.mark.parametrize("point", POINTS)
def test_shards_that_move_to_another_relay_at_any_step_lose_and_double_nothing(
    outbox, relay, kafka, steps, point
):
    enqueue(outbox, 8)
    first, second = relay("a", batch_rows=3), relay("b", shards=range(20, 64))
    steps.at, steps.then = point, lambda: drain_as_run_does(second)
    with contextlib.suppress(SupersededError):
        drain_as_run_does(first)
    assert steps.then is None
    for _ in range(2):
        drain_as_run_does(relay("a", shards=range(20)))
        drain_as_run_does(relay("b", shards=range(20, 64)))
    assert sent(kafka) == all_of(8)
    assert outbox.backlog() == {"waiting": 0, "dead": 0}


def test_shards_are_not_taken_from_a_relay_that_was_not_fenced(outbox, relay, kafka, monkeypatch):
    enqueue(outbox, 4)
    one, other = relay("a", batch_rows=2), relay("b")
    usual = Starts.take_others

    def and_then_the_other_begins(self, *args):
        found = usual(self, *args)
        monkeypatch.setattr(Starts, "take_others", usual)
        one.run_once()
        return found

    monkeypatch.setattr(Starts, "take_others", and_then_the_other_begins)
    with pytest.raises(KafkaError, match="taken some of the shards at the same time"):
        other.run_once()
    drain_as_run_does(other)
    with pytest.raises(SupersededError):
        drain_as_run_does(one)
    assert sent(kafka) == all_of(4)


def test_a_relay_that_has_lost_its_shards_does_not_take_them_back_after_a_failure(
    outbox, relay, kafka, steps
):
    enqueue(outbox, 4)
    first, second = relay("a"), relay("b")
    # Its commit is refused by a fence, which is a failure after which it begins again.
    steps.at, steps.then = "before commit_transaction", lambda: None
    drain(first)
    enqueue(outbox, 4, first=4)
    steps.then = lambda: drain(second)
    with pytest.raises(SupersededError):
        drain_as_run_does(first)
    drain(second)
    assert sent(kafka) == all_of(8)


def test_a_relay_with_fewer_shards_gives_the_others_up(outbox, relay, kafka):
    enqueue(outbox, 4)
    drain(relay("a"))
    small = relay("a", shards=range(30))
    drain(small)
    enqueue(outbox, 4, first=4)
    drain(small)
    assert outbox.backlog()["waiting"] == 2
    drain(relay("b", shards=range(30, 64)))
    drain(small)  # nothing was taken from it
    assert sent(kafka) == all_of(8)


def test_a_replaced_relay_ends_and_does_not_replace_the_other(outbox, relay, kafka):
    old, new = relay(), relay()
    old.run_once()
    new.run_once()
    with pytest.raises(SupersededError, match="a relay_id"):
        old.run(soon())
    # A failure that passes lets it begin again, which must not replace the newer one.
    third = relay()
    third.run_once()
    new.close()
    enqueue(outbox, 4)
    with pytest.raises(SupersededError):
        new.run(soon())
    drain(third)
    assert sent(kafka) == all_of(4)


def test_another_outbox_with_this_relay_id_is_refused_and_deletes_nothing(
    outbox, relay, kafka, tmp_path, steps
):
    enqueue(outbox, 2)
    dying = relay()
    steps.at, steps.then = "after next_batch", crash
    with pytest.raises(CrashError):
        drain(dying)
    # Now a batch is assigned, and not committed.
    engine = sa.create_engine(f"sqlite:///{tmp_path}/other.db")
    other = Outbox(engine)
    other.create_tables()
    enqueue(other, 4)
    with OutboxRelay(other, CONFIG, relay_id="r") as strange:
        drain(strange)  # the ledger has no batch so far
    with pytest.raises(OutboxError, match="belongs to another outbox"):
        relay().run_once()
    assert outbox.backlog()["waiting"] == 2
    drain(relay(on_set_back="send"))
    assert len(numbers(kafka)) == 4 + 2
    engine.dispose()


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


# --- a database and a ledger that do not fit -----------------------------------------------------


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


def test_a_database_that_was_restored_stops_the_relay(outbox, relay, kafka):
    enqueue(outbox, 12)
    one = relay()
    one.run_once()
    one.close()
    backup = saved(outbox)
    drain(relay())
    assert sent(kafka) == all_of(12)
    restore(outbox, backup)
    with pytest.raises(OutboxError, match=r"at batch 3, .* batch 1: the database was restored"):
        relay().run_once()
    sending = relay(on_set_back="send")
    drain(sending)
    # The rows that were back are sent again.
    assert len(numbers(kafka)) == 12 + 7
    assert not sending._accepts_set_back, "the option is for one start"
    drain(relay())


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
        rows = usual(self, *args, **kwargs)
        if not rows:
            stop.set()
        return rows

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
        ({"shards": []}, "shards="),
        ({"shards": [64]}, "shards="),
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
