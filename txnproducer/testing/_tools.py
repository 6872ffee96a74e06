"""Kafka's own programs, as commands: the broker and two tools.

Owns the Java command line; knows in which class a version keeps a tool. Starts the tools, which
end by themselves, but not the broker, which belongs to a cluster.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from ._java import Java
from ._paths import home_dir
from ._process import run_tool

# For programs that run for a second: the first compiler and the simplest collector start fastest.
_TOOL_JVM = (
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)
_TOOL_SECONDS = 60.0
_LOGGING = {
    "showDateTime": "true",
    "dateTimeFormat": "yyyy-MM-dd HH:mm:ss.SSS",
    "levelInBrackets": "true",
}


class KafkaTools:
    """The programs of one Kafka version on one Java."""

    def __init__(self, version: str, java: Java, jars: Sequence[Path]) -> None:
        self._major = int(version.split(".", 1)[0])
        self._java = java
        self._class_path = os.pathsep.join(str(jar) for jar in jars)

    def broker_command(self, jvm_options: Sequence[str], properties: Path) -> list[str]:
        """Return the command that runs a broker."""
        return self._command(jvm_options, "kafka.Kafka", str(properties))

    def format_storage(
        self,
        cluster_id: str,
        properties: Path,
        features: Mapping[str, int],
        scram: Sequence[str],
        log_path: Path,
    ) -> None:
        """Prepare a node's empty data folder.

        Args:
            cluster_id: the cluster's id, in Kafka's base64 form.
            properties: the node's configuration.
            features: the feature levels to start the cluster with.
            scram: the users to store, in the tool's form.
            log_path: the tool's output is appended to this file.

        Raises:
            BrokerStartError: the tool refused, for example an unknown feature.
        """
        options: list[str] = []
        for name, level in features.items():
            options += ["--feature", f"{name}={level}"]
        for user in scram:
            # Stored while formatting (KIP-900): the users must exist before the first login.
            options += ["--add-scram", user]
        main = "kafka.tools.StorageTool"
        arguments = ["format", "-t", cluster_id, "-c", str(properties), *options]
        asked = ", ".join(f"{name}={level}" for name, level in features.items())
        what = f"Formatting a node with {asked}" if asked else "Formatting a node"
        run_tool(what, self._command(_TOOL_JVM, main, *arguments), log_path, _TOOL_SECONDS)

    def dump_log(self, segments: Sequence[Path], log_path: Path) -> str:
        """Return the output of DumpLogSegments for a partition's segments.

        Raises:
            BrokerStartError: the tool failed.
        """
        # KAFKA-14576 moved the class; releases before 4.0 have it in the old place.
        package = "org.apache.kafka.tools" if self._major >= 4 else "kafka.tools"
        files = ",".join(str(segment) for segment in segments)
        command = self._command(
            _TOOL_JVM, f"{package}.DumpLogSegments", "--print-data-log", "--files", files
        )
        return run_tool("DumpLogSegments", command, log_path, _TOOL_SECONDS)

    def _command(self, options: Sequence[str], *rest: str) -> list[str]:
        logging = [f"-Dorg.slf4j.simpleLogger.{key}={value}" for key, value in _LOGGING.items()]
        return [
            str(self._java.command),
            *options,
            # Java takes the home folder from the password database, and would ignore HOME.
            f"-Duser.home={home_dir()}",
            "-Djava.awt.headless=true",
            *logging,
            "-cp",
            self._class_path,
            *rest,
        ]
