"""The Java client as a peer: compiled once for a run, from the jars the broker runs from.

Owns: where Java and the jars are, and the order to `JavaPeer.java`.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from integration.benchmarks.job import Job
from txnproducer.testing._jars import kafka_jars
from txnproducer.testing._java import find_java

_SOURCE = Path(__file__).with_name("JavaPeer.java")
_NEEDED = ("kafka-clients", "lz4-java", "zstd-jni", "snappy-java", "slf4j-api", "slf4j-simple")
_COMPILER = ("-m", "jdk.compiler/com.sun.tools.javac.Main")
_LIMIT_S = 60


@dataclass(frozen=True)
class JavaPeer:
    """A compiled peer.

    Attributes:
        java: the command.
        classes: its class path.
    """

    java: str
    classes: str

    def command(self, job: Job) -> list[str]:
        """Return a function that runs a measurement."""
        settings = [f"{name}={value}" for name, value in job.settings.items()]
        quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"
        command = [self.java, quiet, "-cp", self.classes, "JavaPeer"]
        command += [job.servers, job.topic, job.transactional_id, job.pool]
        command += [str(number) for number in (job.value_bytes, job.records, job.partitions)]
        command += [str(number) for number in (job.least, job.most)]
        return [*command, str(job.seconds), str(job.warm_seconds), *settings]


def compile_java_peer(kafka_version: str, folder: Path) -> JavaPeer | str:
    """Compile the peer into a folder, or return why that cannot be done."""
    java = str(find_java(kafka_version).command)
    jars = [str(jar) for jar in kafka_jars(kafka_version, print) if jar.name.startswith(_NEEDED)]
    classes = os.pathsep.join([str(folder), *jars])
    command = [java, *_COMPILER, "-d", str(folder), "-cp", classes, str(_SOURCE)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
    if done.returncode == 0:
        return JavaPeer(java, classes)
    if "jdk.compiler" in done.stderr + done.stdout:
        return f"{java} has no compiler: a JRE, where a JDK is needed"
    return f"JavaPeer.java does not compile: {done.stderr.strip()[:300]}"
