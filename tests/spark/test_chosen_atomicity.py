"""A sink that names no atomicity goes on in that of its ledger, and a new one gets "prepared"."""

from __future__ import annotations

import logging
import pickle
from dataclasses import replace
from types import SimpleNamespace

import pytest

from tests.spark.fake_context import FakeContext
from txnproducer.errors import InvalidConfigurationError
from txnproducer.spark import ExactlyOnceKafkaSink, LedgerError, SinkError
from txnproducer.spark.data_source_options import read_data_source_options
from txnproducer.spark.driver import checks, partition_batch, prepared_batch, whole_batch
from txnproducer.spark.ledger import first_look
from txnproducer.spark.ledger import rights as rights_module
from txnproducer.spark.ledger.entries import LedgerEntry, PlanEntry
from txnproducer.spark.ledger.store import Ledger, LedgerView
from txnproducer.spark.ledger.topic_ledger import TopicLedger

ENTRY = LedgerEntry(4, "q", 1, 7, "0" * 32)
DECIDED = LedgerEntry(4, "q", 1, 7, "0" * 32, decision=3)
PREPARED_PLAN = PlanEntry(1, "q", 1, is_prepared=True)
NEW = LedgerView(None, {}, None)
USED = {
    "partition": LedgerView(PlanEntry(1, "q", 1), {0: ENTRY}, None),
    "batch": LedgerView(None, {}, ENTRY),
    "prepared": LedgerView(PREPARED_PLAN, {0: DECIDED}, None),
}


class PlannedError(Exception):
    """The frame was planned."""


class Cluster:
    """A cluster with a ledger and a longest transaction time-out."""

    def __init__(self):
        self.view, self.timeout_ms, self.looks = NEW, 900_000, 0

    def look(self, *_, **__):
        self.looks += 1
        return self.view


@pytest.fixture
def cluster(monkeypatch):
    cluster = Cluster()

    def planned(*_):
        raise PlannedError

    for module in (partition_batch, whole_batch, prepared_batch):
        monkeypatch.setattr(module, "partitions_of", planned)
    for module in (partition_batch, whole_batch):
        monkeypatch.setattr(module, "written_columns", lambda frame, *_: frame)
    placed = SimpleNamespace(places=(), frame=None, count=1)
    monkeypatch.setattr(whole_batch, "placed", lambda *_: placed)
    monkeypatch.setattr(prepared_batch, "PreparedTask", lambda *_: None)
    monkeypatch.setattr(checks, "check_ledger_topic", lambda *_: None)
    monkeypatch.setattr(rights_module, "check_topics", lambda *_: 2)
    monkeypatch.setattr(rights_module, "check_groups", lambda *_: None)
    monkeypatch.setattr(first_look, "check_groups", lambda *_: None)
    monkeypatch.setattr(
        checks, "choose_timeout_ms", lambda _, wanted: wanted or cluster.timeout_ms
    )
    for kind in (Ledger, TopicLedger):
        monkeypatch.setattr(kind, "known_partitions", lambda _: [0])
        monkeypatch.setattr(kind, "look", cluster.look)
    return cluster


def sink_of(**arguments):
    given = {"topic": "topic", "query_id": "q", "driver_rows": 0, **arguments}
    return ExactlyOnceKafkaSink("127.0.0.1:1", "sink", **given)


def frame(*, speculates=False):
    session = SimpleNamespace(
        conf={"spark.speculation": "true" if speculates else "false"}, sparkContext=FakeContext()
    )
    return SimpleNamespace(dtypes=[("value", "string")], sparkSession=session)


def write(sink, batch_id=0, *, speculates=False):
    """Write a batch up to the moment at which its frame is planned; return the atomicity."""
    with pytest.raises(PlannedError):
        sink.write(frame(speculates=speculates), batch_id)
    return sink._settings.atomicity


# --- a new sink id -------------------------------------------------------------------------------


def test_a_new_sink_id_gets_prepared_parts_and_the_log_says_so_once(cluster, caplog):
    sink = sink_of()
    with caplog.at_level(logging.INFO, "txnproducer.spark.sink"):
        assert write(sink) == "prepared"
        cluster.view = LedgerView(PREPARED_PLAN, {}, None)
        assert write(sink) == "prepared"
    [line] = [each for each in caplog.messages if "no atomicity was given" in each]
    assert line.endswith("it is 'prepared', since the sink id is new")


def test_a_new_sink_id_with_a_short_time_gets_partition(cluster, caplog):
    with caplog.at_level(logging.INFO, "txnproducer.spark.sink"):
        assert write(sink_of(options={"transactionTimeout": "39999"})) == "partition"
    assert "time-out is 39999 ms" in caplog.text


