"""Slots: the ledger entries of a batch, and which of its partitions gets which of them.

Why it exists: a batch that was broken off comes again with the same partitions, but Spark may
number them otherwise (its own Kafka source does so after a restart). So a committed entry is
matched with a partition by rows and digest, not by number.

Owns: the matching, and the comparison of rows. Must not know: where the ledger is, how rows are
written.

Rules:
* A batch of n partitions has the slots 0 to n - 1. Each partition gets one slot of its own.
* A slot that holds the batch already goes to a partition with the same rows and digest. If several
  partitions are equal, any of them will do: their rows are the same.
* If a committed slot finds no such partition, the batch is refused before anything is committed.
* The other partitions get the free slots. A partition gets the slot of its own number if it can.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from txnproducer.spark.errors import ReplayMismatchError
from txnproducer.spark.ledger.entries import LedgerEntry

_LOG = logging.getLogger(__name__)

Content: TypeAlias = tuple[int, str]
"""How many rows a partition has, and their digest."""

_WAYS_OUT: Final = (
    "The source or the plan does not give the same rows again, so the rest of the batch cannot be "
    "written exactly once. The committed rows stay. Ways out: a source that can be read again; "
    'on_replay_mismatch="keep" to go on with the committed rows; another sink id.'
)


@dataclass(frozen=True)
class Slot:
    """The ledger entry of one partition.

    Attributes:
        number: of the entry.
        is_committed: whether it holds the batch already.
        found: the content that the driver has read in the partition; None if it has not read it.
    """

    number: int
    is_committed: bool = False
    found: Content | None = None

    def check(
        self, batch: int | str, partition: int, written: Content, on_replay_mismatch: str
    ) -> None:
        """Check, before a commit, that a partition has the rows for which it got this slot.

        Args:
            batch: its number or name.
            partition: Spark's number of it.
            written: the content that the task is about to commit.
            on_replay_mismatch: "keep" to commit it nevertheless, with a warning.

        Raises:
            ReplayMismatchError: the frame has changed between the two passes.
        """
        # The driver reads the frame only to complete a batch; otherwise there is nothing to
        # compare.
        if self.found is None or written == self.found:
            return
        text = (
            f"batch {batch} is committed in part, and partition {partition} has changed between"
            " two passes over the frame: the driver has read {} rows (digest {}), the task"
            " {} rows (digest {})".format(*self.found, *written)
        )
        if on_replay_mismatch != "keep":
            raise ReplayMismatchError(f"{text}. The task has committed nothing. {_WAYS_OUT}")
        _LOG.warning('%s; it is committed all the same (on_replay_mismatch="keep")', text)


def assign_slots(
    batch: int | str,
    done: Mapping[int, LedgerEntry],
    found: Mapping[int, Content],
    on_replay_mismatch: str,
) -> dict[int, Slot]:
    """Return the slot of each partition of a batch that is committed in part, or not at all.

    Args:
        batch: its number or name.
        done: the entries that hold it, by slot.
        found: the content that each of its partitions has now, by number.
        on_replay_mismatch: "keep" to leave committed rows as they are. An entry that fits no
            partition then takes the place of the partition of its number.

    Raises:
        ReplayMismatchError: a committed entry has no partition with its rows.
    """
    committed = {number: (entry.rows, entry.digest) for number, entry in done.items()}
    # Partitions that kept their number go first, so that equal partitions are not swapped for
    # nothing.
    given = {part: part for part, content in found.items() if committed.get(part) == content}
    alike: dict[Content, list[int]] = defaultdict(list)
    # In reverse, because `pop` takes from the end: the lowest number gets the lowest slot.
    for part in sorted(found.keys() - given.keys(), reverse=True):
        alike[found[part]].append(part)
    unmatched = []
    for number in sorted(committed.keys() - set(given.values())):
        if alike[committed[number]]:
            given[alike[committed[number]].pop()] = number
        else:
            unmatched.append(number)
    # Before anything is written: one lost match means that the frame was cut otherwise, and rows
    # of the other partitions would be lost or doubled.
    if unmatched and on_replay_mismatch != "keep":
        raise ReplayMismatchError(_other_rows(batch, {n: done[n] for n in unmatched}, found))
    # Committed slots are filled before the free ones: with "keep" their rows stay as they are, and
    # some partition has to stand for each.
    _fill(given, found, unmatched)
    _fill(given, found, sorted(found.keys() - committed.keys()))
    others = {part: number for part, number in sorted(given.items()) if part != number}
    if others:
        _LOG.info("batch %s: slots by partition, where they differ: %s", batch, others)
    return {part: Slot(given[part], given[part] in done, found[part]) for part in sorted(found)}


def _fill(given: dict[int, int], partitions: Iterable[int], numbers: Iterable[int]) -> None:
    """Give slots to partitions that have none, the slot of their own number first."""
    left = [part for part in sorted(partitions) if part not in given]
    own = set(left) & set(numbers)
    given.update({number: number for number in own})
    others = [number for number in numbers if number not in own]
    # Not strict: there may be more partitions left than these slots, and the next call fills them.
    given.update(zip((part for part in left if part not in own), others, strict=False))


def _other_rows(
    batch: int | str, unmatched: Mapping[int, LedgerEntry], found: Mapping[int, Content]
) -> str:
    told = "; ".join(
        f"{entry.rows} rows (digest {entry.digest}) were committed as part {number}"
        for number, entry in unmatched.items()
    )
    rows = sum(rows for rows, _ in found.values())
    return (
        f"batch {batch} comes again with other rows. {told}; now there are {rows} rows in "
        f"{len(found)} partitions, and no partition has just those. {_WAYS_OUT}"
    )


def check_replay(
    batch_id: int, partition: int, entry: LedgerEntry, now: Content, on_replay_mismatch: str
) -> None:
    """Compare the committed rows of a partition with its rows of now.

    Args:
        batch_id: of the batch.
        partition: Spark's number of it.
        entry: of the committed rows.
        now: the content of the partition.
        on_replay_mismatch: "keep" to leave committed rows as they are.

    Raises:
        ReplayMismatchError: they differ, and that is not allowed.
    """
    if on_replay_mismatch != "keep" and now != (entry.rows, entry.digest):
        raise ReplayMismatchError(
            f"batch {batch_id} comes again with other rows. Partition {partition}: {entry.rows} "
            f"rows (digest {entry.digest}) were committed, now there are {now[0]} (digest "
            f"{now[1]}). {_WAYS_OUT}"
        )
