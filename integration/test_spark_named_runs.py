"""Batch jobs write runs that have names: in any order, again, and after a failure."""

from __future__ import annotations

import time
from functools import partial

import pytest

from integration.spark_frames import expected, keyed, seen, wait_for
from txnproducer.errors import InvalidConfigurationError
from txnproducer.ledger.topic_log import forget_logs
from txnproducer.spark import LedgerError, ReplayMismatchError
from txnproducer.spark.ledger import named_runs

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]
DAY_MS = 24 * 3600 * 1000


@pytest.fixture(params=["batch", "prepared"])
def atomicity(request):
    """Return each atomicity that has named runs."""
    return request.param


@pytest.fixture
def sink(make_sink, atomicity):
    """Return a maker of sinks, each of which reads the topic from its beginning."""

    def make(**arguments):
        forget_logs()
        return make_sink(**{"ledger": "topic", "atomicity": atomicity, **arguments})

    return make


@pytest.mark.parametrize("driver_rows", [0, 100])
def test_runs_are_written_once_in_any_order(spark, kafka, topic, sink, driver_rows):
    days = {"2026-04-03": 0, "2026-04-01": 10, "manual__2026-04-02T00:00:00+00:00": 20}
    one = sink(driver_rows=driver_rows)
    for run_id, first in days.items():
        report = one.write(keyed(spark, 10, first=first), run_id=run_id)
        assert (report.run_id, report.rows, report.replayed) == (run_id, 10, 0)
    found = sink().status()
    assert [(each.run_id, each.rows) for each in found.runs] == [
        (day, 10) for day in reversed(days)
    ]
    for run_id, first in reversed(days.items()):
        for again in (one, sink(driver_rows=driver_rows)):
            report = again.write(keyed(spark, 10, first=first), run_id=run_id)
            assert (report.run_id, report.rows, report.transactions) == (run_id, 10, 0)
            assert report.replayed > 0
            assert not report.has_other_rows
    wait_for(kafka, topic, expected(30))


def test_a_run_with_other_rows_is_not_dropped_in_silence(spark, kafka, topic, sink):
    sink().write(keyed(spark, 10), run_id="a")
    with pytest.raises(ReplayMismatchError, match="batch a comes again with other rows"):
        sink(on_replay_mismatch="stop").write(keyed(spark, 10, first=10), run_id="a")
    report = sink(on_replay_mismatch="keep").write(keyed(spark, 10, first=10), run_id="a")
    assert (report.rows, report.transactions) == (10, 0)
    assert seen(kafka, topic) == expected(10)


def test_numbers_keep_their_order_beside_names(spark, kafka, topic, sink):
    one = sink(first_batch_id=5)
    one.write(keyed(spark, 10), 5)
    one.write(keyed(spark, 10, first=10), run_id="5")
    one.write(keyed(spark, 10, first=20), 6)
    one.write(keyed(spark, 10, first=30), run_id="4")
    with pytest.raises(LedgerError, match="rewound"):
        one.write(keyed(spark, 10), 5)
    assert one.write(keyed(spark, 10, first=20), 6).transactions == 0
    wait_for(kafka, topic, expected(40))


def test_a_run_that_failed_is_written_again(spark, kafka, topic, sink):
    def fail(name, _):
        if name == "batch_before_commit":
            raise OSError("the driver ends here")

    with pytest.raises(OSError, match="ends here"):
        sink(on_event=fail).write(keyed(spark, 10), run_id="a")
    assert seen(kafka, topic) == []
    assert sink().write(keyed(spark, 10), run_id="a").transactions > 0
    wait_for(kafka, topic, expected(10))


def test_runs_of_another_query_or_atomicity_are_refused(spark, sink, atomicity):
    sink().write(keyed(spark, 10), run_id="a")
    for run_id in ("a", "b"):
        with pytest.raises(LedgerError, match=r"belongs to another query.* of query query"):
            sink(query_id="other").write(keyed(spark, 10), run_id=run_id)
    with pytest.raises(LedgerError, match="another query"):
        sink(query_id="other").write(keyed(spark, 10), 0)
    with pytest.raises(LedgerError, match=f'was used with atomicity="{atomicity}"'):
        sink(atomicity="partition").write(keyed(spark, 10), 0)
    (other,) = {"batch", "prepared"} - {atomicity}
    with pytest.raises(LedgerError, match=f'was used with atomicity="{atomicity}"'):
        sink(atomicity=other).write(keyed(spark, 10), run_id="b")
    assert sink(atomicity=None).write(keyed(spark, 10), run_id="a").transactions == 0
    report = sink(query_id="other", on_foreign_ledger="take_over").write(
        keyed(spark, 10), run_id="a"
    )
    assert report.transactions > 0


def test_a_run_that_is_older_than_the_ledger_keeps_it_is_forgotten(
    spark, kafka, topic, sink, monkeypatch
):
    make = partial(sink, ledger_keeps=30)
    make().write(keyed(spark, 10), run_id="old")
    days = 29
    monkeypatch.setattr(named_runs, "_now_ms", lambda _: int(time.time() * 1000) + days * DAY_MS)
    make().write(keyed(spark, 10, first=10), run_id="later")
    assert make().write(keyed(spark, 10), run_id="old").transactions == 0
    days = 31
    make().write(keyed(spark, 10, first=20), run_id="much later")
    assert make().write(keyed(spark, 10), run_id="old").transactions > 0  # a new run now
    wait_for(kafka, topic, sorted([*expected(30), *expected(10)]))


@pytest.mark.parametrize(
    ("arguments", "call", "told"),
    [
        ({"atomicity": "partition"}, {"run_id": "a"}, 'atomicity="prepared" or "batch"'),
        ({"ledger": "offsets"}, {"run_id": "a"}, 'needs ledger="topic"'),
        ({}, {"run_id": "a", "batch_id": 1}, "a name or a number"),
        ({}, {"run_id": " "}, "must be a text"),
        ({}, {"run_id": 20260401}, "must be a text"),
        ({}, {}, "batch_id=None"),
    ],
)
def test_a_name_that_the_sink_cannot_keep_is_refused(spark, sink, arguments, call, told):
    with pytest.raises(InvalidConfigurationError, match=told):
        sink(**arguments).write(keyed(spark, 10), **call)


def test_the_first_run_of_a_process_is_judged_by_the_last_run(spark, sink):
    """A scheduler starts a process for each run, so that nothing else is known."""
    sink().write(keyed(spark, 10), run_id="monday")
    report = sink(driver_rows=None).write(keyed(spark, 10, first=10), run_id="tuesday")
    assert report.is_by_driver
