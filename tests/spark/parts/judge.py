"""The judge of a run: of each request to a broker, and of the rows that a reader sees.

Owns: the promises about prepared parts, as far as the model shows whether they are kept. Must not
know: the shipping code. It reads entries and decisions by itself, so that an error in the reading
cannot hide.

Judged at each request:
* a part is committed only with an entry of its own, and, unless its own commit decides, only if
  the decision that the entry names is committed and names the part;
* nobody aborts a part that is decided: not by EndTxn, and not by taking its id.

Judged at the end:
* a reader at read_committed sees each row of a batch that is done once, all of one evaluation;
* it sees all of a batch that is not done, or nothing, unless time ended a decided part of it;
* the batches of a query come in order in each Kafka partition;
* no transaction is open, and no offset undecided.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from tests.spark.parts.entries import PLAN as _PLAN
from tests.spark.parts.entries import RUN, batch_of, pending_records, read_decision
from tests.spark.parts.options import PLAN_GROUP, SINK, TOPIC
from tests.spark.parts.query import FINAL, Query
from tests.spark.parts.world import Part, World
from txnproducer._broker.transaction_metadata import TransactionalIdState
from txnproducer._protocol.messages import (
    EndTxnRequest,
    EndTxnResponse,
    FindCoordinatorRequest,
    InitProducerIdRequest,
    MetadataRequest,
    Request,
    Response,
)
from txnproducer.errors import ErrorCode
from txnproducer.records import OffsetAndMetadata, TopicPartition

_PART = f"{SINK}.p"
_IS_PART = re.compile(rf"{re.escape(_PART)}\d+").fullmatch
_QUESTIONS = MetadataRequest | FindCoordinatorRequest


class Judge:
    """The judge of a run.

    Args:
        world: where it takes place.
        queries: with their checkpoints.
    """

    def __init__(self, world: World, queries: list[Query]) -> None:
        self._world = world
        self._queries = queries
        # By part: the number of the decision and the batch.
        self._decided: dict[Part, tuple[int, str, int]] = {}
        self._committed: set[Part] = set()
        self._before: Part | None = None
        self._aborted: set[Part] = set()
        self._lost: set[Part] = set()
        # When each process last looked, if it has done nothing since; when it last planned.
        self._looked: dict[str, int] = {}
        self._planned: dict[str, int] = {}
        self._entries: dict[str, OffsetAndMetadata] = {}
        self._under_way: Mapping[tuple[str, TopicPartition], OffsetAndMetadata] = {}
        world.on_request = self.asked
        world.on_answered = self.answered
        world.on_look = self.looked

    # --- requests -------------------------------------------------------------------------------

    def asked(self, body: Request) -> None:
        """Note the state before a request takes effect."""
        self._before = None
        if isinstance(body, EndTxnRequest):
            self._under_way = self._pending(body.producer_id)
            self._before = self._open_part(body.transactional_id)
        elif isinstance(body, InitProducerIdRequest) and body.transactional_id is not None:
            self._before = self._open_part(body.transactional_id)

    def answered(self, body: Request, answer: Response) -> None:
        """Judge the effect of a request."""
        undone = self._world.undone
        if undone:  # until they are committed, or over
            undone[:] = [each for each in undone if self._open_part(each.name) == each]
        part, is_end = self._before, isinstance(body, EndTxnRequest)
        # A request that is repeated, or refused, changes nothing.
        if part is not None and self._open_part(part.name) != part:
            if isinstance(body, EndTxnRequest) and body.is_commit:
                self._committed.add(part)
                self._check_decided(part)
            else:
                self._note_abort(part, body, is_excused=not is_end and self._is_after_a_look())
        if _ends_plan(body, answer) and self._under_way:
            self._note_decision()
        self._note_look(body, answer)

    def _note_abort(self, part: Part, body: Request, *, is_excused: bool) -> None:
        # With v1 a late request can open the next transaction under the epoch of one that is over.
        if part in self._committed:
            return
        (self._lost if is_excused else self._aborted).add(part)
        if part in self._decided:
            text = f"{type(body).__name__} aborts the decided {part}"
            self._excuse(text) if is_excused else self._world.violate("abort", text)

    def looked(self, groups: Iterable[str]) -> None:
        """Note that a process has read groups."""
        if PLAN_GROUP in groups:
            self._looked[self._world.baton.process] = self._world.baton.now_ms

    def _note_look(self, body: Request, answer: Response) -> None:
        """Note whether the last act of a process was a look, but for ids that it takes."""
        process, now_ms = self._world.baton.process, self._world.baton.now_ms
        if _ends_plan(body, answer):
            self._looked[process] = self._planned[process] = now_ms
        elif not isinstance(body, InitProducerIdRequest | _QUESTIONS):
            self._looked.pop(process, None)

    def _is_after_a_look(self) -> bool:
        """Return whether another driver planned or decided between a look and the act on it."""
        if self._world.is_late:
            return True
        process = self._world.baton.process
        looked_ms = self._looked.get(process)
        return looked_ms is not None and any(
            other != process and at_ms >= looked_ms for other, at_ms in self._planned.items()
        )

    def _excuse(self, text: str) -> None:
        self._world.trace(f"excused: {text}")
        self._world.count("part lost to an act after a look")

    def _pending(self, producer_id: int) -> dict[tuple[str, TopicPartition], OffsetAndMetadata]:
        found: dict[tuple[str, TopicPartition], OffsetAndMetadata] = {}
        for one in self._world.cluster._group_offsets:
            found |= one._pending.get(producer_id, {})
        return found | pending_records(self._world.cluster, producer_id)

    def _open_part(self, name: str) -> Part | None:
        if not _IS_PART(name):
            return None
        known = self._world.cluster.transaction_coordinator(name).find(name)
        if known is None or known.state is not TransactionalIdState.ONGOING:
            return None
        return Part(name, known.producer_id, known.producer_epoch)

    def _note_decision(self) -> None:
        written = {group: offset for (group, _), offset in self._under_way.items()}
        found = read_decision(written)
        if found is None:
            return
        number, batch_id, query, fields = found
        if self._world.options.is_named(batch_id):
            entry = written.get(f"{RUN}{batch_id}")
            if entry is None or json.loads(entry.metadata).get("decision") != number:
                self._world.violate("entry", f"decision {number} without its run's entry")
        self._world.trace(f"decision {number}: batch {batch_id} of {query}")
        for slot, producer_id, epoch in fields["parts"]:
            part = Part(f"{_PART}{slot}", producer_id, epoch)
            self._decided[part] = (number, query, batch_id)
            if part in self._aborted | self._lost:
                text = f"decision {number} names the aborted {part}"
                self._excuse(text) if part in self._lost else self._world.violate("dead", text)
            self._world.undone.append(part)
            self._check_time(part)
        self._world.decided()

    def _check_time(self, part: Part) -> None:
        """Check that a part that is decided has time left to be ended."""
        world = self._world
        known = world.cluster.transaction_coordinator(part.name).find(part.name)
        if known is None or self._open_part(part.name) != part:
            return
        left_s = (known.start_ms + known.timeout_ms - world.baton.now_ms) / 1000
        least_s = max(30.0, known.timeout_ms / 5000)
        # The driver may have stood still, or tried again, since it looked at the clock.
        if left_s < least_s - world.lost_s(world.baton.process) - 5:
            world.violate("late", f"{part} is decided with {left_s:.0f} s left")

    def _check_decided(self, part: Part) -> None:
        group = f"__txn.{part.name}"
        entries = [
            offset
            for (name, _), offset in self._under_way.items()
            # Of a part of a named run, or of a run that is one transaction.
            if name in (group, f"{group}.run") or name.startswith(RUN)
        ]
        if not entries:
            # An id that is committed without rows and entries has moved nothing.
            self._world.violate("entry", f"{part} is committed without an entry")
            return
        if self._entries.get(part.name) == entries[0]:
            return  # a refresh
        self._entries[part.name] = entries[0]
        entry: dict[str, Any] = json.loads(entries[0].metadata)
        number, batch_id = entry.get("decision"), batch_of(entries[0])
        if number is None:
            self._world.violate("entry", f"{part} is committed with an entry of another kind")
        elif number and self._decided.get(part) != (number, entry["query"], batch_id):
            self._world.violate(
                "decision", f"{part} is committed for decision {number}, which is not there"
            )

    # --- the end --------------------------------------------------------------------------------

    def has_lost_part(self, query: str, batch_id: int) -> bool:
        """Return whether a decided part of a batch was lost to time, or to an act after a look."""
        return any(
            (found[1], found[2]) == (query, batch_id)
            and part not in self._committed | self._aborted
            and self._open_part(part.name) != part
            for part, found in self._decided.items()
        )

    def finish(self) -> None:
        """Judge the rows that a reader sees in the end."""
        cluster = self._world.cluster
        if cluster.open_transactions or cluster.has_pending_offsets:
            self._world.violate("open", f"{cluster.open_transactions} are open at the end")
        seen: defaultdict[tuple[str, int], Counter[tuple[int, int]]] = defaultdict(Counter)
        for number in range(self._world.options.topic_partitions):
            last: dict[str, int] = {}
            for record in cluster.read(TopicPartition(TOPIC, number), read_committed=True):
                name, batch, edition, row = (record.value or b"").decode().split("|")
                seen[name, int(batch)][int(edition), int(row)] += 1
                # Names have no order.
                if self._world.options.is_named(int(batch)):
                    continue
                if int(batch) in self._rewound(name):
                    continue
                if last.setdefault(name, int(batch)) > int(batch):
                    self._world.violate("order", f"batch {batch} of {name} after {last[name]}")
                last[name] = int(batch)
        for query in self._queries:
            self._judge_end(query)
            for batch_id in query.begun_batches:
                self._judge_batch(query, batch_id, seen[query.name, batch_id])

    def _rewound(self, name: str) -> range:
        """Return the batches of a query that may be there twice."""
        return next(query.rewound for query in self._queries if query.name == name)

    def _judge_end(self, query: Query) -> None:
        """Judge whether a query had a reason to stop."""
        error, batch_id, options = query.stopped, query.stopped_at, self._world.options
        if error is None or (query.is_overtaken and not isinstance(error, FINAL)):
            return
        # The rows are needed again, and the frame has others, or is cut otherwise.
        is_refused = options.gives_other_rows or options.is_cut_otherwise
        has_reason = self.has_lost_part(query.name, batch_id) and is_refused
        is_asked_for = options.on_replay_mismatch == "stop" and options.gives_other_rows
        if not (isinstance(error, FINAL) and (has_reason or is_asked_for)):
            self._world.violate("refused", f"batch {batch_id} of {query.name}: {error!r}")

    def _judge_batch(self, query: Query, batch_id: int, seen: Counter[tuple[int, int]]) -> None:
        name, wanted = f"batch {batch_id} of {query.name}", range(query.rows_of(batch_id))
        rows = Counter(dict.fromkeys(wanted, 0))
        for (_, row), count in seen.items():
            rows[row] += count
        editions = {edition for edition, _ in seen}
        most = 2 if batch_id in query.rewound else 1
        doubled = [row for row, count in rows.items() if count > most]
        lacking = [row for row, count in rows.items() if not count]
        violate = self._world.violate
        if doubled:
            violate("doubled", f"{name}: rows {doubled}")
        if len(editions) > 1:
            violate("mixed", f"{name}: rows of evaluations {sorted(editions)}")
        if lacking and batch_id in query.done_batches:
            violate("lost", f"{name}: rows {lacking} of {len(wanted)}")
        elif (
            lacking and len(lacking) < len(wanted) and not self.has_lost_part(query.name, batch_id)
        ):
            violate("torn", f"{name}: rows {lacking} of {len(wanted)}")


def _ends_plan(body: Request, answer: Response) -> bool:
    """Return whether a transaction of the plan's id was committed."""
    return (
        isinstance(body, EndTxnRequest)
        and isinstance(answer, EndTxnResponse)
        and body.is_commit
        and body.transactional_id == _PLAN
        and answer.error_code == ErrorCode.NONE
    )
