"""Shared parts of the tests of the Spark sink: frames, their readers, faults in tasks."""

from __future__ import annotations

import base64
import json
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kafka.net.sasl.oauth import AbstractTokenProvider

from integration.readers import read_with_confluent, values
from integration.waiting import wait_until

PARTITIONS = 3  # of the fixture `topic`
SLOW_S = 40.0  # a task's; a second run of it would take as long again


def keyless(spark, count, partitions=2, first=0):
    rows = [(f"value {n}",) for n in range(first, first + count)]
    return spark.createDataFrame(spark.sparkContext.parallelize(rows, partitions), "value string")


def keyed(spark, count, partitions=3, first=0, keys=None):
    """Make rows with as many different keys as are asked for, or one each."""
    rows = [(f"key {n % (keys or count)}", f"value {n}") for n in range(first, first + count)]
    data = spark.sparkContext.parallelize(rows, partitions)
    return spark.createDataFrame(data, "key string, value string")


def expected(count, first=0):
    return sorted(b"value %d" % n for n in range(first, first + count))


def seen(kafka, topic) -> list[Any]:
    return sorted(values(read_with_confluent(kafka.bootstrap_servers, topic)))


def wait_for(kafka, topic, wanted):
    """Wait until readers see this: a commit returns before its markers are written."""
    wait_until(lambda: seen(kafka, topic) == wanted, f"readers do not see {len(wanted)} rows")


@dataclass(frozen=True)
class Strike:
    """Kills the process at an event, once."""

    marker: str
    event: str
    partition: int | None = 1

    def __call__(self, name, info):
        if name != self.event or info.get("partition") != self.partition:
            return
        try:
            os.close(os.open(self.marker, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)


class OnDriver:
    """Does something on the driver only: tasks get a copy that does nothing."""

    def __init__(self, strike=None):
        self.strike = strike

    def __call__(self, name, info):
        if self.strike is not None:
            self.strike(name, info)

    def __reduce__(self):
        return OnDriver, ()


def slowly(marker):
    """Return a function that reads a frame, and takes a long time in each run."""

    def read(batches):
        yield from batches
        Path(marker).touch()
        time.sleep(SLOW_S)  # only a task that is broken off ends sooner

    return lambda frame: frame.mapInArrow(read, frame.schema)


class UnsecuredTokens(AbstractTokenProvider):
    """Gives tokens that nobody has signed, which a broker for tests takes (KIP-255).

    Attributes:
        user: of all tokens.
    """

    user = "token-user"

    def token(self) -> str:
        now = int(time.time())
        parts = {"alg": "none"}, {"sub": self.user, "iat": now, "exp": now + 3600}
        texts = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode() for part in parts]
        return ".".join(text.rstrip("=") for text in texts) + "."
