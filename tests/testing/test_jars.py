"""Kafka's jars: fetched once, checked, and a clear word when they cannot be had."""

from __future__ import annotations

import fcntl
import hashlib
import sys
import zipfile
from pathlib import Path

import pytest

from txnproducer.testing import JarsUnavailableError, _jars, _paths


class FakeRepository:
    """A Maven repository whose jars are made here."""

    def __init__(self, folder: Path, error: Exception | None = None) -> None:
        self.folder = folder
        self.error = error
        self.downloads: list[str] = []
        self.content = "a class"

    def __call__(self, folder: Path) -> FakeRepository:
        assert folder == self.folder
        return self

    def resolve(self, endpoint: str) -> list[str]:
        if self.error:
            raise self.error
        return ["org.apache.kafka:kafka_2.13:9.9.9", "org.slf4j:slf4j-reload4j:1.7.36", "a.b:c:1"]

    def download(self, coordinate: str) -> None:
        if self.error:
            raise self.error
        path = _jars._jar_path(self.folder.parent, coordinate)
        if path.exists():
            return
        self.downloads.append(coordinate)
        path.parent.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(path, "w") as jar:
            jar.writestr(zipfile.ZipInfo("Some.class"), self.content)


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("TXNPRODUCER_CACHE", str(tmp_path))
    monkeypatch.delenv("TXNPRODUCER_KAFKA_HOME", raising=False)
    return tmp_path / "kafka"


@pytest.fixture
def repository(root: Path) -> FakeRepository:
    return FakeRepository(root / "repository")


def fetch(repository: FakeRepository, version: str = "9.9.9", timeout: float = 60.0) -> list[Path]:
    return _jars.kafka_jars(version, repository_says.append, timeout, repository)


repository_says: list[str] = []


@pytest.fixture(autouse=True)
def fresh_report() -> None:
    repository_says.clear()


def test_the_first_use_fetches_and_says_so_and_the_second_does_neither(repository):
    first = fetch(repository)
    assert [path.name for path in first] == ["kafka_2.13-9.9.9.jar", "c-1.jar"]
    assert "Fetching Apache Kafka 9.9.9" in repository_says[0]
    repository_says.clear()
    repository.error = AssertionError("the repository was asked again")
    assert fetch(repository) == first
    assert repository_says == []


def test_another_logging_implementation_is_left_out_of_the_class_path(repository):
    assert not any("reload4j" in path.name for path in fetch(repository))


def test_without_a_network_the_message_names_the_ways_out(repository):
    repository.error = ConnectionError("Name or service not known")
    with pytest.raises(JarsUnavailableError) as refused:
        fetch(repository)
    message = str(refused.value)
    assert "Name or service not known" in message
    for way_out in (
        "TXNPRODUCER_MAVEN_REPOSITORY",
        "TXNPRODUCER_KAFKA_HOME",
        "TXNPRODUCER_BOOTSTRAP",
    ):
        assert way_out in message


def test_a_jar_that_was_cut_off_by_a_killed_run_is_fetched_again(root, repository):
    torn = _jars._jar_path(root, "a.b:c:1")
    torn.parent.mkdir(parents=True)
    torn.write_bytes(b"PK\x03\x04 and no more")
    assert zipfile.is_zipfile(fetch(repository)[1])
    assert "a.b:c:1" in repository.downloads


def test_a_jar_that_shrank_after_it_was_fetched_is_fetched_again(repository):
    jar = fetch(repository)[1]
    jar.write_bytes(jar.read_bytes()[:-5])
    assert zipfile.is_zipfile(fetch(repository)[1])


def test_a_damaged_list_in_the_cache_is_made_again(root, repository):
    first = fetch(repository)
    (root / "kafka-9.9.9.lock").write_text("not a list\n")
    assert fetch(repository) == first


def shipped_list(monkeypatch: pytest.MonkeyPatch, folder: Path, sha256: str, size: int) -> None:
    (folder / "kafka-9.9.9.lock").write_text(f"# head\na.b:c:1 {size} {sha256}\n")
    monkeypatch.setattr(_jars, "_SHIPPED", folder)


