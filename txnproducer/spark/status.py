"""The status of a sink: the content of its ledger, for people and for scripts.

Owns: the status, and how it is read: no id is taken, and no transaction is waited for. Must not
know: Spark, batches that are being written.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from txnproducer.admin import describe_transactions, partition_count
from txnproducer.spark.ledger.entries import LedgerEntry
from txnproducer.spark.ledger.one_atomicity import atomicities_of
from txnproducer.spark.ledger.store import Ledger

# A ledger may remember thousands.
MOST_RUNS: Final = 20
# In the last two the end is decided, but not all partitions have their marker yet.
_OPEN: Final = ("Ongoing", "PrepareCommit", "PrepareAbort")


@dataclass(frozen=True)
class EntryStatus:
    """The last batch that was committed under one transactional id.

    Attributes:
        transactional_id: the id.
        batch_id: of the last batch.
        rows: how many rows of that batch were written under this id.
        digest: of these rows.
        writers: how many partitions wrote the batch.
        age_s: seconds since then, by two clocks; None if the entry has no time.
        is_open: whether a transaction is open, or being ended; None if the cluster does not say.
    """

    transactional_id: str
    batch_id: int
    rows: int
    digest: str
    writers: int
    age_s: float | None
    is_open: bool | None


@dataclass(frozen=True)
class RunStatus:
    """A named run that is committed.

    A run of prepared parts is committed by its decision. If the driver died just after that, the
    next start has to end its parts.

    Attributes:
        run_id: its name.
        query_id: of the query that wrote it.
        rows: how many rows it has.
        digest: of these rows.
        writers: how many partitions wrote it.
        committed_ms: when, in milliseconds since the epoch, by the writer's clock; None if the
            entry has no time.
        age_s: seconds since then, by two clocks; None like the time.
    """

    run_id: str
    query_id: str
    rows: int
    digest: str
    writers: int
    committed_ms: int | None
    age_s: float | None


@dataclass(frozen=True)
class SinkStatus:
    """The content of a sink's ledger.

    Attributes:
        sink_id: of the sink.
        atomicity: "partition", "batch" or "prepared"; two of them if one id was used for both,
            which is refused now; None if nothing was ever written, or it has expired.
        query_id: of the query that the batch ids belong to; None like the atomicity.
        run: the number of the run: drivers, and new beginnings after a failure; 0 without a plan.
        most_writers: the largest number of partitions that ever wrote, or were about to; 0
            without a plan.
        partitions: the partitions with an entry, by Spark's number.
        batch: of whole batches, or None.
        runs: the named runs that were committed last, the newest first; at most 20.
        more_runs: how many more the ledger remembers.
    """

    sink_id: str
    atomicity: str | None
    query_id: str | None
    run: int
    most_writers: int
    partitions: Mapping[int, EntryStatus]
    batch: EntryStatus | None
    runs: Sequence[RunStatus] = ()
    more_runs: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Return the status as plain values, for JSON."""
        return asdict(self)


def read_status(ledger: Ledger) -> SinkStatus:
    """Read the status of a sink. An open transaction may be about to change it.

    Raises:
        LedgerError: a group of the ledger's holds something else.
        KafkaError: the cluster refused.
    """
    ledger = _present(ledger)
    # Not waited for: a look must not take as long as a batch that is being written.
    view = ledger.look(ledger.known_partitions(), waits_for_undecided=False)
    plan, entries, whole = view.plan, view.entries, view.whole
    runs, more_runs = ledger.newest_runs(MOST_RUNS)
    found = {ledger.transactional_id(partition): entry for partition, entry in entries.items()}
    if whole is not None:
        found[ledger.whole_id] = whole
    is_open = _open_transactions(ledger, found)
    by_id = {name: _status(name, entry, is_open.get(name)) for name, entry in found.items()}
    # The plan first, because every run commits it before its tasks commit an entry.
    owners = [one.query_id for one in (plan, whole, *entries.values(), *runs) if one is not None]
    return SinkStatus(
        ledger.sink_id,
        # A plan alone counts as well: from then on another atomicity is refused.
        " and ".join(atomicities_of(view)) or None,
        owners[0] if owners else None,
        0 if plan is None else plan.run,
        0 if plan is None else plan.most_writers,
        {partition: by_id[ledger.transactional_id(partition)] for partition in sorted(entries)},
        by_id.get(ledger.whole_id),
        [_run_status(entry) for entry in runs],
        more_runs,
    )


def _present(ledger: Ledger) -> Ledger:
    """Return the ledger that can be read: before the topic of one is made, that in offsets."""
    topic = ledger.records_topic
    servers, security = ledger.bootstrap_servers, ledger.security
    if topic is None or partition_count(servers, topic, **security) is not None:
        return ledger
    return Ledger(servers, ledger.sink_id, ledger.topic, security)


def _open_transactions(ledger: Ledger, names: Mapping[str, LedgerEntry]) -> dict[str, bool]:
    told = describe_transactions(ledger.bootstrap_servers, names, **ledger.security)
    return {name: one is not None and one.state in _OPEN for name, one in told.items()}


def _status(name: str, entry: LedgerEntry, is_open: bool | None) -> EntryStatus:
    return EntryStatus(
        name, entry.batch_id, entry.rows, entry.digest, entry.writers, _age_s(entry), is_open
    )


def _run_status(entry: LedgerEntry) -> RunStatus:
    content = (entry.rows, entry.digest, entry.writers)
    return RunStatus(entry.name, entry.query_id, *content, entry.at_ms, _age_s(entry))


def _age_s(entry: LedgerEntry) -> float | None:
    # Not below 0: the entry has the time of another machine's clock, which may be ahead.
    return None if entry.at_ms is None else max(0.0, time.time() - entry.at_ms / 1000)
