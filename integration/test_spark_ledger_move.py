"""A ledger moves from offsets to a topic, also if starts end at any step of it."""

from __future__ import annotations

import pytest

from integration.spark_frames import expected, keyed, seen, wait_for
from txnproducer import TransactionalProducer
from txnproducer.admin import committed_offsets, group_ids
from txnproducer.spark import LedgerError
from txnproducer.spark.ledger.entries import LedgerBatch
from txnproducer.spark.ledger.move import topic_of
from txnproducer.spark.ledger.topic_log import forget_logs

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]
MOST_STEPS = 40


class Killed(BaseException):
    """The end of a process, which no handler of errors sees."""


@pytest.fixture
def sink(make_sink):
    def make(**arguments):
        forget_logs()
        return make_sink(**{"first_batch_id": 1, **arguments})

    return make


@pytest.fixture
def kill_at(monkeypatch):
    """Return a function that ends the driver before its n-th step towards the cluster."""
    count = 0
    last = None
    names = (
        "init_transactions",
        "begin_transaction",
        "send",
        "send_offsets_to_transaction",
        "commit_transaction",
    )

    def counted(usual):
        def step(self, *arguments, **named):
            nonlocal count
            count += 1
            if count == last:
                raise Killed
            return usual(self, *arguments, **named)

        return step

    for name in names:
        monkeypatch.setattr(
            TransactionalProducer, name, counted(getattr(TransactionalProducer, name))
        )

    def begin(n):
        nonlocal count, last
        count, last = 0, n

    yield begin
    begin(None)


def groups_of(kafka, topic):
    servers = kafka.bootstrap_servers
    found = committed_offsets(servers, group_ids(servers, f"__txn.sink-{topic}."))
    return {
        group.rpartition(".")[2]: topic_of(next(iter(places.values())))
        for group, places in found.items()
        if places
    }


@pytest.mark.parametrize("atomicity", ["partition", "batch"])
@pytest.mark.parametrize("is_torn", [False, True])
def test_a_move_that_is_ended_at_any_step_goes_on(
    spark, kafka, topic, sink, kill_at, atomicity, is_torn
):
    if is_torn and atomicity == "batch":
        pytest.skip("a whole batch is never torn")
    frame = keyed(spark, 12, partitions=2)
    sink(atomicity=atomicity).write(frame, 1)
    batch_id, next_frame = 2, keyed(spark, 12, partitions=2, first=12)
    if is_torn:
        parts = next_frame.rdd.glom().collect()
        plan, _ = sink()._batches.plan(LedgerBatch(batch_id, "query", len(parts)))
        plan.write(0, plan.rows(parts[0]))
    ends = 0
    for step in range(1, MOST_STEPS):
        moved = sink(atomicity=atomicity, ledger="topic")
        settings = moved._cluster.producer_settings()
        batch = LedgerBatch(batch_id, "query", 2)
        kill_at(step)
        try:
            moved._batches.check(batch_id, "query")
            if atomicity == "partition":
                moved._batches.runs.enter(batch, settings)
            else:
                moved._batches.transactions.enter(batch, settings)
            break
        except Killed:
            ends += 1
        finally:
            kill_at(None)
            moved.close()
    assert ends > 5
    report = sink(atomicity=atomicity, ledger="topic").write(next_frame, batch_id)
    assert report.replayed == int(is_torn)
    again = sink(atomicity=atomicity, ledger="topic").write(next_frame, batch_id)
    assert again.transactions == 0
    wait_for(kafka, topic, expected(24))
    marks = groups_of(kafka, topic)
    own = {"batch"} if atomicity == "batch" else {"plan", "p0", "p1"}
    assert {name for name, place in marks.items() if place} >= own
    with pytest.raises(LedgerError, match='ledger="topic"'):
        sink(atomicity=atomicity).write(frame, 3)
    assert seen(kafka, topic) == expected(24)
