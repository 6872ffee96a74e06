"""The steps of a driver that could grow with the partitions of a later batch, without Spark.

Run: `python -m integration.benchmarks_spark.driver_steps [2 20 200 1000]`. It starts a broker. No
task writes: the entries of all partitions are committed by one transaction, and parts that are
open and empty are aborted. In milliseconds, the median of five; in brackets, of it the processor's
time of this process, which does not hold the broker's work on the same machine.

Columns: the look at all entries, as before each batch of "partition" once, and the look at the
plan alone; the claims of all parts, as taken for each batch of "prepared" once; a decision about
all parts; the entries of all parts, each in its own transaction, as the data source writes them;
the parts' ends.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

from txnproducer import TransactionalProducer
from txnproducer.spark.driver.part_ids import PartIds
from txnproducer.spark.ledger.decisions import Decision
from txnproducer.spark.ledger.entries import LedgerBatch, LedgerEntry, PlanEntry
from txnproducer.spark.ledger.store import Ledger
from txnproducer.testing import EmbeddedKafka

_TIMES = 5


def _timed(step: Callable[[], object]) -> tuple[float, float]:
    """Return the milliseconds of a step, by the clock and of the processor."""
    found = []
    for _ in range(_TIMES):
        clock, processor = time.perf_counter(), time.process_time()
        step()
        found.append((time.perf_counter() - clock, time.process_time() - processor))
    by_clock, by_processor = zip(*found, strict=True)
    return 1000 * statistics.median(by_clock), 1000 * statistics.median(by_processor)


def _measure(servers: str, count: int) -> list[tuple[float, float]]:
    ledger = Ledger(servers, f"sink-{count}", "orders", {})
    settings = {"bootstrap.servers": servers, "transaction.timeout.ms": "60000"}
    ids = PartIds(ledger)
    ids.take(range(count), settings)
    leases = ids.lease(range(count), settings)
    claims = [(lease.transactional_id, 0) for lease in leases.values()]
    batch = LedgerBatch(1, "query", count)
    entry = LedgerEntry(1, "query", count, 5, "1" * 32)
    parts = {slot: lease.producer for slot, lease in leases.items()}
    with TransactionalProducer(servers, ledger.plan_id) as planner:
        planner.init_transactions()
        with planner.transaction():
            ledger.write_plan(planner, PlanEntry(1, "query", count))
            for slot in range(count):
                ledger.write(planner, slot, entry)

        def decide() -> None:
            with planner.transaction():
                ledger.write_decision(planner, Decision(1, batch, True, parts))

        client = ids._client_of(settings)

        def write_entries() -> None:
            offsets = [
                (lease, group, ledger.place, offset)
                for slot, lease in leases.items()
                for group, offset in [ledger.offset_of(slot, entry)]
            ]
            if failed := client.write_offsets(offsets, 60_000):
                raise next(iter(failed.values()))

        found = [
            _timed(lambda: ledger.look(range(count))),
            _timed(ledger.look),
            _timed(lambda: client.take_claims(claims, 60_000)),
            _timed(decide),
            _timed(write_entries),
            _timed(lambda: ids.end(leases, settings, is_commit=False)),
        ]
    ids.close()
    return found


def main(counts: list[int]) -> None:
    """Print a row for each number of partitions."""
    print("| partitions | all entries | the plan | claims | a decision | entries | ends |")
    print("|--:|--:|--:|--:|--:|--:|--:|", flush=True)
    with EmbeddedKafka() as kafka:
        kafka.create_topic("orders")
        for count in counts:
            cells = (
                f"{clock:.1f} ({own:.1f})"
                for clock, own in _measure(kafka.bootstrap_servers, count)
            )
            print(f"| {count:,} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main([int(each) for each in sys.argv[1:]] or [2, 20, 200, 1000])