def test_a_new_sink_id_with_a_ledger_in_a_topic_gets_them_as_well(cluster):
    assert write(sink_of(ledger="topic")) == "prepared"


def test_a_short_time_of_the_broker_counts_as_one_that_is_given(cluster):
    cluster.timeout_ms = 39_999
    assert write(sink_of()) == "partition"
    cluster.timeout_ms = 40_000
    assert write(sink_of()) == "prepared"


def test_a_spark_that_speculates_gets_partition_and_its_warning(cluster, caplog):
    with pytest.warns(RuntimeWarning, match="fence each other"):
        assert write(sink_of(), speculates=True) == "partition"


def test_tasks_of_the_users_get_partition(cluster, monkeypatch):
    made = []
    monkeypatch.setattr(
        partition_batch.PartitionBatches, "partition_writer", lambda *call: made.append(call)
    )
    sink = sink_of()
    sink.partition_writer(0, 2)
    assert (sink._settings.atomicity, len(made)) == ("partition", 1)
    for mode in ("batch", "prepared"):
        cluster.view = USED[mode]
        with pytest.raises(InvalidConfigurationError, match=f"this sink has atomicity='{mode}'"):
            sink_of().partition_writer(0, 2)
    assert len(made) == 1


def test_a_data_source_gets_partition():
    given = {"kafka.bootstrap.servers": "h:1", "sinkId": "sink", "topic": "t"}
    found = read_data_source_options(given, is_streaming=True).sink
    assert (found.atomicity, found.on_replay_mismatch) == ("partition", "stop")


# --- a sink id that was used ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "on_mismatch"), [("partition", "stop"), ("batch", "stop"), ("prepared", "warn")]
)
def test_a_used_sink_id_goes_on_in_its_own_mode(cluster, caplog, mode, on_mismatch):
    cluster.view = USED[mode]
    sink = sink_of()
    with caplog.at_level(logging.INFO, "txnproducer.spark.sink"):
        assert write(sink, 5) == mode
    assert sink._settings.on_replay_mismatch == on_mismatch
    assert "the sink id was used with it: the ledger holds batch 4 of query q" in caplog.text


def test_a_plan_alone_counts(cluster):
    for plan, mode in ((PlanEntry(1, "q", 1), "partition"), (PREPARED_PLAN, "prepared")):
        cluster.view = LedgerView(plan, {}, None)
        assert write(sink_of()) == mode


def test_a_sink_id_of_two_modes_is_refused_as_ever(cluster):
    cluster.view = LedgerView(PlanEntry(1, "q", 1), {0: ENTRY}, ENTRY)
    sink = sink_of()
    with pytest.raises(LedgerError, match=r"both ledgers have entries"):
        sink.write(frame(), 5)
    assert sink._settings.atomicity is None


def test_one_that_goes_on_is_not_asked_about_what_excludes_a_new_one(cluster):
    cluster.view = USED["partition"]
    assert write(sink_of(options={"transactionTimeout": "39999"}), 5) == "partition"
    assert write(sink_of(ledger="topic"), 5) == "partition"


@pytest.mark.parametrize(
    ("mode", "arguments", "told"),
    [
        ("batch", {"writers": 3}, r"writers=3 does not go"),
        ("batch", {"topic": None, "ledger_topic": "t"}, r"topic is needed"),
        ("batch", {"on_replay_mismatch": "warn"}, r'on_replay_mismatch="warn" goes'),
        ("partition", {"on_replay_mismatch": "warn"}, r'on_replay_mismatch="warn" goes'),
        ("prepared", {"options": {"transactionTimeout": "39999"}}, r"transactionTimeout=39999"),
    ],
)
def test_a_setting_that_its_mode_excludes_is_refused_with_that_mode(
    cluster, mode, arguments, told
):
    cluster.view = USED[mode]
    frame_of_it = frame()
    frame_of_it.dtypes = [("value", "string"), ("topic", "string")]
    sink = sink_of(**arguments)
    for _ in range(2):  # nothing is settled by a refusal
        with pytest.raises(InvalidConfigurationError, match=told) as caught:
            sink.write(frame_of_it, 5)
        text = str(caught.value)
        assert text.startswith(f"no atomicity was given, and this sink has '{mode}', since the")
        assert "the ledger holds batch 4 of query q. Another atomicity needs a new" in text
    assert sink._settings.atomicity is None


@pytest.mark.parametrize("mode", ["batch", "prepared"])
def test_a_spark_that_speculates_is_refused_with_the_mode_of_the_ledger(cluster, mode):
    cluster.view = USED[mode]
    with pytest.raises(SinkError, match=f"this sink has '{mode}'.*Switch speculation off"):
        sink_of().write(frame(speculates=True), 5)


