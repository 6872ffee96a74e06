"""Named runs: the entries of batches that a scheduler names by any text, in any order.

Why it exists: schedulers know a run by its logical date or an id, fill gaps later, and repeat
runs. Numbers that only grow do not fit.

Owns: the entries by name, and how long they are kept. Must not know: how rows are written, what
the names mean.

A run of prepared parts has two kinds of entries. That of the run is written with the decision, or
by the one transaction that needs none. Those of its parts, `p0.run` and so on, are written in the
parts' own transactions. Only the last decision has a use for them: they show which of its parts
are committed. Batches with numbers have other keys, so that neither kind writes over the other.

Rules:
* Each name is a key of the ledger's topic. Two names never meet, so their order does not matter.
* An entry that is older than the sink keeps them is deleted in the transaction of a later run.
  A reader that ignored it instead would go by its own clock and its own setting, so that two
  drivers could differ about a run; and the topic would grow for ever.
* A run's age begins with its commit, by the brokers' clocks. It ends now, or at the last commit in
  the topic if the driver's clock is ahead of that: so a wrong clock of a driver deletes nothing. A
  run that comes again after its entry is gone is a new one.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any, Final

from txnproducer._shell.record_writer import RecordWriter
from txnproducer.errors import IllegalStateError, InvalidConfigurationError
from txnproducer.ledger.topic_log import Stored
from txnproducer.spark.ledger.entries import LedgerEntry
from txnproducer.spark.ledger.store import Ledger, dated
from txnproducer.spark.ledger.topic_ledger import PART_SUFFIX, RUN_PREFIX, TopicLedger

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


def topic_ledger(ledger: Ledger) -> TopicLedger:
    """Return a ledger that is in a topic, as one with named runs always is."""
    if not isinstance(ledger, TopicLedger):
        raise IllegalStateError("a named run needs a ledger in a topic")
    return ledger


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
    # As the driver has read it before this transaction began; it holds the id.
    found = ledger.as_read()
    oldest_ms = _now_ms(found) - ledger.keeps_days * _DAY_MS
    runs = {key: one for key, one in found.items() if key.startswith(RUN_PREFIX)}
    # Another query's run of this name may be old.
    runs.pop(RUN_PREFIX + run_id, None)
    old = [key for key, one in runs.items() if one.value and one.at_ms < oldest_ms]
    for key in old[:_MOST_DELETED]:
        ledger.delete_record(writer, key)


def read_run_parts(
    ledger: TopicLedger, slots: Iterable[int], *, waits_for_undecided: bool = True
) -> dict[int, LedgerEntry]:
    """Return the entries that slots have of parts of named runs. Slots without one are left out.

    Raises:
        UnstableOffsetCommitError, KafkaError: see `Ledger.read`.
    """
    keys = {_part_key(slot): slot for slot in slots}
    found = ledger.stored(keys, waits_for_undecided=waits_for_undecided)
    return {keys[key]: ledger.parsed_entry(key, one) for key, one in found.items()}


def write_part(ledger: Ledger, writer: RecordWriter, slot: int, entry: LedgerEntry) -> None:
    """Add the entry of a prepared part to the writer's open transaction."""
    if entry.run_id is None:
        ledger.write(writer, slot, entry)
    else:
        topic_ledger(ledger).write_record(writer, _part_key(slot), dated(entry).stored())


def _part_key(slot: int) -> str:
    return f"p{slot}{PART_SUFFIX}"


def _now_ms(found: Mapping[str, Stored]) -> int:
    # Both clocks have to agree, since what is deleted too early would be written once more. After
    # a long rest the last commit is an old one, and the next run deletes what this one leaves.
    last_commit_ms = max((one.at_ms for one in found.values()), default=0)
    return min(last_commit_ms, int(time.time() * 1000))
