"""The ledger of a sink in a topic of its own: records that do not expire.

Why it exists: brokers forget offsets after seven days, so that a weekly job would find no ledger,
and monitoring takes a ledger's groups for consumers that lag.

Owns: keys and values of the records, a durable format, and the move from offsets to the topic.
Must not know: what an entry means, how a topic is read (`topic_log.py`).

A record's key is the end of the transactional id (`plan`, `batch`, `p0`; `p0.run` for a part of a
named run), `decision`, or `run:` and the name of a run. Its value is the entry's own JSON, with
its number and the sink id. It is written in the transaction of the rows, as an offset is. A
decision is one record, of whatever size.

Rules:
* A topic keeps the ledger of one sink, since keys do not name it. A record of another sink is
  refused, never taken for an entry of this one. Records of earlier versions name no sink.
* Until the record `moved` is there, the groups are read as well, and the higher number counts. The
  groups go first: an entry that moves between the two questions is then found in the topic.
* An entry moves when its id is held: nobody else can write it then. So all ids have moved when a
  run has taken them.
* Tasks read no groups: the driver has taken all ids before they start.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from heapq import nlargest
from typing import Any, Final, Self

from txnproducer._shell.record_writer import RecordWriter
from txnproducer.admin import LogRecord
from txnproducer.ledger.topic_log import LogState, Snapshot, Stored, TopicLog, log_of
from txnproducer.producer import TransactionalProducer
from txnproducer.records import ConsumerGroupMetadata, OffsetAndMetadata
from txnproducer.spark.errors import LedgerError
from txnproducer.spark.ledger.decisions import Decision, parse_one
from txnproducer.spark.ledger.entries import (
    PREPARED_FORMAT,
    UNREADABLE,
    Found,
    LedgerEntry,
    no_entry,
    other_format,
)
from txnproducer.spark.ledger.move import mark_of, refuse_moved, topic_of
from txnproducer.spark.ledger.store import TIMEOUT_S, Ledger, LedgerView, ask_kept

# Goes up with a change that an older version must not ignore: that version refuses the record.
_FORMAT: Final = 1
_FORMATS: Final = (_FORMAT, PREPARED_FORMAT)
_MOVED: Final = "moved"
_DECISION: Final = "decision"
RUN_PREFIX: Final = "run:"
PART_SUFFIX: Final = ".run"
_UNREADABLE: Final = (
    "The sink does not write without its ledger, and another attempt finds the same. Ways out: if "
    "a broker's disk is damaged, let a whole replica become the leader; if another program writes "
    "to the topic, stop it, since only this sink may. If the entry cannot be saved, delete the "
    "topic: the sink makes it again, knows none of its batches, and asks for "
    'on_missing_ledger="write" for one start, which writes the coming batch in any case'
)


@dataclass(frozen=True)
class TopicLedger(Ledger):
    """The ledger of one sink, in a topic.

    Attributes:
        log: the topic, of one partition.
        keeps_days: for how many days named runs are kept.
        known: what the driver has read, for its tasks; None on the driver.
    """

    log: str = ""
    keeps_days: int = 400
    known: Snapshot | None = field(default=None, repr=False)

    # --- reading --------------------------------------------------------------------------------

    def known_partitions(self) -> list[int]:
        """Return the partitions that have an entry, in order."""
        state = self._state()
        ends = (key.removeprefix("p") for key, one in state.found.items() if one.value is not None)
        there = {int(end) for end in ends if end.isdecimal()}
        if not self._has_moved(state):
            there.update(super().known_partitions())
        return sorted(there)

    def look(
        self,
        partitions: Iterable[int] = (),
        *,
        asks_for_plan: bool = True,
        waits_for_undecided: bool = True,
    ) -> LedgerView:
        """See `Ledger.look`; with the named run that was committed last."""
        view = super().look(
            partitions, asks_for_plan=asks_for_plan, waits_for_undecided=waits_for_undecided
        )
        # As the look has just read it: all that is asked is who uses the sink, and how.
        runs, _ = self.newest_runs(1)
        return replace(view, run=runs[0] if runs else None)

    def newest_runs(self, most: int) -> tuple[list[LedgerEntry], int]:
        """See `Ledger`."""
        found = self.as_read()
        runs = [key for key in found if key.startswith(RUN_PREFIX) and found[key].value]
        newest = nlargest(most, runs, key=lambda key: found[key].offset)
        return [self.parsed_entry(key, found[key]) for key in newest], len(runs) - len(newest)

    def _committed(
        self,
        groups: Iterable[str],
        *,
        waits_for_undecided: bool,
        timeout_s: float = TIMEOUT_S,
    ) -> dict[str, Found]:
        keys = {self._key(group): group for group in groups}
        offsets: dict[str, OffsetAndMetadata] = {}
        if not self._has_moved(self._state()):
            offsets = self._offsets(
                keys.values(), waits_for_undecided=waits_for_undecided, timeout_s=timeout_s
            )
            refuse_moved(self.sink_id, offsets, self.log)
        state = self._state(keys, waits_for_undecided=waits_for_undecided, timeout_s=timeout_s)
        found = {}
        for key, group in keys.items():
            record, offset = self._record(state.found.get(key), key), offsets.get(group)
            if offset is not None and _counts(offset, record):
                found[group] = self._found(group, offset)
            elif record is not None:
                found[group] = record
        return found

    def stored(
        self, keys: Iterable[str] | None = None, *, waits_for_undecided: bool = True
    ) -> dict[str, Stored]:
        """Return the last committed records of keys, or of all. Deleted ones are left out."""
        wanted = None if keys is None else list(keys)
        state = self._state(wanted or (), waits_for_undecided=waits_for_undecided)
        return {
            key: one
            for key, one in state.found.items()
            if one.value is not None and (wanted is None or key in wanted)
        }

    def as_read(self) -> Mapping[str, Stored]:
        """Return the last committed records as they were read, without a question."""
        return self._reader().snapshot().found

    def parsed_entry(self, key: str, one: Stored) -> LedgerEntry:
        """Return the entry of a named run, or of a part of one.

        Raises:
            LedgerError: the record is none of a ledger, or of a newer version.
        """
        found = self._record(one, key)
        if found is None:
            raise LedgerError(f"the key {key!r} of the topic {self.log} was deleted")
        entry = LedgerEntry.parse(*found)
        # A part's key has no name.
        is_run = key.startswith(RUN_PREFIX)
        return replace(entry, run_id=key.removeprefix(RUN_PREFIX)) if is_run else entry

    def _record(self, one: Stored | None, key: str) -> Found | None:
        if one is None or one.value is None:
            return None
        place = f"partition 0 of the topic {self.log}, offset {one.offset}, key {key!r},"
        try:
            fields = json.loads(one.value)
            number, version = fields.pop("number"), fields["v"]
            owner = fields.pop("sink", self.sink_id)
            if owner != self.sink_id:
                raise self._of_another_sink(place, owner)
            if version in _FORMATS:
                if not isinstance(number, int):
                    raise TypeError(f"its number is {number!r:.50}")
                text = json.dumps(fields, separators=(",", ":"))
                return Found(place, OffsetAndMetadata(number, text))
        except UNREADABLE as error:
            raise no_entry(place, "entry", error, one.value) from error
        raise other_format(place, "entry", version, _FORMATS)

    def _of_another_sink(self, place: str, owner: Any) -> LedgerError:
        return LedgerError(
            f"{place} belongs to the sink {owner!r:.300}, and this sink is {self.sink_id!r}: a "
            "topic keeps the ledger of one sink. Nothing was written. Ways out: a topic of this "
            'sink\'s own, ledger="topic" or ledger="topic:NAME"; or that sink id, if it is the '
            "same sink"
        )

    def read_decision(self) -> Decision | None:
        """See `Ledger`. Until the ledger has moved, the higher of two decisions counts."""
        before = super().read_decision()
        state = self._state([_DECISION], waits_for_undecided=True)
        record = self._record(state.found.get(_DECISION), _DECISION)
        if record is None:
            return before
        found = parse_one(record)
        return before if before is not None and before.number > found.number else found

    def _state(
        self,
        keys: Iterable[str] = (),
        *,
        waits_for_undecided: bool = False,
        timeout_s: float = TIMEOUT_S,
    ) -> LogState:
        return self._reader().read(
            list(keys),
            ask_kept,
            self.security,
            timeout_s,
            waits_for_undecided=waits_for_undecided,
        )

    def _reader(self) -> TopicLog:
        log = log_of(self.bootstrap_servers, self.log, unreadable)
        if self.known is not None:
            log.go_on_from(self.known)
        return log

    # --- writing --------------------------------------------------------------------------------

    @property
    def records_topic(self) -> str:
        """See `Ledger`."""
        return self.log

    def needed_topics(self) -> dict[str, list[str]]:
        """See `Ledger`."""
        # The marks are offsets of the other one.
        return {self.topic: ["READ"], self.log: ["READ", "WRITE"]}

    @property
    def expires(self) -> bool:
        """See `Ledger`."""
        return False

    @property
    def own_claims(self) -> int:
        """See `Ledger`: while a transaction is leased, its holder writes no records itself."""
        return 1

    def write_decision(self, producer: TransactionalProducer, decision: Decision) -> None:
        """See `Ledger`. The decision is one record."""
        self.write_record(producer, _DECISION, decision.as_one())

    def write_record(self, writer: RecordWriter, key: str, stored: OffsetAndMetadata) -> None:
        """Add a record to the writer's open transaction."""
        fields = {"number": stored.offset, "sink": self.sink_id, **json.loads(stored.metadata)}
        text = json.dumps(fields, separators=(",", ":"))
        writer.send(self.log, text.encode(), key.encode(), partition=0)

    def delete_record(self, writer: RecordWriter, key: str) -> None:
        """Add the deletion of a key to the writer's open transaction."""
        writer.send(self.log, None, key.encode(), partition=0)

    def _write(self, writer: RecordWriter, group: str, stored: OffsetAndMetadata) -> None:
        self.write_record(writer, self._key(group), stored)
        # With every plan, so that the mark does not expire while the sink is in use.
        if group == self.plan_group and isinstance(writer, TransactionalProducer):
            self._mark(writer, group)

    def mark_whole(self, producer: TransactionalProducer) -> None:
        """See `Ledger`."""
        self._mark(producer, self.whole_group)

    def _mark(self, producer: TransactionalProducer, group: str) -> None:
        producer.send_offsets_to_transaction(
            {self.place: mark_of(self.log)}, ConsumerGroupMetadata(group)
        )

    def _key(self, group: str) -> str:
        return group.removeprefix(self.group_prefix)

    # --- the move -------------------------------------------------------------------------------

    def check_marks(self) -> None:
        """Check that no mark names another topic. Marks may have expired.

        Raises:
            LedgerError: one does.
        """
        groups = [self.plan_group, self.whole_group]
        refuse_moved(self.sink_id, self._offsets(groups, waits_for_undecided=False), self.log)

    @property
    def is_moving(self) -> bool:
        """Whether entries of some ids may still be in offsets."""
        if _MOVED in self._reader().snapshot([_MOVED]).found:
            return False  # for good, so the cluster need not be asked again
        return not self._has_moved(self._state())

    def move(self, producer: TransactionalProducer, group: str, *, is_last: bool = False) -> None:
        """Move the entry of an id that the producer holds, if it is still in its group.

        Args:
            producer: holds the id; no transaction is open.
            group: of the id.
            is_last: whether no other id of the sink is left.

        Raises:
            LedgerError: the entry has moved to another topic.
            KafkaError: the cluster refused, or did not answer.
        """
        if not self.is_moving:
            return
        offsets = self._offsets([group], waits_for_undecided=True)
        refuse_moved(self.sink_id, offsets, self.log)
        stored = offsets.get(group)
        is_there = stored is not None and topic_of(stored) is None
        # A partition that never wrote needs no mark: every version reads the plan first.
        is_marked = is_there or group in (self.plan_group, self.whole_group)
        if not (is_marked or is_last):
            return
        with producer.transaction():
            key = self._key(group)
            record = self._record(self._state([key], waits_for_undecided=True).found.get(key), key)
            if is_there and stored is not None and _counts(stored, record):
                self.write_record(producer, key, stored)
            if is_marked:
                self._mark(producer, group)
            if is_last:
                self.write_moved(producer)

    def write_moved(self, producer: TransactionalProducer) -> None:
        """Add to the producer's open transaction that no id has its entry in offsets any more."""
        self.write_record(producer, _MOVED, OffsetAndMetadata(0, json.dumps({"v": _FORMAT})))

    def _has_moved(self, state: LogState) -> bool:
        if self.known is not None:
            return True
        return self._record(state.found.get(_MOVED), _MOVED) is not None

    def read_so_far(self) -> Snapshot:
        """See `Ledger`. Named runs are left out: tasks of numbered batches never ask for them."""
        # Without a question: the driver has just looked at the ledger, and has all ids.
        known = self._reader().snapshot()
        found = {key: one for key, one in known.found.items() if not key.startswith(RUN_PREFIX)}
        return replace(known, found=found)

    def knowing(self, known: Snapshot | None) -> Self:
        """See `Ledger`."""
        return replace(self, known=known)


def unreadable(text: str) -> LedgerError:
    """Return the error of a ledger with bytes that cannot be read."""
    return LedgerError(f"{text}. {_UNREADABLE}")


def is_record_of_ledger(record: LogRecord) -> bool:
    """Return whether a record has the key and the value of a ledger's entry, of any format."""
    key = (record.key or b"").decode(errors="replace")
    is_key = key in (_MOVED, _DECISION, "plan", "batch") or key.startswith(RUN_PREFIX)
    number = key.removeprefix("p").removesuffix(PART_SUFFIX)
    if not (is_key or number.isdecimal() or key.startswith("plan.")):
        return False
    if record.value is None:  # a run that was forgotten
        return True
    try:
        fields = json.loads(record.value)
    except ValueError:
        return False
    return isinstance(fields, dict) and {"number", "v"} <= fields.keys()


def _counts(offset: OffsetAndMetadata, record: Found | None) -> bool:
    """Return whether an entry in offsets counts, and not the one in the topic that may be there.

    It is the one with the higher number.
    """
    if topic_of(offset) is not None:
        return False
    return record is None or offset.offset > record.stored.offset
