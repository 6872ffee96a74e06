"""`txnproducer verify` without a cluster: the counts, the report, the exit code."""

from __future__ import annotations

import json
import time
from collections import Counter

import pytest
from click.testing import CliRunner

from txnproducer.cli import _readback, main, verify
from txnproducer.cli._readback import PartitionCount, TopicCount


def count_of(committed, duplicates=0, compared=None):
    partitions = {0: PartitionCount(committed=committed, aborted=2, open=1)}
    compared = committed if compared is None else compared
    distinct = compared - duplicates
    return TopicCount("t", partitions, duplicates, ["k"] * duplicates, distinct, compared)


@pytest.mark.parametrize(
    ("count", "arguments", "code", "missing"),
    [
        (count_of(5), [], 0, None),
        (count_of(5), ["--expect", "5"], 0, 0),
        (count_of(5), ["--expect", "7"], 1, 2),
        (count_of(5), ["--expect", "4"], 1, 0),
        (count_of(5, duplicates=1), [], 1, None),
    ],
)
def test_the_exit_code_shows_whether_something_is_wrong(
    monkeypatch, count, arguments, code, missing
):
    monkeypatch.setattr(verify, "count_topic", lambda *_, **__: count)
    monkeypatch.setattr(verify, "reach", lambda *_: None)
    done = CliRunner().invoke(main, ["verify", "-b", "x:1", "-t", "t", "-o", "json", *arguments])
    assert done.exit_code == code, done.output
    line = json.loads(done.output)
    assert (line["committed"], line["aborted"], line["open"]) == (5, 2, 1)
    assert line["missing"] == missing


@pytest.mark.parametrize(
    ("count", "arguments", "faults"),
    [
        (count_of(5), ["--expect", "5"], []),
        (count_of(5), ["--expect", "7"], ["2 of 7 expected records are missing"]),
        (count_of(5), ["--expect", "4"], ["1 records more than the expected 4"]),
        (
            count_of(5, duplicates=2),
            ["--expect", "4", "--by", "key"],
            [
                "2 committed records repeat the key of an earlier one, for instance k, k",
                "1 of 4 expected records are missing",
            ],
        ),
    ],
)
def test_the_faults_are_the_last_lines_for_people(monkeypatch, count, arguments, faults):
    monkeypatch.setattr(verify, "count_topic", lambda *_, **__: count)
    monkeypatch.setattr(verify, "reach", lambda *_: None)
    done = CliRunner().invoke(main, ["verify", "-b", "x:1", "-t", "t", *arguments])
    lines = done.stderr.splitlines()
    assert [each for each in lines if "FAILED" in each] == [f"FAILED: {each}" for each in faults]
    assert not faults or lines[-1].startswith("FAILED")


def test_each_further_record_of_a_key_is_a_duplicate():
    count = TopicCount("t")
    seen: Counter[bytes] = Counter()
    for key in (b"a", b"b", b"a", b"a"):
        _readback._note(seen, count, key)
    assert (count.duplicates, count.duplicated, len(seen)) == (2, ["a"], 2)
    assert count.compared == 4


@pytest.mark.parametrize(
    ("count", "by", "duplicates", "told"),
    [
        (count_of(5), "id", 0, "All 5 committed records were compared by the id"),
        (count_of(5, compared=3), "key", 0, "3 of 5 committed records were compared by key; 2 "),
        (count_of(5, compared=0), "id", None, "0 of 5 committed records were compared"),
        (count_of(5, compared=0), "none", None, "None of the 5 committed records was compared"),
        (count_of(0), "id", 0, "All 0 committed"),
    ],
)
def test_records_not_compared_are_reported_and_never_called_free_of_duplicates(
    monkeypatch, count, by, duplicates, told
):
    monkeypatch.setattr(verify, "count_topic", lambda *_, **__: count)
    monkeypatch.setattr(verify, "reach", lambda *_: None)
    done = CliRunner().invoke(main, ["verify", "-b", "x:1", "-t", "t", "--by", by])
    line = json.loads(done.stdout.splitlines()[-1])
    assert line["by"] == by
    assert line["duplicates"] == duplicates
    assert line["compared"] + line["not_compared"] == line["committed"]
    assert told in done.stderr


def test_the_time_out_is_one_for_the_look_at_the_cluster_and_the_reading(monkeypatch):
    given: list[float] = []

    def counting(*_, timeout, **__):
        given.append(timeout)
        return count_of(5)

    monkeypatch.setattr(time, "monotonic", iter([100.0, 104.0]).__next__)
    monkeypatch.setattr(verify, "reach", lambda _, longest_s: given.append(longest_s))
    monkeypatch.setattr(verify, "count_topic", counting)
    CliRunner().invoke(main, ["verify", "-b", "x:1", "-t", "t", "--timeout", "6"])
    assert given == [6.0, 2.0]


def test_a_cluster_that_is_not_there_is_waited_for_no_longer_than_the_time_out():
    done = CliRunner().invoke(main, ["verify", "-b", "127.0.0.1:1", "-t", "t", "--timeout", "1"])
    assert done.exit_code == 3
    assert "within 1000 ms" in done.output