def test_a_warning_of_other_rows_is_refused_where_a_new_sink_id_cannot_have_it(cluster):
    with pytest.raises(InvalidConfigurationError, match=r"spark\.speculation is on.*goes with"):
        sink_of(on_replay_mismatch="warn").write(frame(speculates=True), 0)
    assert write(sink_of(on_replay_mismatch="warn")) == "prepared"


@pytest.mark.parametrize("mode", [None, "batch", "prepared"])
def test_a_named_run_goes_on_in_each_mode_that_decides_about_a_whole_batch(
    cluster, monkeypatch, mode
):
    monkeypatch.setattr(whole_batch.WholeBatches, "check", lambda *_, **__: None)
    monkeypatch.setattr(prepared_batch.PreparedBatches, "check", lambda *_, **__: None)
    cluster.view = USED.get(mode, NEW)
    sink = sink_of(ledger="topic")
    with pytest.raises(PlannedError):
        sink.write(frame(), run_id="monday")
    assert sink._settings.atomicity == (mode or "prepared")
    with pytest.raises(InvalidConfigurationError, match="needs ledger="):
        sink_of().write(frame(), run_id="monday")


def test_a_named_run_is_refused_where_its_parts_commit_one_by_one(cluster):
    cluster.view = USED["partition"]
    with pytest.raises(
        InvalidConfigurationError, match=r"needs atomicity=\"prepared\" or \"batch"
    ):
        sink_of(ledger="topic").write(frame(), run_id="monday")


def test_a_new_sink_id_for_named_runs_never_gets_partition(cluster, monkeypatch):
    monkeypatch.setattr(whole_batch.WholeBatches, "check", lambda *_, **__: None)
    sink = sink_of(ledger="topic", options={"transactionTimeout": "39999"})
    with pytest.raises(PlannedError):
        sink.write(frame(), run_id="monday")
    assert sink._settings.atomicity == "batch"
    with pytest.raises(SinkError, match=r"this sink has 'prepared'.*Switch speculation off"):
        sink_of(ledger="topic").write(frame(speculates=True), run_id="monday")


@pytest.mark.parametrize(("decision", "mode"), [(None, "batch"), (0, "prepared")])
def test_a_named_run_alone_shows_the_mode_of_a_sink(cluster, monkeypatch, decision, mode):
    monkeypatch.setattr(whole_batch.WholeBatches, "check", lambda *_, **__: None)
    monkeypatch.setattr(prepared_batch.PreparedBatches, "check", lambda *_, **__: None)
    run = replace(ENTRY, decision=decision, run_id="sunday")
    plan = None if decision is None else PREPARED_PLAN
    cluster.view = LedgerView(plan, {}, None, run)
    sink = sink_of(ledger="topic")
    with pytest.raises(PlannedError):
        sink.write(frame(), run_id="monday")
    assert sink._settings.atomicity == mode


# --- upkeep --------------------------------------------------------------------------------------


def test_a_refresh_chooses_for_a_used_sink_id_alone(cluster, monkeypatch):
    for kind in (partition_batch.PartitionBatches, whole_batch.WholeBatches):
        monkeypatch.setattr(kind, "refresh", lambda *_: 7)
    sink = sink_of()
    assert (sink.refresh_ledger("q"), sink._settings.atomicity) == (0, None)
    for mode, view in USED.items():
        cluster.view = view
        sink = sink_of()
        assert (sink.refresh_ledger("q"), sink._settings.atomicity) == (7, mode)


@pytest.mark.parametrize("given", [None, "batch"])
def test_speculation_is_refused_after_a_refresh_as_well(cluster, monkeypatch, given):
    monkeypatch.setattr(whole_batch.WholeBatches, "refresh", lambda *_: 1)
    cluster.view = USED["batch"]
    sink = sink_of(atomicity=given)
    assert sink.refresh_ledger("q") == 1
    with pytest.raises(SinkError, match="Switch speculation off"):
        sink.write(frame(speculates=True), 5)


def test_the_ledger_is_asked_once(cluster):
    sink = sink_of()
    write(sink)
    cluster.view, looks = LedgerView(PREPARED_PLAN, {}, None), cluster.looks
    write(sink)
    assert cluster.looks == looks + 1  # the first look of every batch that follows a failure


def test_a_sink_is_pickled_before_and_after_the_choice(cluster):
    sink = sink_of()
    copy = pickle.loads(pickle.dumps(sink))
    assert (copy._settings.atomicity, copy.last_report) == (None, None)
    assert write(copy) == "prepared"
    copy.close()
    assert pickle.loads(pickle.dumps(copy))._settings.atomicity == "prepared"
    sink.close()
