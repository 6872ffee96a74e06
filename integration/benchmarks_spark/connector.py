"""Spark's own Kafka connector: its jars, fetched as those of a test's broker are."""

from __future__ import annotations

from pathlib import Path

from txnproducer.testing._maven import MavenRepository
from txnproducer.testing._paths import cache_dir

# The connector needs these beside the jars that Spark brings along.
_WANTED = (
    "spark-sql-kafka-0-10",
    "spark-token-provider-kafka-0-10",
    "kafka-clients",
    "commons-pool2",
)


def connector_jars(version: str) -> list[Path]:
    """Return the connector's jars for a version of Spark.

    Raises:
        JarsUnavailableError: they cannot be fetched.
    """
    folder = cache_dir() / "spark-connector"
    folder.mkdir(parents=True, exist_ok=True)
    repository = MavenRepository(folder)
    coordinates = [
        each
        for each in repository.resolve(f"org.apache.spark:spark-sql-kafka-0-10_2.13:{version}")
        if any(name in each for name in _WANTED)
    ]
    for coordinate in coordinates:
        repository.download(coordinate)
    return [_path(folder, coordinate) for coordinate in coordinates]


def _path(folder: Path, coordinate: str) -> Path:
    group, artifact, version = coordinate.split(":")[:3]
    return folder.joinpath(*group.split("."), artifact, version, f"{artifact}-{version}.jar")
