"""Pytest fixtures: a real Kafka for a user's tests, and one in memory.

Pytest loads them in every run on a machine that has this package. So the module imports only
pytest until a fixture is used, and adds only fixtures.

    def test_my_writer(kafka_cluster, kafka_topic):
        write(kafka_cluster.bootstrap_servers, kafka_topic)

Override `kafka_cluster_options` in a `conftest.py` for another cluster:

    @pytest.fixture(scope="session")
    def kafka_cluster_options():
        return {"nodes": 3, "settings": {"auto.create.topics.enable": False}}
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .memory import InMemoryKafka
    from .providers import KafkaCluster


@pytest.fixture(scope="session")
def kafka_cluster_options() -> dict[str, Any]:
    """Arguments of `provide_kafka` for `kafka_cluster`. Override it to change them."""
    return {}


# One for the session: a broker takes seconds to start.
@pytest.fixture(scope="session")
def kafka_cluster(
    request: pytest.FixtureRequest, kafka_cluster_options: dict[str, Any]
) -> Iterator[KafkaCluster]:
    """A real Kafka for the whole test session.

    It is the one named in `TXNPRODUCER_BOOTSTRAP`, or one started here, without Docker if there is
    a Java. If there is none, its tests fail, and one line names the way out.
    """
    # Imported here, since pytest loads this module in every run, also in those without Kafka.
    from .providers import provide_kafka

    capture = request.config.pluginmanager.getplugin("capturemanager")
    terminal = request.config.pluginmanager.getplugin("terminalreporter")

    def report(line: str) -> None:
        # The first download takes a while. Without these lines it would look like a hang.
        if terminal is not None and capture is not None:
            with capture.global_and_fixture_disabled():
                terminal.write_line(line)

    options = {"report": report, **kafka_cluster_options}
    provider = provide_kafka(**options)
    try:
        cluster = provider.__enter__()
    except Exception as error:  # noqa: BLE001 - any error is shown by its own text
        # The notes name the folder of the logs; the error's own text does not.
        notes = "\n".join(getattr(error, "__notes__", []))
        # Without a trace, all of which is ours: the text names the way out.
        pytest.fail(f"No Kafka for the tests: {error}\n{notes}".rstrip(), pytrace=False)
    yield cluster
    # pytest does not throw the error of a test into a fixture, so there is none to pass on.
    provider.__exit__(None, None, None)


@pytest.fixture
def kafka_memory() -> Iterator[InMemoryKafka]:
    """A modelled Kafka in this process, for one test: no JVM, no port, milliseconds.

    It has one broker and no topics: `create_topic`. For more, make an `InMemoryKafka`.
    """
    from .memory import InMemoryKafka

    with InMemoryKafka() as kafka:
        yield kafka


@pytest.fixture
def kafka_topic(kafka_cluster: KafkaCluster) -> str:
    """The name of a new, empty topic with one partition."""
    # A new name for each test, since the cluster is shared by the whole session, or with others.
    name = f"test-{uuid.uuid4().hex[:12]}"
    kafka_cluster.create_topic(name)
    return name
