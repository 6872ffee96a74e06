"""An outbox with real databases and real brokers: a short campaign of kills, and the command."""

from __future__ import annotations

import subprocess
import sys

import pytest
import sqlalchemy as sa

from integration.outbox_kills import campaign, database_of
from integration.postgres import why_no_postgres
from integration.readers import read_with_confluent
from txnproducer.config import ProducerConfig
from txnproducer.outbox import Outbox, OutboxRelay
from txnproducer.outbox.relay_row import RelayRow

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]
DATABASES = [
    "sqlite",
    pytest.param(
        "postgresql",
        marks=pytest.mark.skipif(why_no_postgres() is not None, reason=f"{why_no_postgres()}"),
    ),
]


@pytest.mark.parametrize("kind", DATABASES)
def test_two_relays_that_are_killed_and_put_to_sleep_are_exact(kafka, kind):
    with database_of(kind) as url:
        found = campaign(kafka.bootstrap_servers, url, kills=6, seed=7)
    assert found.rows > 100
    assert found.is_exact, found


@pytest.mark.parametrize("kind", DATABASES)
def test_late_rows_dead_rows_and_a_move_of_shards(kafka, topic, transactional_id, kind):
    config = ProducerConfig.build(
        bootstrap_servers=kafka.bootstrap_servers, linger_ms=0, max_request_size=4000
    )
    with database_of(kind) as url:
        engine = sa.create_engine(url)
        outbox = Outbox(engine)
        outbox.create_tables()
        with OutboxRelay(outbox, config, relay_id=f"{transactional_id}-a") as one:
            with engine.connect() as late:
                outbox.enqueue(late, topic, "late", key="a")
                if kind == "sqlite":  # it has one writer at a time
                    late.commit()
                with engine.begin() as connection:
                    outbox.enqueue(connection, topic, "early", key="b")
                    outbox.enqueue(connection, topic, b"x" * 5000, key="c")
                while any(one.run_once()):
                    pass
                late.commit()
            while any(one.run_once()):
                pass
            assert outbox.backlog() == {"waiting": 0, "dead": 1}
            with engine.begin() as connection:
                outbox.enqueue(connection, topic, "moved", key="b")
            other = OutboxRelay(outbox, config, relay_id=f"{transactional_id}-b")
            with other:
                assert other.run_once().rows == 1
        engine.dispose()
    values = sorted(
        read.value or b"" for read in read_with_confluent(kafka.bootstrap_servers, topic)
    )
    assert values == [b"early", b"late", b"moved"]


@pytest.mark.skipif(why_no_postgres() is not None, reason=f"{why_no_postgres()}")
def test_the_changes_of_a_relay_are_not_serializable_if_the_engine_is():
    with database_of("postgresql") as url:
        engine = sa.create_engine(url, isolation_level="SERIALIZABLE")

        @sa.event.listens_for(engine, "begin")
        def choose_tenant(connection: sa.Connection) -> None:
            connection.exec_driver_sql("SELECT set_config('shop.tenant', 'a', true)")

        with RelayRow(Outbox(engine), "a")._begin() as connection:
            assert connection.scalar(sa.text("SHOW transaction_isolation")) == "read committed"
        engine.dispose()


def test_the_command_sends_what_is_there(kafka, topic, transactional_id, tmp_path):
    url = f"sqlite:///{tmp_path}/shop.db"
    outbox = [sys.executable, "-P", "-m", "txnproducer", "outbox"]
    subprocess.run([*outbox, "create-tables", "--database", url], check=True, timeout=60)
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        for number in range(20):
            Outbox().enqueue(connection, topic, str(number), key="k")
    engine.dispose()
    arguments = ["--relay-id", transactional_id, "-b", kafka.bootstrap_servers, "--once"]
    done = subprocess.run(
        [*outbox, "run", "--database", url, *arguments],
        check=True,
        timeout=60,
        capture_output=True,
        text=True,
    )
    assert done.stdout == "sent: 20\n"
    reads = read_with_confluent(kafka.bootstrap_servers, topic)
    assert [read.value for read in reads] == [b"%d" % number for number in range(20)]