def test_a_list_that_ships_with_the_package_spares_the_dependency_graph(
    monkeypatch, tmp_path, root, repository
):
    repository.download("a.b:c:1")
    content = _jars._jar_path(root, "a.b:c:1").read_bytes()
    shipped_list(monkeypatch, tmp_path, hashlib.sha256(content).hexdigest(), len(content))
    monkeypatch.setattr(repository, "resolve", lambda endpoint: pytest.fail("asked for the graph"))
    assert [path.name for path in fetch(repository)] == ["c-1.jar"]


def test_a_jar_that_differs_from_the_list_that_ships_is_refused_and_removed(
    monkeypatch, tmp_path, root, repository
):
    shipped_list(monkeypatch, tmp_path, "0" * 64, 123)
    with pytest.raises(JarsUnavailableError, match="SHA-256"):
        fetch(repository)
    assert not _jars._jar_path(root, "a.b:c:1").exists()


@pytest.mark.parametrize("version", ["4.3.1", "3.9.1"])
def test_the_lists_that_ship_name_the_broker_its_tools_and_one_logging_implementation(version):
    jars = _jars.parse_list((_jars._SHIPPED / f"kafka-{version}.lock").read_text())
    names = [each.coordinate.split(":")[1] for each in jars]
    assert {"kafka_2.13", "kafka-tools", "kafka-clients", "slf4j-simple"} <= set(names)
    assert "slf4j-reload4j" not in names
    assert all(len(each.sha256) == 64 and each.size > 0 for each in jars)


def test_one_process_fetches_and_another_waits_no_longer_than_it_may(root, repository):
    root.mkdir(parents=True)
    with (root / "fetch.lock").open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(JarsUnavailableError, match="Another process"):
            fetch(repository, timeout=0.0)
    assert repository.downloads == []


def test_a_cache_that_cannot_be_written_is_named_with_the_way_out(
    monkeypatch, tmp_path, repository
):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TXNPRODUCER_CACHE", str(tmp_path / "file"))
    with pytest.raises(JarsUnavailableError, match="TXNPRODUCER_CACHE"):
        fetch(repository)


def test_an_unpacked_distribution_is_used_as_it_is(monkeypatch, tmp_path, repository):
    (tmp_path / "dist" / "libs").mkdir(parents=True)
    jar = tmp_path / "dist" / "libs" / "kafka_2.13-4.3.1.jar"
    jar.write_bytes(b"")
    monkeypatch.setenv("TXNPRODUCER_KAFKA_HOME", str(tmp_path / "dist"))
    assert fetch(repository) == [jar]


def test_a_distribution_without_jars_is_refused(monkeypatch, tmp_path, repository):
    monkeypatch.setenv("TXNPRODUCER_KAFKA_HOME", str(tmp_path))
    with pytest.raises(JarsUnavailableError, match="TXNPRODUCER_KAFKA_HOME"):
        fetch(repository)


def test_the_cache_is_under_the_home_folder_or_xdg_cache_home(monkeypatch, tmp_path):
    monkeypatch.delenv("TXNPRODUCER_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert _paths.cache_dir() == tmp_path / ".cache" / "txnproducer"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert _paths.cache_dir() == tmp_path / "xdg" / "txnproducer"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/means/ignored")
    assert _paths.cache_dir() == tmp_path / ".cache" / "txnproducer"


def test_without_home_the_password_database_names_the_folder(monkeypatch):
    monkeypatch.delenv("HOME", raising=False)
    assert _paths.home_dir().is_absolute()
    monkeypatch.setenv("HOME", "")
    assert _paths.home_dir().is_absolute()


def test_a_missing_package_is_named_before_anything_is_said_to_be_fetched(monkeypatch, root):
    monkeypatch.setitem(sys.modules, "jgo.config", None)
    with pytest.raises(JarsUnavailableError, match="needs jgo"):
        _jars.kafka_jars("9.9.9", repository_says.append)
    assert repository_says == []
