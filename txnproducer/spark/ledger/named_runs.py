"""Named runs: the entries of batches that a scheduler names by any text, in any order.

Why it exists: schedulers know a run by its logical date or an id, fill gaps later, and repeat
runs. Numbers that only grow do not fit.

Owns: the entries by name, and how long they are kept. Must not know: how rows are written, what
the names mean.

Rules:
* Each name is a key of the ledger's topic. Two names never meet, so their order does not matter.
* An entry that is older than the sink keeps them is deleted in the transaction of a later run.
  A reader that ignored it instead would go by its own clock and its own setting, so that two
  drivers could differ about a run; and the topic would grow for ever.
* The age is that of the record. A run that comes again after its entry is gone is a new one.
"""

from __future__ import annotations

import time
from typing import Any, Final

from txnproducer._shell.record_writer import RecordWriter
from txnproducer.errors import InvalidConfigurationError
from txnproducer.spark.ledger.entries import LedgerEntry
from txnproducer.spark.ledger.store import dated
from txnproducer.spark.ledger.topic_ledger import RUN_PREFIX, TopicLedger

_DAY_MS: Final = 24 * 3600 * 1000
_MOST_BYTES: Final = 500
# So that no transaction is late because of them.
_MOST_DELETED: Final = 100


def check_run_id(run_id: Any) -> str:
    """Return the name of a run.

    Raises:
        InvalidConfigurationError: it is no text, empty, or longer than 500 bytes in UTF-8.
    """
    if not isinstance(run_id, str) or not run_id.strip() or len(run_id.encode()) > _MOST_BYTES:
        raise InvalidConfigurationError(
            f"run_id={run_id!r}: must be a text of at most {_MOST_BYTES} bytes, and not empty, "
            'such as a logical date: run_id="2026-04-01"'
        )
    return run_id


def read_run(
    ledger: TopicLedger, run_id: str, *, waits_for_undecided: bool = True
) -> LedgerEntry | None:
    """Return the entry of a run, or None if it is not committed.

    Raises:
        UnstableOffsetCommitError, KafkaError: see `Ledger.read`.
    """
    key = RUN_PREFIX + run_id
    found = ledger.stored([key], waits_for_undecided=waits_for_undecided)
    return ledger.parsed_entry(key, found[key]) if key in found else None


def write_run(ledger: TopicLedger, writer: RecordWriter, run_id: str, entry: LedgerEntry) -> None:
    """Add the entry of a run to the writer's open transaction, and delete some that are old."""
    ledger.write_record(writer, RUN_PREFIX + run_id, dated(entry).stored())
    oldest_ms = _now_ms() - ledger.keeps_days * _DAY_MS
    # As the driver has read it before this transaction began; it holds the id.
    runs = {key: one for key, one in ledger.as_read().items() if key.startswith(RUN_PREFIX)}
    old = [key for key, one in runs.items() if one.value and one.at_ms < oldest_ms]
    for key in old[:_MOST_DELETED]:
        ledger.delete_record(writer, key)


def _now_ms() -> int:
    # The wall clock, as that of the records.
    return int(time.time() * 1000)
