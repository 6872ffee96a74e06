"""Tests of a consumer of confluent-kafka are left out where there is none."""

from __future__ import annotations

from importlib.util import find_spec

# There are no wheels for a free-threaded interpreter.
collect_ignore = [] if find_spec("confluent_kafka") else ["test_confluent.py"]
