"""The judge of the logs: the applications' claims, compared with the logs at the end of a run.

Owns: whether each transaction and each record is visible, and whether this agrees with the claims.
Must not know: the core, the faults, the way in which a transaction ended. The names of the checks
are those of `checkers`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from txnproducer._broker.cluster import BrokerCluster
from txnproducer._broker.topics import Life
from txnproducer._core.batches.results import FutureRecordMetadata
from txnproducer._record import DecodedRecord
from txnproducer.errors import OutOfOrderSequenceError
from txnproducer.records import TopicPartition
from txnproducer.sim.world.history import Attempt, History, SentRecord, SentRows

_Found: TypeAlias = tuple[Life, int]


class LogJudge:
    """Compares the history of a run with the logs.

    Args:
        history: the claims of applications; takes violations.
        cluster: has the logs and the groups' offsets.
    """

    def __init__(self, history: History, cluster: BrokerCluster) -> None:
        self._history = history
        self._cluster = cluster
        self._batches: dict[tuple[Life, int], list[SentRecord]] = defaultdict(list)
        # Values of undecided records in deleted topics: their outcome cannot be seen any more.
        self._gone: set[bytes] = set()

    def judge(self) -> dict[str, bool | None]:
        """Judge every transaction and every record.

        Returns:
            Whether each transaction is visible, by its name; None if nothing shows it.
        """
        visible, everything = self._index()
        # Before the offsets: whether they may be committed depends on the outcome.
        outcomes = {a.name: self._judge(a, visible) for a in self._history.attempts if a.owner}
        self._check_order(visible)
        self._check_offsets(outcomes)
        self._check_plain(everything)
        self._check_duplicates(everything)
        self._check_told(everything)
        self._check_callback_order()
        return outcomes

    def _index(self) -> tuple[dict[bytes, list[_Found]], dict[bytes, list[_Found]]]:
        visible: dict[bytes, list[_Found]] = defaultdict(list)
        everything: dict[bytes, list[_Found]] = defaultdict(list)
        sent = {
            record.value: record
            for a in self._history.attempts
            # The application has no future of an interrupted record, but it may be in the log.
            for record in (*a.records, *a.interrupted)
        }
        # A batch may be written and found too large when it is sent again. Its parts then end in
        # any order without idempotence. With idempotence, parts in doubt do so at the next epoch.
        unordered = {
            r.value
            for a in self._history.attempts
            for r in a.records
            if not a.is_idempotent or (a.owner is None and _is_out_of_order(r))
        }
        for life, log in self._cluster.topology.all_logs().items():
            place, is_deleted = life.place, life != self._cluster.topology.life(life.place)
            for entry in log.visible_entries(read_committed=False):
                is_visible = not entry.is_transactional or log.is_committed(entry)
                # The topic was deleted before a marker arrived, so nothing shows any more how it
                # ended.
                is_undecided = is_deleted and entry.base_offset >= log.last_stable_offset
                last = -1
                for record in entry.batch or ():
                    found = (life, entry.base_offset + record.offset_delta)
                    value = record.value or b""
                    known = sent.get(value)
                    if known is None:
                        self._history.violate("content", f"{value!r} in {place}: nobody sent it")
                    else:
                        self._batches[life, entry.base_offset].append(known)
                        self._check_content(known, found, record)
                        # A crash left a record without a callback (-1), which is not an early
                        # callback.
                        is_early = 0 <= known.delivered_as < last and value not in unordered
                        if known.is_watched and is_early:
                            self._history.violate("told", f"{value!r}: called back too early")
                        last = max(last, known.delivered_as)
                    everything[value].append(found)
                    if is_visible:
                        visible[value].append(found)
                    elif is_undecided:
                        self._gone.add(value)
        return visible, everything

    def _check_content(self, sent: SentRecord, where: _Found, found: DecodedRecord) -> None:
        (place, _), offset = where
        is_ours = place.topic not in self._cluster.options.log_append_time
        timestamp_ms = sent.timestamp_ms if is_ours else found.timestamp_ms
        is_same = (found.key, found.headers, found.timestamp_ms) == (
            sent.key,
            sent.headers,
            timestamp_ms,
        )
        if not is_same or sent.partition not in (None, place.partition):
            self._history.violate("content", f"{sent.value!r} is {found} in {place}")
        # An offset does not tell in which life of a recreated topic the record lies.
        is_told = sent.future is not None and not self._cluster.topology.generations[place.topic]
        told = sent.future.metadata() if sent.future is not None and is_told else None
        if told is not None and told.offset == offset and told.timestamp_ms != timestamp_ms:
            self._history.violate("told", f"{sent.value!r} of {timestamp_ms} is said to be {told}")

    def _judge(self, attempt: Attempt, visible: dict[bytes, list[_Found]]) -> bool | None:
        """Judge one transaction. Return whether it is visible, or None if nothing shows it."""
        found = [visible.get(record.value, ()) for record in attempt.records]
        there = sum(1 for places in found if places)
        gone = sum(
            1
            for record, places in zip(attempt.records, found, strict=True)
            if not places and record.value in self._gone
        )
        claim = attempt.final_claim
        if claim == "aborted":
            # These count only against the claim: none of them has to be there.
            there += sum(1 for record in attempt.interrupted if visible.get(record.value))
            if there:
                self._history.violate(
                    "aborted", f"{attempt.name}: {there} of {len(found)} records are visible"
                )
            return False
        if claim == "committed" and there + gone < len(found):
            self._history.violate(
                "committed", f"{attempt.name}: {there} of {len(found)} records are visible"
            )
        # Records that are gone may have been visible, so they prove neither half.
        elif claim == "unknown" and 0 < there < len(found) - gone:
            self._history.violate(
                "unknown", f"{attempt.name} is torn: {there} of {len(found)} records are visible"
            )
        if there:
            self._check_whole(attempt, found)
        self._check_interrupted(attempt, visible)
        if claim == "committed":
            return True
        return bool(there) if len(found) > gone else None

    def _check_whole(self, attempt: Attempt, found: Iterable[Iterable[_Found]]) -> None:
        last: dict[Life, int] = {}
        for record, places in zip(attempt.records, found, strict=True):
            offsets = list(places)
            if _is_twice(offsets):
                self._history.violate(
                    "committed", f"{record.value!r} is visible {len(offsets)} times: {offsets}"
                )
            for life, offset in offsets:
                # Order holds within one life of a partition: a recreated topic begins at 0.
                if life.place != record.place or offset <= last.get(life, -1):
                    self._history.violate(
                        "committed", f"{record.value!r} out of place: {life} {offset}"
                    )
                last[life] = offset

    def _check_interrupted(self, attempt: Attempt, visible: dict[bytes, list[_Found]]) -> None:
        """Check that records with an interrupted call are visible if their transaction is."""
        for record in attempt.interrupted:
            found = visible.get(record.value, ())
            is_missing = bool(record.is_sent) and not found and record.value not in self._gone
            if found and record.is_sent is False:
                self._history.violate("interrupted", f"{record.value!r} was never sent: {found}")
            # Only a commit promises that all of its records are in.
            elif attempt.final_claim == "committed" and is_missing:
                self._history.violate("interrupted", f"{attempt.name}: {record.value!r} is lost")
            elif _is_twice(found):
                self._history.violate("interrupted", f"{record.value!r} is there: {found}")

    def _check_order(self, visible: dict[bytes, list[_Found]]) -> None:
        last: dict[tuple[str, Life], tuple[int, str]] = {}
        attempts = sorted(
            (a for a in self._history.attempts if a.owner),
            key=lambda a: (
                a.owner,
                # By identity and not by the time of the begin: a paused process may begin under an
                # old one.
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
                    # Within one transaction, `_check_whole` compares.
                    if offset < before and name != attempt.name:
                        self._history.violate(
                            "order", f"{attempt.name} lies before {name} in {place}"
                        )
                    last[key] = (max(before, offset), attempt.name)

    def _check_offsets(self, outcomes: dict[str, bool | None]) -> None:
        by_offset = {
            offset: attempt
            for attempt in self._history.attempts
            if attempt.group_id is not None
            # Earlier offsets are known here only to be told as wrong: the last ones must win.
            for offset in (*attempt.earlier_offsets, attempt.offset)
        }
        seen: dict[tuple[str, TopicPartition], int] = {}
        repeats: Counter[tuple[str, TopicPartition]] = Counter()
        committed: dict[str, Counter[TopicPartition]] = defaultdict(Counter)
        for group_id, place, offset in self._cluster.offsets_history():
            attempt = by_offset[offset.offset]
            is_repeated = offset.offset == seen.get((group_id, place))
            repeats[attempt.name, place] += is_repeated
            if not is_repeated or repeats[attempt.name, place] > self._most_repeats(attempt):
                committed[attempt.name][place] += 1
            if offset.metadata != attempt.name or offset.offset != attempt.offset:
                self._history.violate("offsets", f"{attempt.name}: {offset} committed")
            if outcomes[attempt.name] is False:
                self._history.violate(
                    "offsets", f"{attempt.name} is {attempt.final_claim}, its offsets committed"
                )
            # Offsets are numbered over the whole run, so an earlier one would send the group back.
            if offset.offset < seen.get((group_id, place), -1):
                self._history.violate("offsets", f"{group_id} goes back to {attempt.name}")
            seen[group_id, place] = offset.offset
        for attempt in {attempt.name: attempt for attempt in by_offset.values()}.values():
            times = committed[attempt.name]
            missing = [place for place in attempt.offset_places if not times[place]]
            is_lost = self._cluster.has_lost_offsets(attempt.group_id or "")
            is_committed = bool(outcomes[attempt.name] or times)
            if is_committed and attempt.are_offsets_sent and missing and not is_lost:
                # (No client can prevent that brokers before 4.0 lose pending offsets.)
                self._history.violate("offsets", f"{attempt.name}: none committed of {missing}")
            if times and max(times.values()) > 1:
                self._history.violate("offsets", f"{attempt.name}: committed twice: {times}")

    def _most_repeats(self, attempt: Attempt) -> int:
        """Return how often a transaction's offsets may be committed again, in a row (v1).

        A late request of the transaction can arrive after the commit with the lost answer and
        begin another transaction. The repeated commit then ends that one. After the commit has
        returned, only a commit that arrives late itself can do so. No client can know this, and
        for the group it makes no difference.
        """
        if self._cluster.options.transaction_version != 1:
            return 0
        owner = attempt.owner or ""
        late = self._history.late[owner]
        if attempt.late_by_end is None:
            return late - attempt.late_before
        late_commits = self._history.late_commits[owner] - attempt.late_commits_by_end
        begun_by_end = attempt.late_by_end - attempt.late_before
        return begun_by_end + min(late - attempt.late_by_end, late_commits)

    def _check_plain(self, everything: dict[bytes, list[_Found]]) -> None:
        for attempt in self._history.attempts:
            # With acks=0 a success says only that the record was sent.
            if attempt.owner is not None or not attempt.is_acknowledged:
                continue
            last: dict[Life, int] = {}
            for record in attempt.records:
                future = record.future
                found = everything.get(record.value, [])
                if future is None or not future.done() or future.error is not None:
                    continue
                # Without idempotence, a batch whose answer was lost may be written twice.
                if not found or (attempt.is_idempotent and _is_twice(found)):
                    self._history.violate(
                        "acknowledged", f"{record.value!r} is there {len(found)} times"
                    )
                if not attempt.is_idempotent:
                    continue
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
                if _is_twice(found):
                    self._history.violate("duplicated", f"{record.value!r}: {found}")

    def _check_told(self, everything: dict[bytes, list[_Found]]) -> None:
        for attempt in self._history.attempts:
            for record in attempt.records:
                future = record.future
                if future is None or not future.done():
                    continue
                # A crashed process has not run its callbacks.
                if not attempt.is_crashed:
                    self._check_callback(record, future)
                if future.error is None and attempt.is_idempotent:
                    self._check_offset(record, future, everything)
            for sent in attempt.calls:
                self._check_call(attempt, sent)

    def _check_call(self, attempt: Attempt, sent: SentRows) -> None:
        """Check that the future of a call with many rows agrees with the futures of the rows."""
        if not sent.future.done():
            return
        futures = {row: r.future for row, r in sent.records.items() if r.future is not None}
        errors = {row: future.error for row, future in futures.items() if future.error is not None}
        told = sent.future.errors()
        # By their texts, since two errors are never equal.
        if {row: repr(e) for row, e in told.items()} != {
            row: repr(e) for row, e in errors.items()
        }:
            self._history.violate("told", f"{attempt.name}: rows failed {told}, and are {errors}")
        if errors:
            return
        found = sent.future.result(0)
        for row, future in futures.items():
            own, metadata = future.metadata(), found[row]
            if (own.partition, own.offset) != (metadata.partition, metadata.offset):
                self._history.violate("told", f"{attempt.name}: row {row} at {own}, {metadata}")
        if len(found[:]) != len(sent.future) or sent.future.taken_count != len(sent.records):
            self._history.violate("told", f"{attempt.name}: {found}, {len(sent.records)} rows")

    def _check_callback_order(self) -> None:
        """Check that a partition's batches were called back in the order of their answers."""
        for answers in self._history.told.values():
            last: dict[TopicPartition, int] = {}
            for place, offset in answers:
                if self._cluster.topology.generations[place.topic]:
                    continue  # the offset does not show in which life of the topic it was
                life = self._cluster.topology.life(place)
                for record in self._batches.get((life, offset), ()):
                    future = record.future
                    is_told = record.deliveries and future is not None and future.error is None
                    if not is_told:
                        continue
                    if record.delivered_as < last.get(place, -1):
                        self._history.violate("told", f"{record.value!r}: called back too late")
                    last[place] = max(last.get(place, -1), record.delivered_as)

    def _check_callback(self, record: SentRecord, future: FutureRecordMetadata) -> None:
        told = record.deliveries
        if not record.is_watched:
            return
        if len(told) != 1:
            self._history.violate("told", f"{record.value!r}: {len(told)} callbacks")
            return
        ((metadata, error),) = told
        is_same = repr(error) == repr(future.error)
        if not is_same or (error is None and metadata != future.metadata()):
            self._history.violate(
                "told", f"{record.value!r}: the callback got {told[0]}, the future {future}"
            )

    def _check_offset(
        self,
        record: SentRecord,
        future: FutureRecordMetadata,
        everything: dict[bytes, list[_Found]],
    ) -> None:
        told = future.metadata().offset
        found = everything.get(record.value, ())
        if not any((life.place, offset) == (record.place, told) for life, offset in found):
            self._history.violate("acknowledged", f"{record.value!r} at {told}, but is {found}")


def _is_twice(found: Sequence[_Found]) -> bool:
    """Return whether a record is twice in one life of a partition.

    (A batch with a lost answer may be sent again to a topic that was deleted and created again.)
    """
    return len(found) > len({life for life, _ in found})


def _is_out_of_order(record: SentRecord) -> bool:
    return any(isinstance(error, OutOfOrderSequenceError) for _, error in record.deliveries)
