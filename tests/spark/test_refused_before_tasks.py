"""A batch is refused before its frame is planned, since planning runs the frame's shuffles."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.spark.fake_context import FakeContext
from txnproducer.errors import InvalidConfigurationError
from txnproducer.spark import ExactlyOnceKafkaSink, LedgerError
from txnproducer.spark.driver import checks, partition_batch, whole_batch
from txnproducer.spark.errors import MissingRightError, SinkError, TornBatchError
from txnproducer.spark.ledger import first_look
from txnproducer.spark.ledger import rights as rights_module
from txnproducer.spark.ledger.entries import LedgerEntry, PlanEntry
from txnproducer.spark.ledger.store import Ledger, LedgerView

OLD = LedgerEntry(4, "old", 2, 7, "0" * 32)
OURS = LedgerEntry(4, "q", 2, 7, "0" * 32)
FRAME = SimpleNamespace(
    dtypes=[("value", "string")], sparkSession=SimpleNamespace(conf={}, sparkContext=FakeContext())
)


class PlannedError(Exception):
    """The frame was planned."""


@pytest.fixture
def write(monkeypatch):
    """Return a call that writes a batch with a ledger, without questions to a cluster."""
    views: list[LedgerView] = []

    def planned(*_):
        raise PlannedError

    for module in (partition_batch, whole_batch):
        monkeypatch.setattr(module, "partitions_of", planned)
        monkeypatch.setattr(module, "written_columns", lambda frame, *_: frame)
    monkeypatch.setattr(
        whole_batch, "placed", lambda frame, _: SimpleNamespace(places=(), frame=frame, count=2)
    )
    monkeypatch.setattr(checks, "check_ledger_topic", lambda *_: None)
    monkeypatch.setattr(rights_module, "check_topics", lambda *_: 2)
    monkeypatch.setattr(rights_module, "check_groups", lambda *_: None)
    monkeypatch.setattr(first_look, "check_groups", lambda *_: None)
    monkeypatch.setattr(checks, "choose_timeout_ms", lambda *_: 60_000)
    monkeypatch.setattr(Ledger, "known_partitions", lambda _: [0, 1])
    monkeypatch.setattr(Ledger, "look", lambda *_, **__: views[0])

    def call(view, atomicity, batch_id, **arguments):
        views[:] = [view]
        sink = ExactlyOnceKafkaSink(
            "127.0.0.1:1", "sink", "topic", atomicity, query_id="q", **arguments
        )
        sink.write(FRAME, batch_id)

    return call


def view_of(entry, atomicity):
    """Return a ledger of one atomicity with an entry, or with none."""
    if entry is None:
        return LedgerView(None, {}, None)
    if atomicity == "batch":
        return LedgerView(None, {}, entry)
    return LedgerView(PlanEntry(1, entry.query_id, 2), {0: entry, 1: entry}, None)


@pytest.mark.parametrize("atomicity", ["partition", "batch"])
@pytest.mark.parametrize(
    ("entry", "batch_id", "told"),
    [
        (OLD, 5, "another query"),
        (OURS, 3, "rewound"),
        (None, 5, "no ledger"),
    ],
)
def test_a_batch_that_the_ledger_refuses_is_refused_before_the_frame_is_planned(
    write, atomicity, entry, batch_id, told
):
    with pytest.raises(LedgerError, match=told):
        write(view_of(entry, atomicity), atomicity, batch_id)


def test_a_torn_batch_that_is_found_before_the_frame_is_planned_names_the_way_on(write):
    torn = LedgerView(PlanEntry(1, "q", 2), {0: OURS}, None)
    with pytest.raises(TornBatchError, match=r'atomicity="prepared".* would not stop here'):
        write(torn, "partition", 5)


@pytest.mark.parametrize("atomicity", ["partition", "batch"])
def test_the_other_atomicity_is_refused_before_the_frame_is_planned(write, atomicity):
    other = "batch" if atomicity == "partition" else "partition"
    with pytest.raises(LedgerError, match="was used with atomicity="):
        write(view_of(OURS, other), atomicity, 5)


@pytest.mark.parametrize("atomicity", ["partition", "batch"])
def test_a_batch_that_fits_the_ledger_goes_on(write, atomicity):
    for entry, batch_id in ((OURS, 5), (OURS, 4), (None, 0)):
        with pytest.raises(PlannedError):
            write(view_of(entry, atomicity), atomicity, batch_id)
    with pytest.raises(PlannedError):
        write(view_of(OLD, atomicity), atomicity, 0, on_foreign_ledger="take_over")


@pytest.mark.parametrize(
    ("atomicity", "module"), [("partition", first_look), ("batch", rights_module)]
)
def test_a_missing_right_is_reported_before_the_frame_is_planned(
    write, monkeypatch, atomicity, module
):
    def refuse(_, groups):
        assert {"__txn.sink.plan", "__txn.sink.batch", "__txn.sink.p0"} == set(groups)
        raise MissingRightError("Read on the group")

    monkeypatch.setattr(module, "check_groups", refuse)
    with pytest.raises(MissingRightError):
        write(view_of(OURS, atomicity), atomicity, 5)


def test_a_refusal_reaches_spark_without_the_calls_of_the_sink(monkeypatch):
    def refuse(*_):
        raise SinkError("the way out")

    monkeypatch.setattr(ExactlyOnceKafkaSink, "write", refuse)
    sink = ExactlyOnceKafkaSink("127.0.0.1:1", "sink", "topic")
    with pytest.raises(SinkError, match="the way out") as told:
        sink(FRAME, 0)
    assert len(told.traceback) == 1


@pytest.mark.parametrize("batch_id", [-1, True, "1", None, 1 << 62, 1 << 63])
def test_a_number_that_no_entry_can_have_is_refused(write, batch_id):
    with pytest.raises(InvalidConfigurationError, match=r"an integer from 0 to 2\*\*62 - 1"):
        write(view_of(None, "partition"), "partition", batch_id)


def test_the_largest_number_is_not_refused(write):
    most = (1 << 62) - 1
    with pytest.raises(PlannedError):
        write(view_of(None, "partition"), "partition", most, first_batch_id=most)
