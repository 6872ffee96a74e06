"""The Java client as a writer: `ChaosDriver.java`, compiled once for a campaign.

Owns: the command. Must not know: workloads.
"""

from __future__ import annotations

import os
import subprocess
from functools import cache
from pathlib import Path

from integration.chaos.job import Job
from integration.chaos.writers import Command
from txnproducer.testing._jars import kafka_jars
from txnproducer.testing._java import find_java
from txnproducer.testing.embedded import DEFAULT_VERSION

_SOURCE = Path(__file__).with_name("ChaosDriver.java")
_NEEDED = ("kafka-clients", "lz4-java", "zstd-jni", "snappy-java", "slf4j-api", "slf4j-simple")
_JVM = ("-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_QUIET = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"


@cache
def java_command(folder: Path) -> Command:
    """Compile the driver into a folder, and return the command of a writer."""
    java = str(find_java(DEFAULT_VERSION).command)
    jars = [str(jar) for jar in kafka_jars(DEFAULT_VERSION, print) if jar.name.startswith(_NEEDED)]
    classes = folder / "classes"
    classes.mkdir(parents=True, exist_ok=True)
    path = os.pathsep.join([str(classes), *jars])
    compiler = ("-m", "jdk.compiler/com.sun.tools.javac.Main")
    subprocess.run([java, *compiler, "-d", str(classes), "-cp", path, str(_SOURCE)], check=True)

    def command(job: Job) -> list[str]:
        return [
            *(java, *_JVM, _QUIET, "-cp", path, "ChaosDriver"),
            *(job.servers, job.transactional_id, job.writer, job.workload),
            *(",".join(job.topics), str(job.partitions), str(job.until), job.history),
            *(job.source, job.group),
        ]

    return command
