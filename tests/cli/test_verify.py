"""`txnproducer verify` without a cluster: what is counted, what is told, the exit code."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from click.testing import CliRunner

from txnproducer.cli import _readback, main, verify
from txnproducer.cli._readback import PartitionCount, TopicCount


def count_of(committed, duplicates=0):
    partitions = {0: PartitionCount(committed=committed, aborted=2, open=1)}
    return TopicCount("t", partitions, duplicates, ["k"] * duplicates, committed - duplicates)


@pytest.mark.parametrize(
    ("count", "arguments", "code", "missing"),
    [
        (count_of(5), [], 0, None),
        (count_of(5), ["--expect", "5"], 0, 0),
        (count_of(5), ["--expect", "7"], 1, 2),
        (count_of(5, duplicates=1), [], 1, None),
    ],
)
def test_the_exit_code_tells_whether_something_is_wrong(
    monkeypatch, count, arguments, code, missing
):
    monkeypatch.setattr(verify, "count_topic", lambda *_, **__: count)
    done = CliRunner().invoke(main, ["verify", "-b", "x:1", "-t", "t", "-o", "json", *arguments])
    assert done.exit_code == code, done.output
    line = json.loads(done.output)
    assert (line["committed"], line["aborted"], line["open"]) == (5, 2, 1)
    assert line["missing"] == missing


def test_each_further_record_of_a_key_is_a_duplicate():
    count = TopicCount("t")
    seen: Counter[bytes] = Counter()
    for key in (b"a", b"b", b"a", b"a"):
        _readback._note(seen, count, key)
    assert (count.duplicates, count.duplicated, len(seen)) == (2, ["a"], 2)
