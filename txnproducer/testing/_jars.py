"""Apache Kafka's jars: fetched once per user, checked, and put in order for the class path.

Owns the jar cache: one folder in the form of a Maven repository, shared by all versions, and for
each version the list of its jars. Knows nothing of brokers; only `_maven` knows Maven.

Rules:
* A list names each jar with its size and SHA-256. For the tested versions the list ships with the
  package: no dependency graph is resolved, and a jar that differs is refused. For other versions
  the list is made on first use.
* The list in the cache is written last and atomically. Without it, the files that a killed run
  left there are checked again before they are used.
* One process fetches at a time; the others wait for it, bounded.

To renew a list that ships: remove it, run a broker of that version, and copy the cache's list.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ._errors import JarsUnavailableError
from ._locks import try_lock
from ._maven import REPOSITORY_VARIABLE, MavenRepository
from ._paths import CACHE_VARIABLE, cache_dir
from ._polling import wait_until

Report = Callable[[str], None]

KAFKA_HOME_VARIABLE = "TXNPRODUCER_KAFKA_HOME"

# Kafka's jars contain the logging interface but not always an implementation. This one works with
# every version, needs no file of its own, and writes to standard error, which is the broker's log.
_LOGGING = "org.slf4j:slf4j-simple:1.7.36"
# With two implementations on the class path SLF4J takes one of them, and warns.
_OTHER_LOGGING = ("org.slf4j:slf4j-reload4j:",)
_FETCH_TIMEOUT = 900.0
_PARALLEL_DOWNLOADS = 4
_REPORT_EVERY = 10
_SHIPPED = Path(__file__).parent


class Repository(Protocol):
    """The part of a Maven repository that fetching needs."""

    def resolve(self, endpoint: str) -> list[str]:
        """Return the coordinates of all jars that are needed at run time."""
        ...

    def download(self, coordinate: str) -> None:
        """Fetch one jar into the folder, unless it is there."""
        ...


@dataclass(frozen=True)
class Jar:
    """One line of a list."""

    coordinate: str
    size: int
    sha256: str


def endpoint(version: str) -> str:
    """Return the Maven coordinates of a broker of this version and its tools."""
    kafka = "org.apache.kafka"
    # Kafka 4.0 and newer are built for Scala 2.13 alone. `kafka-tools` has DumpLogSegments since
    # then (KAFKA-14576).
    return f"{_LOGGING}+{kafka}:kafka_2.13:{version}+{kafka}:kafka-tools:{version}"


def kafka_jars(
    version: str,
    report: Report,
    timeout: float = _FETCH_TIMEOUT,
    open_repository: Callable[[Path], Repository] = MavenRepository,
) -> list[Path]:
    """Return the jars of a Kafka version, fetching them on first use.

    Args:
        version: such as "4.3.1".
        report: called with lines for people during the work; not called if all is cached.
        timeout: seconds for all of it, waiting for another process included.
        open_repository: opens a Maven repository that fetches into a folder.

    Returns:
        Paths for the class path.

    Raises:
        JarsUnavailableError: the jars are not cached and could not be fetched.
    """
    unpacked = os.environ.get(KAFKA_HOME_VARIABLE)
    if unpacked:
        # Before the cache: nothing is fetched for somebody who has a Kafka, and its jars are used
        # as they are.
        return _jars_of_distribution(Path(unpacked))
    root = cache_dir() / "kafka"
    cached = _cached(root, version)
    if cached:
        return cached
    deadline = time.monotonic() + timeout
    with _only_process(root, deadline, report):
        # Another process may have fetched them while this one waited.
        cached = _cached(root, version)
        if cached:
            return cached
        try:
            # First: it finds out whether the package is there that fetches.
            repository = open_repository(root / "repository")
            report(f"Fetching Apache Kafka {version} into {root} (about 60 MB, once)")
            jars = _fetch(root, version, repository, deadline, report)
        except JarsUnavailableError:
            raise
        except Exception as error:
            # Any error of the network, a server or jgo.
            raise JarsUnavailableError(_explain(version, error)) from error
        report(f"Apache Kafka {version} is in the cache")
        return jars


def _jars_of_distribution(home: Path) -> list[Path]:
    jars = sorted((home / "libs").glob("*.jar"))
    if not jars:
        raise JarsUnavailableError(
            f"{KAFKA_HOME_VARIABLE} is {home}, but there are no jars in {home / 'libs'}. "
            "It should name an unpacked Kafka distribution."
        )
    return jars


# --- lists ---------------------------------------------------------------------------------------


def _list_name(version: str) -> str:
    return f"kafka-{version}.lock"


def _jar_path(root: Path, coordinate: str) -> Path:
    group, artifact, version = coordinate.split(":")
    folder = root / "repository" / group.replace(".", "/") / artifact / version
    return folder / f"{artifact}-{version}.jar"


def parse_list(text: str) -> list[Jar]:
    """Read a list: lines of "coordinate size sha256", and comments after "#".

    Raises:
        ValueError: a line is not of this form.
    """
    jars = []
    for line in text.splitlines():
        if line and not line.startswith("#"):
            coordinate, size, sha256 = line.split()
            jars.append(Jar(coordinate, int(size), sha256))
    return jars


def _format_list(version: str, jars: list[Jar]) -> str:
    head = f"# The jars of {endpoint(version)}: coordinate, size, SHA-256.\n"
    return head + "".join(f"{each.coordinate} {each.size} {each.sha256}\n" for each in jars)


def _cached(root: Path, version: str) -> list[Path] | None:
    try:
        jars = parse_list((root / _list_name(version)).read_text())
        paths = [_jar_path(root, each.coordinate) for each in jars]
        # Sizes are enough here: the hashes were compared before the list was written.
        whole = all(path.stat().st_size == jar.size for path, jar in zip(paths, jars, strict=True))
    except (OSError, ValueError):
        # Absent or damaged: missing jars are fetched again, which makes a new list.
        return None
    return paths if whole and paths else None


# --- fetching ------------------------------------------------------------------------------------


@contextlib.contextmanager
def _only_process(root: Path, deadline: float, report: Report) -> Iterator[None]:
    try:
        root.mkdir(parents=True, exist_ok=True)
        # Never removed: another process may just have opened it, and would lock a file without a
        # name.
        lock = (root / "fetch.lock").open("a")
    except OSError as error:
        raise JarsUnavailableError(
            f"The cache for Kafka's jars, {root}, cannot be written: {error}. "
            f"Point {CACHE_VARIABLE} at a folder that can."
        ) from error
    # Closing the file releases the lock, on every way out.
    with lock:
        if not try_lock(lock.fileno()):
            report("Waiting for another process that is fetching Kafka's jars")
            left = deadline - time.monotonic()
            if not wait_until(lambda: try_lock(lock.fileno()), left, 0.2):
                raise JarsUnavailableError(
                    f"Another process is fetching Kafka's jars for too long; it holds {lock.name}."
                )
        yield


def _fetch(
    root: Path, version: str, repository: Repository, deadline: float, report: Report
) -> list[Path]:
    shipped = _SHIPPED / _list_name(version)
    if shipped.exists():
        known = {each.coordinate: each for each in parse_list(shipped.read_text())}
        coordinates = list(known)
    else:
        known = {}
        report("  finding out which jars it needs")
        coordinates = [
            each
            for each in repository.resolve(endpoint(version))
            if not each.startswith(_OTHER_LOGGING)
        ]
    jars = _download(root, coordinates, known, repository, deadline, report)
    target = root / _list_name(version)
    # Renamed when it is whole: a killed run leaves no half of a list, and the list is the proof.
    draft = target.with_suffix(f".{os.getpid()}.tmp")
    draft.write_text(_format_list(version, jars))
    draft.replace(target)
    return [_jar_path(root, each.coordinate) for each in jars]


def _download(
    root: Path,
    coordinates: list[str],
    known: dict[str, Jar],
    repository: Repository,
    deadline: float,
    report: Report,
) -> list[Jar]:
    stop = threading.Event()

    def fetch(coordinate: str) -> Jar | None:
        if stop.is_set():
            return None
        return _fetch_one(_jar_path(root, coordinate), coordinate, known, repository)

    pool = ThreadPoolExecutor(_PARALLEL_DOWNLOADS, thread_name_prefix="kafka-jars")
    try:
        waiting = [pool.submit(fetch, coordinate) for coordinate in coordinates]
        left = max(0.0, deadline - time.monotonic())
        for count, done in enumerate(as_completed(waiting, timeout=left), start=1):
            # Raises the error of the first download that fails, and those that have not begun are
            # left out.
            done.result()
            if count % _REPORT_EVERY == 0 or count == len(waiting):
                report(f"  {count} of {len(waiting)} jars")
        # Not as they have arrived: the order of the list is that of the class path.
        return [jar for each in waiting if (jar := each.result())]
    finally:
        # After an error or Ctrl-C the downloads under way are finished, and no further one begins.
        stop.set()
        pool.shutdown(wait=True, cancel_futures=True)


def _fetch_one(path: Path, coordinate: str, known: dict[str, Jar], repository: Repository) -> Jar:
    expected = known.get(coordinate)
    if path.exists() and not _is_sound(path, coordinate, expected):
        # Left by a run that was killed during the download.
        path.unlink()
    repository.download(coordinate)
    if not _is_sound(path, coordinate, expected):
        path.unlink(missing_ok=True)
        raise JarsUnavailableError(
            f"{path.name} did not arrive as it should be (size or SHA-256 differ). Try again; if "
            "it stays so, a proxy or mirror between you and Maven Central changes files."
        )
    return _describe(path, coordinate)


def _is_sound(path: Path, coordinate: str, expected: Jar | None) -> bool:
    if not path.exists():
        return False
    if expected is None:
        # A jar's directory is at its end, so a truncated jar does not open.
        return zipfile.is_zipfile(path)
    return _describe(path, coordinate) == expected


def _describe(path: Path, coordinate: str) -> Jar:
    content = path.read_bytes()
    return Jar(coordinate, len(content), hashlib.sha256(content).hexdigest())


def _explain(version: str, error: Exception) -> str:
    cause = str(error) or type(error).__name__
    if len(cause) > 300:
        cause = cause[:300] + " ..."
    return (
        f"Apache Kafka {version} could not be fetched: {cause}\n"
        "The first use needs the network (Maven Central). Ways out: try again with a network; "
        f"name a Maven mirror in {REPOSITORY_VARIABLE}; point {KAFKA_HOME_VARIABLE} at an "
        "unpacked Kafka distribution; or point TXNPRODUCER_BOOTSTRAP at a Kafka that runs already."
    )
