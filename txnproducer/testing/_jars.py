"""Fetch Apache Kafka's jars once per user, and say where they are.

Owns the jar cache: one Maven repository shared by all versions, and per version a list of the
jars with their SHA-256. It knows nothing of brokers.

Rules:
* `jgo` is imported only when something must be fetched, and only its resolver and downloader are
  used: its environment builder would fetch a JDK of its own to sort jars into modules.
* A file counts only when its name is in the finished list, which is written last and atomically;
  whatever a killed run leaves behind is checked again before it is used.
* One process fetches at a time; the others wait for it, bounded.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from ._errors import JarsUnavailableError
from ._paths import cache_dir

Report = Callable[[str], None]

KAFKA_HOME_VARIABLE = "TXNPRODUCER_KAFKA_HOME"
REPOSITORY_VARIABLE = "TXNPRODUCER_MAVEN_REPOSITORY"

# Kafka's jars bring the logging interface but no implementation; this one needs no file of its
# own, works with every version and writes to the standard error, which is the broker's log.
_LOGGING = "org.slf4j:slf4j-simple:1.7.36"
_FETCH_TIMEOUT = 900.0
_HTTP_TIMEOUT = 20
_PARALLEL_DOWNLOADS = 4


def endpoint(version: str) -> str:
    """Return the Maven coordinates of a broker of this version and its tools."""
    kafka = "org.apache.kafka"
    return f"{kafka}:kafka_2.13:{version}+{kafka}:kafka-tools:{version}+{_LOGGING}"


def kafka_jars(version: str, report: Report, timeout: float = _FETCH_TIMEOUT) -> list[Path]:
    """Return the jars of a Kafka version, fetching them on first use.

    Args:
        version: Such as "4.3.1".
        report: Called with a line for people as the work goes on; silent when all is cached.
        timeout: Seconds for all of it, waiting for another process included.

    Returns:
        Paths for the class path.

    Raises:
        JarsUnavailableError: They are not there and could not be fetched.
    """
    unpacked = os.environ.get(KAFKA_HOME_VARIABLE)
    if unpacked:
        return _jars_of_distribution(Path(unpacked))
    root = cache_dir() / "kafka"
    cached = _read_list(root, version)
    if cached:
        return cached
    deadline = time.monotonic() + timeout
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise JarsUnavailableError(
            f"The cache for Kafka's jars, {root}, cannot be written: {error}. "
            "Point TXNPRODUCER_CACHE at a folder that can."
        ) from error
    with _only_process(root / "fetch.lock", deadline, report):
        # The one we may have waited for has fetched them.
        cached = _read_list(root, version)
        return cached or _fetch(root, version, deadline, report)


def _jars_of_distribution(home: Path) -> list[Path]:
    jars = sorted((home / "libs").glob("*.jar"))
    if not jars:
        raise JarsUnavailableError(
            f"{KAFKA_HOME_VARIABLE} is {home}, but there are no jars in {home / 'libs'}. "
            "It should name an unpacked Kafka distribution."
        )
    return jars


def _list_path(root: Path, version: str) -> Path:
    return root / f"kafka-{version}.lock.json"


def _read_list(root: Path, version: str) -> list[Path] | None:
    try:
        listed = json.loads(_list_path(root, version).read_text())
        jars = [(root / entry["path"], int(entry["size"])) for entry in listed["jars"]]
        whole = listed["endpoint"] == endpoint(version) and all(
            path.stat().st_size == size for path, size in jars
        )
    except (OSError, ValueError, KeyError, TypeError):
        # Absent, torn or of an older form: fetched anew, which leaves a good one.
        return None
    return [path for path, _ in jars] if whole and jars else None


def _write_list(root: Path, version: str, artifacts: list[tuple[str, Path]]) -> list[Path]:
    entries = [
        {
            "coordinate": coordinate,
            "path": str(path.relative_to(root)),
            "size": path.stat().st_size,
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        }
        for coordinate, path in artifacts
    ]
    target = _list_path(root, version)
    draft = target.with_suffix(f".{os.getpid()}.tmp")
    draft.write_text(json.dumps({"endpoint": endpoint(version), "jars": entries}, indent=1))
    draft.replace(target)
    return [path for _, path in artifacts]


@contextlib.contextmanager
def _only_process(path: Path, deadline: float, report: Report) -> Iterator[None]:
    with path.open("a") as lock:
        told = False
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                pass
            if time.monotonic() >= deadline:
                raise JarsUnavailableError(
                    f"Another process has been fetching Kafka's jars for too long; it holds {path}."
                )
            if not told:
                report("Waiting for another process that is fetching Kafka's jars")
                told = True
            time.sleep(0.2)
        # Closing the file lets go of the lock, on every way out.
        yield


def _fetch(root: Path, version: str, deadline: float, report: Report) -> list[Path]:
    report(f"Fetching Apache Kafka {version} into {root} (about 60 MB, once)")
    try:
        artifacts = _resolve(root, version)
        _download(artifacts, deadline, report)
    except JarsUnavailableError:
        raise
    except Exception as error:
        # Whatever the network, a server and jgo can come up with.
        raise JarsUnavailableError(_explain(version, error)) from error
    listed = [(str(each.component), Path(each.cached_path)) for each in artifacts]
    report(f"Apache Kafka {version} is in the cache: {len(listed)} jars")
    return _write_list(root, version, listed)


def _resolve(root: Path, version: str) -> list[Any]:
    try:
        from jgo.config import GlobalSettings
        from jgo.constants import MAVEN_CENTRAL_URL
        from jgo.maven import MavenContext, PythonResolver
        from jgo.parse import Endpoint
    except ImportError as error:
        raise JarsUnavailableError(
            'Fetching Kafka needs jgo: run `pip install "txnproducer[testing]"`.'
        ) from error
    mirror = os.environ.get(REPOSITORY_VARIABLE)
    if mirror:
        repositories = {"mirror": mirror.rstrip("/")}
    else:
        # A company's repositories stand in jgo's own settings, if anywhere.
        repositories = {"central": MAVEN_CENTRAL_URL, **GlobalSettings.load().repositories}
    context = MavenContext(
        resolver=PythonResolver(),
        repo_cache=root / "repository",
        local_repos=[],
        remote_repos=repositories,
        timeout=_HTTP_TIMEOUT,
    )
    wanted = [
        context.create_dependency(dataclasses.replace(coordinate, scope="compile"))
        for coordinate in Endpoint.parse(endpoint(version)).coordinates
    ]
    inputs, transitive = context.resolver.resolve(wanted)
    needed = [each for each in transitive if each.scope in ("compile", "runtime")]
    return [each.artifact for each in [*inputs, *needed]]


def _download(artifacts: list[Any], deadline: float, report: Report) -> None:
    stop = threading.Event()

    def fetch(artifact: Any) -> None:
        if stop.is_set():
            return
        path = Path(artifact.cached_path)
        if path.exists() and not zipfile.is_zipfile(path):
            # The rest of a run that was killed half-way.
            path.unlink()
        artifact.resolve()
        if not zipfile.is_zipfile(path):
            path.unlink(missing_ok=True)
            raise JarsUnavailableError(f"{artifact.filename} did not arrive whole; try again.")

    pool = ThreadPoolExecutor(_PARALLEL_DOWNLOADS, thread_name_prefix="kafka-jars")
    try:
        waiting = [pool.submit(fetch, artifact) for artifact in artifacts]
        left = max(0.0, deadline - time.monotonic())
        for count, done in enumerate(as_completed(waiting, timeout=left), start=1):
            done.result()
            if count % 10 == 0 or count == len(waiting):
                report(f"  {count} of {len(waiting)} jars")
    finally:
        stop.set()
        pool.shutdown(wait=True, cancel_futures=True)


def _explain(version: str, error: Exception) -> str:
    cause = str(error) or type(error).__name__
    if len(cause) > 300:
        cause = cause[:300] + " ..."
    return (
        f"Apache Kafka {version} could not be fetched: {cause}\n"
        "The first use needs the network (Maven Central). Ways out: try again with a network; "
        f"name a Maven mirror in {REPOSITORY_VARIABLE}; point {KAFKA_HOME_VARIABLE} at an unpacked "
        "Kafka distribution; or point TXNPRODUCER_BOOTSTRAP at a Kafka that runs already."
    )
