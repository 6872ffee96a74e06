"""`python -m integration.benchmarks_spark.ledger_topic`: a ledger's topic is read at a start.

It writes many entries as sinks do, waits until the broker has compacted them, and reads the topic
from its beginning, as a driver does when it takes a sink over. With `--uncompacted` the broker
leaves all entries in the topic, as if its cleaner had died.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from typing import Final

from txnproducer import TransactionalProducer
from txnproducer.admin import LogBatch, create_topic, read_log
from txnproducer.ledger.compacted_topic import SETTINGS
from txnproducer.ledger.topic_log import forget_logs
from txnproducer.spark.ledger.entries import LedgerEntry
from txnproducer.spark.ledger.ledger_topic import check_ledger_topic
from txnproducer.spark.ledger.named_runs import write_run
from txnproducer.spark.ledger.topic_ledger import TopicLedger
from txnproducer.testing import EmbeddedKafka

_SINK = "sink"
_TARGET_S = 2.0
# The cleaner looks every 15 s, and markers go a minute after the records of their transactions.
_LONGEST_WAIT_S = 240.0
_NEVER_COMPACTED: Final = {"min.compaction.lag.ms": str(24 * 3600 * 1000)}


# The text of an entry without its opening brace.
_REST: Final = (
    LedgerEntry(0, "query-of-the-benchmark", 600, 100_000, "0" * 32, at_ms=1_795_786_785_030)
    .stored()
    .metadata[1:]
)


def _entry(number: int) -> LedgerEntry:
    return LedgerEntry(number, "query-of-the-benchmark", 600, 100_000, f"{number:032x}")


def _value(number: int) -> bytes:
    return f'{{"number":{number},"sink":"{_SINK}",{_REST}'.encode()


def _write(ledger: TopicLedger, given: argparse.Namespace) -> int:
    """Write the entries, and return the number of transactions."""
    with TransactionalProducer(ledger.bootstrap_servers, "writer", linger_ms=5) as producer:
        producer.init_transactions()
        for first in range(0, given.entries, given.at_once):
            numbers = range(first, min(first + given.at_once, given.entries))
            with producer.transaction():
                # As columns, which is quicker. The bytes are those of `TopicLedger`.
                producer.send_batch(
                    ledger.log,
                    [_value(number // given.slots) for number in numbers],
                    keys=[b"p%d" % (number % given.slots) for number in numbers],
                    partitions=0,
                )
        # As a job of one partition writes them.
        for number in range(given.single):
            with producer.transaction():
                ledger.write(producer, 0, _entry(given.entries + number))
        with producer.transaction():
            ledger.write_moved(producer)
            for number in range(given.runs):
                write_run(ledger, producer, f"scheduled__{number}", _entry(0))
    return int(-(-given.entries // given.at_once)) + int(given.single) + 1


def _take_overs(
    ledger: TopicLedger, given: argparse.Namespace
) -> Iterator[tuple[float, float, int, int]]:
    """Yield the seconds and the CPU's of a look at all slots, and batches and records."""
    while True:
        forget_logs()
        began_s, began_cpu_s = time.monotonic(), time.process_time()
        _, entries = ledger.read(range(given.slots))
        seconds, cpu_s = time.monotonic() - began_s, time.process_time() - began_cpu_s
        assert len(entries) == given.slots
        log: list[LogBatch] = []
        read_log(ledger.bootstrap_servers, ledger.log, 0, log.append)
        yield seconds, cpu_s, len(log), sum(len(batch.newest) for batch in log)
        time.sleep(15)  # a broker compacts the log in rounds, and this waits for the next one


def main() -> None:
    """Write, wait for the compaction, read, and print the seconds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--at-once", type=int, default=100, help="entries in a transaction")
    parser.add_argument("--single", type=int, default=5_000, help="transactions of one entry more")
    parser.add_argument("--slots", type=int, default=600)
    parser.add_argument("--runs", type=int, default=10_000, help="named runs")
    parser.add_argument("--uncompacted", action="store_true", help="leave all entries there")
    given = parser.parse_args()
    with EmbeddedKafka(startup_timeout=300) as kafka:
        kafka.create_topic("rows", partitions=1)
        ledger = TopicLedger(kafka.bootstrap_servers, _SINK, "rows", {}, f"{_SINK}.ledger")
        settings = SETTINGS | (_NEVER_COMPACTED if given.uncompacted else {})
        create_topic(ledger.bootstrap_servers, ledger.log, 1, config=settings)
        check_ledger_topic(ledger)
        began_s = time.monotonic()
        transactions = _write(ledger, given)
        print(
            f"{given.entries + given.single} entries and {given.runs} runs in {transactions} "
            f"transactions, {time.monotonic() - began_s:.0f} s"
        )
        began_s = time.monotonic()
        for seconds, cpu_s, batches, records in _take_overs(ledger, given):
            waited_s = time.monotonic() - began_s
            print(
                f"after {waited_s:.0f} s: {seconds:.2f} s ({cpu_s:.2f} s of CPU), {batches} "
                f"batches, {records} records"
            )
            if seconds < _TARGET_S or given.uncompacted or waited_s > _LONGEST_WAIT_S:
                break
        print("met" if seconds < _TARGET_S else "MISSED", f"(the target is {_TARGET_S} s)")


if __name__ == "__main__":
    main()
