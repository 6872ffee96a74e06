"""Fixtures of the integration tests: brokers by mode, Spark, topics and ids of a test's own."""

from __future__ import annotations

import itertools
import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from integration.brokers import MODES, Mode
from integration.postgres import postgres, why_no_postgres
from integration.spark_frames import PARTITIONS
from tests.ctrl_c import hear_ctrl_c
from tests.turns import leave_out, leave_to_others, of_this_turn
from tests.under_way import tell_tests_under_way
from txnproducer import TransactionalProducer
from txnproducer.testing import EmbeddedKafka

_NUMBERS = itertools.count()
# A session of Spark lives for seconds here, as brokers do: the first compiler and the simplest
# collector take half of the processor's time. Of Spark's 200 tasks after a shuffle, each has a
# state store of its own: four batches of an aggregation took more than a minute on a slow machine.
os.environ.setdefault(
    "SPARK_SUBMIT_OPTS",
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Dspark.sql.shuffle.partitions=4",
)

hear_ctrl_c()

# The differences between brokers are the broker's part of a version, compared elsewhere.
_V1_ONCE = (
    "test_columns.py",
    "test_conformance.py",
    "test_crash_recovery.py",
    "test_spark_parts.py",
)
# Which slot is whose is decided without the broker.
_SLOTS = (
    "test_a_batch_that_was_broken_off_is_completed_however_its_parts_are_numbered_now",
    "test_a_batch_that_was_broken_off_is_not_completed_with_other_parts",
    "test_a_whole_batch_that_comes_again_and_is_cut_otherwise_is_left_as_it_was",
)
# Of the others `make test` plays a part: most start brokers or Spark for one fault each.
_ALWAYS = (
    "test_chaos_clusters.py",
    "test_cli.py",
    "test_conformance.py",
    "test_examples.py",
    "test_failover.py",
    "test_spark_chaos.py",
    "test_transactions.py",
)
# The longest tests begin first, so that no processor waits for them in the end.
_LONGEST = ("test_spark_chaos.py", "test_examples.py")


def pytest_configure(config: pytest.Config) -> None:
    tell_tests_under_way(config)


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Iterator[None]:
    for item in items:
        if "[4.3.1-v1" in item.name and item.path.name in _V1_ONCE:
            item.add_marker(pytest.mark.long("transactions v1 are tried on 3.9.1 as well"))
        if "[3.9.1" in item.name and item.name.partition("[")[0] in _SLOTS:
            item.add_marker(pytest.mark.long("slots are assigned on 4.3.1 as well"))
        if "[3.9.1-after_the_last_epoch" in item.name:
            item.add_marker(pytest.mark.long("32,767 epochs are used up on 4.3.1 as well"))
    yield  # what is left out goes, and what shares a fixture comes together
    _leave_to_other_turns(config, items)
    items.sort(key=lambda item: item.path.name not in _LONGEST)


def _leave_to_other_turns(config: pytest.Config, items: list[pytest.Item]) -> None:
    rest = [item for item in items if item.path.name not in _ALWAYS]
    played = set(of_this_turn(rest))
    leave_out(config, items, [item for item in rest if item not in played])
    leave_to_others(config, items)


@dataclass
class Broker:
    """A running broker, and the things that tests make on it."""

    kafka: EmbeddedKafka
    mode: Mode

    @property
    def servers(self) -> str:
        return self.kafka.bootstrap_servers

    def topic(self, partitions: int = 1, config: dict[str, str] | None = None) -> str:
        name = f"topic-{os.getpid()}-{next(_NUMBERS)}"
        self.kafka.create_topic(name, partitions=partitions, config=config)
        return name

    def producer(self, transactional_id: str | None, **settings) -> TransactionalProducer:
        return TransactionalProducer(
            self.servers, transactional_id, **{"max_block_ms": 20_000, **settings}
        )

    def ready(self, transactional_id: str, **settings) -> TransactionalProducer:
        producer = self.producer(transactional_id, **settings)
        producer.init_transactions()
        return producer


@pytest.fixture(scope="session", params=MODES, ids=lambda mode: mode.name)
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """One broker, in each of the modes."""
    mode: Mode = request.param
    with mode.start() as kafka:
        yield Broker(kafka, mode)


@pytest.fixture
def transactional_id() -> str:
    return f"id-{os.getpid()}-{next(_NUMBERS)}"


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """The URL of a PostgreSQL for SQLAlchemy. Its tables stay for the session's other tests."""
    reason = why_no_postgres()
    if reason is not None:
        pytest.skip(reason)  # it names the package to install
    with postgres() as url:
        yield url


# --- Spark ---------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def kafka() -> Iterator[EmbeddedKafka]:
    """A broker as users have it, for tests of which no mode makes another, and which spare it."""
    with EmbeddedKafka() as kafka:
        yield kafka


@pytest.fixture
def spark(tmp_path_factory):
    """The Spark session that the tests of a process share. If a test stops it, it starts again."""
    from txnproducer.spark.demo import start_spark

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        session = start_spark(tmp_path_factory.mktemp("spark"))
    # PySpark leaves sockets to the garbage collector; that is not ours to judge.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        yield session


@pytest.fixture
def topic(kafka) -> str:
    name = f"spark-{os.getpid()}-{next(_NUMBERS)}"
    kafka.create_topic(name, partitions=PARTITIONS)
    return name


@pytest.fixture
def make_sink(kafka, topic):
    """Return a function that makes a sink, as a new process has it. The end closes them all.

    Its atomicity is "partition", and its batches go by tasks, however small they are, unless
    others are given.
    """
    from txnproducer.spark import ExactlyOnceKafkaSink

    made = []

    def make(**arguments):
        usual = {"topic": topic, "query_id": "query", "driver_rows": 0, "atomicity": "partition"}
        given = {**usual, **arguments}
        made.append(ExactlyOnceKafkaSink(kafka.bootstrap_servers, f"sink-{topic}", **given))
        return made[-1]

    yield make
    for one in made:
        one.close()
