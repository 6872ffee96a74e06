"""Fakes of the producer and the ledger under `BatchTransactions`, with a batch and its parts."""

from __future__ import annotations

from types import SimpleNamespace

from txnproducer.lease import TransactionReceipt
from txnproducer.records import ProducerIdAndEpoch
from txnproducer.spark.driver import batch_retries
from txnproducer.spark.driver.batch_transactions import BatchTransactions
from txnproducer.spark.ledger import lost_transactions
from txnproducer.spark.ledger.entries import LedgerBatch, LedgerEntry
from txnproducer.spark.ledger.rules import LedgerRules
from txnproducer.spark.ledger.store import Ledger, LedgerView
from txnproducer.spark.tasks.participant import Part

BATCH = LedgerBatch(3, "query", 2)
SETTINGS = {"transaction.timeout.ms": "60000"}
ENTRY = LedgerEntry(3, "query", 2, 7, "0" * 32)


class FakeProducer:
    """A producer that notes its calls. Its commits and aborts end as a test says."""

    def __init__(self, log, commits, aborts, begins):
        self.log, self.commits, self.aborts, self.begins = log, commits, aborts, begins

    def begin_transaction(self):
        self._end("begin", self.begins)

    def lease(self, claims):
        self.log.append(f"lease {claims}")
        return SimpleNamespace(
            claims=claims, producer=ProducerIdAndEpoch(1, 5), is_transaction_v2=True
        )

    def adopt(self, receipts):
        self.log.append(f"adopt {len(list(receipts))}")

    def commit_transaction(self):
        self._end("commit", self.commits)

    def abort_transaction(self):
        self._end("abort", self.aborts)

    def _end(self, call, outcomes):
        self.log.append(call)
        outcome = outcomes.pop(0) if outcomes else None
        if outcome is not None:
            raise outcome

    def close(self, timeout=None):
        self.log.append("close")


class FakeLedger(Ledger):
    """Holds the entries that are found, one after the other."""

    log: list[str]
    found: list[LedgerEntry | LedgerView | BaseException | None]

    def __init__(self, log, found):
        super().__init__("nowhere:9092", "sink", "topic", {})
        self.__dict__.update(log=log, found=found)

    def look(self, partitions=(), *, asks_for_plan=True, waits_for_undecided=True):
        assert list(partitions) == [0]
        self.log.append("look" if waits_for_undecided else "glance")
        found = self.found.pop(0) if len(self.found) > 1 else self.found[0]
        if isinstance(found, BaseException):
            raise found
        return found if isinstance(found, LedgerView) else LedgerView(None, {}, found)

    def write_whole(self, producer, entry):
        self.log.append(f"entry of {entry.rows} rows")


def fake_batches(monkeypatch):
    """Return a maker of `BatchTransactions` with fakes, and the log of all that happens."""
    log: list[str] = []
    monkeypatch.setattr(batch_retries, "wait_exponential", lambda **_: lambda _: 0)
    monkeypatch.setattr(lost_transactions, "describe_transaction", lambda *_, **__: None)

    def make(found=(None,), commits=(), aborts=(), begins=(), tell=None, foreign="stop"):
        commits, aborts, begins = list(commits), list(aborts), list(begins)
        batches = BatchTransactions(
            FakeLedger(log, list(found)),
            LedgerRules("write", foreign),
            tell or (lambda *_: log.append("tell")),
        )

        def take():
            log.append("take")
            return FakeProducer(log, commits, aborts, begins)

        monkeypatch.setattr(batches, "_take", take)
        return batches

    return make, log


def part(failure="", recovery="abort", *, is_lost=False, seconds=1.0):
    identity = ProducerIdAndEpoch(1, 1)
    receipt = None if failure else TransactionReceipt("sink.batch", identity, 0, identity, ())
    return Part(receipt, 5, 50, "0" * 32, failure, recovery, {"write": seconds}, is_lost)


class SparkError(Exception):
    """As Spark raises it on the driver."""

    __module__ = "pyspark.errors"
