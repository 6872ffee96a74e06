"""The judge: what was claimed, held against what the logs say.

Why it exists: exactly once is a claim about what readers see, whatever happened on the way.
Owns: every check, under a name that reports and the table of mutants use. Must not know: how the
applications went about it, the core's state machine; it looks at futures, callbacks, memory, logs
and offsets only.

    committed    a transaction reported committed is there once, whole, in order, on every
                 partition and in the offsets
    aborted      nothing of a transaction that was not committed is visible
    unknown      one whose outcome is unknown is there whole, or not at all
    order        a producer's transactions lie in the log in the order in which they were made
    offsets      a group's offsets are those of the committed transactions, in their order
    fenced       nothing of an older producer is appended once a newer one has its identity
    acknowledged every record acknowledged lies at the offset that was told, once
    duplicated   no record is twice in a log under an idempotent producer
    told         commit succeeds only if every record did; callbacks come once each, in order
    expired      once everything has healed, no record expires for lack of progress
    memory       a closed producer has given back all of its buffer memory
    open         in the end no transaction is open, no offset pending
    reader       what a consumer has read stays true
    state        no call is refused with an illegal state; the sender never poisons the producer
    numbers, again  see `wire_rules`
    hangs, spins    see `simulator` and `process`
    crash        the core raises nothing that it does not promise
    logged       the core logs no exception
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING

from txnproducer._core.results import FutureRecordMetadata
from txnproducer.errors import IllegalStateError, KafkaError, KafkaTimeoutError
from txnproducer.records import TopicPartition
from txnproducer.sim.history import Attempt, SentRecord

if TYPE_CHECKING:
    from txnproducer.sim.process import Process
    from txnproducer.sim.simulator import Simulator


# In so long a time a record that is refused a few times is delivered.
_LONG_ENOUGH_MS = 10_000


class Checkers:
    """See the module.

    Args:
        simulator: whose run is judged.
    """

    def __init__(self, simulator: Simulator) -> None:
        self._simulator = simulator
        self._history = simulator.history
        self._read: dict[TopicPartition, list[tuple[int, int, int]]] = defaultdict(list)
        self._read_up_to: Counter[TopicPartition] = Counter()

    # --- while it runs --------------------------------------------------------------------------

    def refused(self, process: Process, call: str, error: KafkaError) -> None:
        """Look at why a call failed."""
        cause = error.__cause__
        if isinstance(error, IllegalStateError) or isinstance(cause, IllegalStateError):
            self._history.violate("state", f"{process.name}: {call}: {error} ({cause})")

    def committed(self, process: Process, attempt: Attempt) -> None:
        """Look at the records at the moment at which the commit returns."""
        for record in attempt.records:
            future = record.future
            if future is None or not future.done() or future.error is not None:
                self._history.violate(
                    "told",
                    f"{process.name}: {attempt.name} committed with {record.value!r}: {future}",
                )

    def plain_ended(self, process: Process, attempt: Attempt) -> None:
        """Look at an idempotent producer's records after a flush."""
        for record in attempt.records:
            if record.future is not None and not record.future.done():
                self._history.violate("hangs", f"{process.name}: {record.value!r} after flush")

    def closed(self, process: Process) -> None:
        """Look at what a closed producer leaves behind."""
        metrics = process.core.metrics()
        if metrics["buffer-available-bytes"] != metrics["buffer-total-bytes"]:
            self._history.violate("memory", f"{process.name}: {metrics}")
        for attempt in self._history.attempts:
            if (attempt.owner_process, attempt.incarnation) != (process.name, process.incarnation):
                continue
            for record in attempt.records:
                if record.future is not None and not record.future.done():
                    self._history.violate("hangs", f"{record.value!r} has no end after close")

    def poisoned(self, process: Process) -> None:
        """Look whether the sender met an illegal state."""
        error = process.last_error
        if isinstance(error, IllegalStateError):
            self._history.violate("state", f"{process.name} is poisoned: {error}")

    def consume(self) -> None:
        """Read on as a read_committed consumer does, in every partition."""
        for place, log in self._simulator.cluster.logs.items():
            start = self._read_up_to[place]
            for entry in log.visible_entries(read_committed=True, from_offset=start):
                end = entry.base_offset + entry.record_count
                self._read[place].append((entry.base_offset, end, entry.producer_id))
                start = end
            self._read_up_to[place] = max(start, log.last_stable_offset)

    # --- in the end -----------------------------------------------------------------------------

    def finish(self) -> None:
        """Judge the whole run."""
        visible, everything = self._index()
        outcomes = {a.name: self._judge(a, visible) for a in self._history.attempts if a.owner}
        self._check_order(visible)
        self._check_offsets(outcomes)
        self._check_plain(everything)
        self._check_duplicates(everything)
        self._check_told(everything)
        self._check_progress()
        self._check_fences()
        self._check_nothing_open()
        self._check_readers()

    def _index(self) -> tuple[dict[bytes, list[_Found]], dict[bytes, list[_Found]]]:
        visible: dict[bytes, list[_Found]] = defaultdict(list)
        everything: dict[bytes, list[_Found]] = defaultdict(list)
        for place, log in self._simulator.cluster.logs.items():
            for entry in log.visible_entries(read_committed=False):
                is_visible = not entry.is_transactional or log.is_committed(entry)
                for record in entry.batch or ():
                    found = (place, entry.base_offset + record.offset_delta)
                    value = record.value or b""
                    everything[value].append(found)
                    if is_visible:
                        visible[value].append(found)
        return visible, everything

    def _judge(self, attempt: Attempt, visible: dict[bytes, list[_Found]]) -> bool | None:
        """Judge one transaction; return whether it is visible, None where nothing shows it."""
        found = [visible.get(record.value, ()) for record in attempt.records]
        there = sum(1 for places in found if places)
        claim = attempt.final_claim
        if claim == "aborted":
            if there:
                self._history.violate(
                    "aborted", f"{attempt.name}: {there} of {len(found)} records are visible"
                )
            return False
        if claim == "committed" and there < len(found):
            self._history.violate(
                "committed", f"{attempt.name}: {there} of {len(found)} records are visible"
            )
        elif claim == "unknown" and 0 < there < len(found):
            self._history.violate(
                "unknown", f"{attempt.name} is torn: {there} of {len(found)} records are visible"
            )
        if there:
            self._check_whole(attempt, found)
        if claim == "committed":
            return True
        return bool(there) if found else None

    def _check_whole(self, attempt: Attempt, found: Iterable[Iterable[_Found]]) -> None:
        last: dict[TopicPartition, int] = {}
        for record, places in zip(attempt.records, found, strict=True):
            offsets = list(places)
            if len(offsets) > 1:
                self._history.violate(
                    "committed", f"{record.value!r} is visible {len(offsets)} times: {offsets}"
                )
            for place, offset in offsets:
                if place != record.place or offset <= last.get(place, -1):
                    self._history.violate(
                        "committed", f"{record.value!r} out of place: {place} {offset}"
                    )
                last[place] = offset

    def _check_order(self, visible: dict[bytes, list[_Found]]) -> None:
        last: dict[tuple[str, TopicPartition], tuple[int, str]] = {}
        attempts = sorted(
            (a for a in self._history.attempts if a.owner),
            key=lambda a: (
                a.owner,
                a.identity.producer_id,
                a.identity.producer_epoch,
                a.number,
            ),
        )
        for attempt in attempts:
            for record in attempt.records:
                for place, offset in visible.get(record.value, ()):
                    key = (attempt.owner or "", place)
                    before, name = last.get(key, (-1, ""))
                    if offset < before and name != attempt.name:
                        self._history.violate(
                            "order", f"{attempt.name} lies before {name} in {place}"
                        )
                    last[key] = (max(before, offset), attempt.name)

    def _check_offsets(self, outcomes: dict[str, bool | None]) -> None:
        by_offset = {a.offset: a for a in self._history.attempts if a.group_id is not None}
        seen: dict[str, int] = {}
        committed: Counter[str] = Counter()
        for group_id, _, offset in self._simulator.cluster.offsets_history():
            attempt = by_offset[offset.offset]
            committed[attempt.name] += 1
            if outcomes[attempt.name] is False:
                self._history.violate(
                    "offsets", f"{attempt.name} is {attempt.final_claim}, its offsets committed"
                )
            if offset.offset < seen.get(group_id, -1):
                self._history.violate("offsets", f"{group_id} goes back to {attempt.name}")
            seen[group_id] = offset.offset
        for attempt in by_offset.values():
            if outcomes[attempt.name] and attempt.are_offsets_sent and not committed[attempt.name]:
                self._history.violate("offsets", f"{attempt.name}: no offsets committed")
            if committed[attempt.name] > 1:
                self._history.violate("offsets", f"{attempt.name}: committed twice")

    def _check_plain(self, everything: dict[bytes, list[_Found]]) -> None:
        for attempt in self._history.attempts:
            if attempt.owner is not None or not attempt.is_idempotent:
                continue
            last: dict[TopicPartition, int] = {}
            for record in attempt.records:
                future = record.future
                found = everything.get(record.value, [])
                if future is None or not future.done() or future.error is not None:
                    continue
                if len(found) != 1:
                    self._history.violate(
                        "acknowledged", f"{record.value!r} is there {len(found)} times"
                    )
                for place, offset in found:
                    if offset <= last.get(place, -1):
                        self._history.violate("order", f"{record.value!r} at {offset} in {place}")
                    last[place] = offset

    def _check_duplicates(self, everything: dict[bytes, list[_Found]]) -> None:
        for attempt in self._history.attempts:
            if not attempt.is_idempotent:
                continue
            for record in attempt.records:
                found = everything.get(record.value, ())
                if len(found) > 1:
                    self._history.violate("duplicated", f"{record.value!r}: {found}")

    def _check_told(self, everything: dict[bytes, list[_Found]]) -> None:
        for attempt in self._history.attempts:
            last: dict[TopicPartition, int] = {}
            for record in attempt.records:
                future = record.future
                if future is None or not future.done():
                    continue
                if not attempt.is_crashed and len(record.deliveries) != 1:
                    self._history.violate(
                        "told", f"{record.value!r}: {len(record.deliveries)} callbacks"
                    )
                if future.error is None and attempt.is_idempotent:
                    self._check_offset(record, future, everything, last)

    def _check_progress(self) -> None:
        if int(self._simulator.options.settings["delivery_timeout_ms"]) < _LONG_ENOUGH_MS:
            return
        for attempt in self._history.attempts[self._simulator.healed_at :]:
            for record in attempt.records:
                future = record.future
                if record.waited_in_vain or future is None or not future.done():
                    continue
                if type(future.error) is KafkaTimeoutError:
                    self._history.violate("expired", f"{record.value!r}: {future.error}")

    def _check_offset(
        self,
        record: SentRecord,
        future: FutureRecordMetadata,
        everything: dict[bytes, list[_Found]],
        last: dict[TopicPartition, int],
    ) -> None:
        told = future.metadata().offset
        if told == -1:
            return  # a duplicate that the broker no longer knew the offset of
        if (record.place, told) not in everything.get(record.value, ()):
            found = everything.get(record.value)
            self._history.violate("acknowledged", f"{record.value!r} at {told}, but is {found}")
        if told <= last.get(record.place, -1):
            self._history.violate("told", f"{record.value!r} out of order at {told}")
        last[record.place] = told

    def _check_fences(self) -> None:
        logs = self._simulator.cluster.logs
        for fence in self._history.fences:
            for place, end in fence.log_end_offsets.items():
                for entry in logs[place].entries_from(end):
                    is_older = entry.producer_epoch < fence.producer_epoch
                    if entry.batch is None or entry.producer_id != fence.producer_id:
                        continue
                    if is_older:
                        self._history.violate(
                            "fenced", f"{fence.owner}: {entry} after epoch {fence.producer_epoch}"
                        )

    def _check_nothing_open(self) -> None:
        cluster = self._simulator.cluster
        if cluster.open_transactions:
            self._history.violate("open", f"transactions: {cluster.open_transactions}")
        for place, log in cluster.logs.items():
            if log.last_stable_offset != log.log_end_offset:
                self._history.violate(
                    "open", f"{place}: {log.last_stable_offset} of {log.log_end_offset} stable"
                )
        if cluster.has_pending_offsets:
            self._history.violate("open", "offsets are pending")

    def _check_readers(self) -> None:
        for place, read in self._read.items():
            log = self._simulator.cluster.logs[place]
            final = [
                (e.base_offset, e.base_offset + e.record_count, e.producer_id)
                for e in log.visible_entries(read_committed=True)
            ]
            if final[: len(read)] != read:
                self._history.violate("reader", f"{place}: a consumer has read what is not there")


_Found = tuple[TopicPartition, int]
