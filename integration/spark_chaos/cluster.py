"""A standalone Spark on this machine: a master and workers as processes of their own.

Why it exists: `local[2]` has no executor that could be lost, and no shuffle that a task could
fail to fetch. Owns: the daemons, their folders, finding executors and shuffle files. Must not
know: drivers, queries, Kafka.

Rules:
* Everything listens on 127.0.0.1, and ends with its owner, also when that is killed.
* A worker has one core, so that an executor has one: who runs where is then known.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Self

from integration.waiting import wait_until
from txnproducer.testing._config import HOST
from txnproducer.testing._java import find_java
from txnproducer.testing._ports import PortClaims, is_port_free
from txnproducer.testing._process import ManagedProcess, Watcher

ROOT = Path(__file__).resolve().parents[2]
# Processes are killed and started all the time: the first compiler and the simplest collector.
QUICK_JAVA = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
_START_S = 120.0
# One address by two names: Spark starts no second attempt of a task on the host of the first.
_HOSTS = (HOST, "localhost")
_QUIET = """\
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss.SSS} %p %c{1}: %m%n%ex
"""
# Spark's own scripts open these packages on Java 17; the daemons need no more.
_OPEN = ("java.lang", "java.lang.invoke", "java.net", "java.nio", "java.util", "sun.nio.ch")


class SparkCluster:
    """A master and workers, as a context manager.

    Args:
        workers: how many, each with one core.
    """

    def __init__(self, workers: int = 2) -> None:
        self.workers = workers
        self.folder = Path()
        self._watcher: Watcher | None = None
        self._master: ManagedProcess | None = None
        self._workers: list[ManagedProcess] = []
        self._claims = PortClaims(HOST)
        self._port = 0

    def __enter__(self) -> Self:
        self._watcher = Watcher()
        self.folder = Path(tempfile.mkdtemp(prefix="txnproducer-spark-"))
        self._watcher.remove_folder(self.folder)
        try:
            self._start()
        except BaseException as error:
            self._end(keeps_logs=True)
            error.add_note(f"Spark's logs were kept in {self.folder}")
            raise
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end(keeps_logs=isinstance(exc, Exception))
        if isinstance(exc, Exception):
            exc.add_note(f"Spark's logs were kept in {self.folder}")

    def _end(self, *, keeps_logs: bool) -> None:
        # Executors go with their worker's death by themselves, but in their own time.
        executors = self.executors()
        for process in (*self._workers, self._master):
            if process is not None:
                process.kill()
        for pid in executors:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._workers.clear()
        self._claims.close()
        if self._watcher is not None:
            if not keeps_logs:
                shutil.rmtree(self.folder, ignore_errors=True)
            self._watcher.close()

    def _start(self) -> None:
        self.log4j.write_text(_QUIET, "utf-8")
        self._port, ui_port = self._claims.choose(2)
        name = "org.apache.spark.deploy.master.Master"
        at = ["--host", HOST, "--port", str(self._port), "--webui-port", str(ui_port)]
        self._master = self._launch("master", name, at)
        wait_until(lambda: not is_port_free(self._port, HOST), "no Spark master", _START_S)
        for number in range(self.workers):
            name = "org.apache.spark.deploy.worker.Worker"
            place = self.folder / f"worker-{number}"
            at = [
                "--host",
                _HOSTS[number % len(_HOSTS)],
                "--cores",
                "1",
                "--memory",
                "1g",
                "--webui-port",
                "0",
            ]
            folders = ["--work-dir", str(place)]
            local = {"SPARK_LOCAL_DIRS": str(place / "local")}
            worker = self._launch(place.name, name, [*at, *folders, self.url], local)
            self._workers.append(worker)

    def _launch(
        self, name: str, java_class: str, arguments: Sequence[str], more: Mapping[str, str] = {}
    ) -> ManagedProcess:
        spec = find_spec("pyspark")
        if spec is None or spec.origin is None:
            raise RuntimeError("PySpark is not installed: the extra `spark` has it")
        home = Path(spec.origin).parent
        environment = {
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": HOST,
            # A worker that starts an executor would look for this where Spark is built.
            "SPARK_SCALA_VERSION": _scala_version(home),
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": python_path(),
            **more,
        }
        command = [
            "env",
            *(f"{key}={value}" for key, value in environment.items()),
            str(find_java("4.3.1").command),
            *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPEN),
            "-Xmx256m",
            *QUICK_JAVA,
            f"-Dlog4j2.configurationFile=file:{self.log4j}",
            "-Dspark.deploy.maxExecutorRetries=-1",  # they are killed again and again
            "-Dspark.worker.cleanup.enabled=false",
            "-cp",
            str(home / "jars" / "*"),
            java_class,
            *arguments,
        ]
        if self._watcher is None:
            raise RuntimeError("this cluster is not running")
        return ManagedProcess(command, self.folder / f"{name}.log", self._watcher)

    # --- what faults need -----------------------------------------------------------------------

    @property
    def url(self) -> str:
        """The master's address."""
        return f"spark://{HOST}:{self._port}"

    @property
    def log4j(self) -> Path:
        """The logging of every Java process."""
        return self.folder / "log4j2.properties"

    @property
    def watcher(self) -> Watcher:
        """Ends processes when we are gone."""
        if self._watcher is None:
            raise RuntimeError("this cluster is not running")
        return self._watcher

    def executors(self) -> list[int]:
        """Return the process ids of the executors that run."""
        workers = {worker.pid for worker in self._workers}
        return [pid for pid, parent in _parents().items() if parent in workers]

    def delete_shuffle_files(self, executor: int) -> int:
        """Delete an executor's shuffle files, and return how many there were."""
        # Its folder is named in no place that a neighbour could look at but its open files.
        worker = [worker.pid for worker in self._workers].index(_parents()[executor])
        found = list((self.folder / f"worker-{worker}" / "local").rglob("shuffle_*"))
        for path in found:
            path.unlink(missing_ok=True)
        return len(found)


def kill_with_children(pid: int) -> None:
    """Kill a process (SIGKILL) and all that descends from it, as the end of its machine would."""
    parents = _parents()
    doomed, found = [pid], [pid]
    while found:
        found = [child for child, parent in parents.items() if parent in found]
        doomed += found
    for each in doomed:
        with contextlib.suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)


def children_of(pid: int) -> list[int]:
    """Return the processes that a process has started."""
    return [child for child, parent in _parents().items() if parent == pid]


def parent_of(pid: int) -> int:
    """Return a process's parent."""
    return _parents()[pid]


def _parents() -> dict[int, int]:
    parents = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with contextlib.suppress(OSError):  # ended meanwhile
                # The command's name stands in parentheses and may hold anything.
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                parents[int(folder.name)] = int(fields[1])
    return parents


def _scala_version(home: Path) -> str:
    (jar,) = (home / "jars").glob("spark-core_*.jar")
    return jar.name.removeprefix("spark-core_").partition("-")[0]


def python_path() -> str:
    """Return the path by which every Python process of the cluster finds this checkout."""
    return os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
