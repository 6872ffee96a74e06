"""A transcript: each request and answer as a line, without parts that differ from run to run.

Owns: the text of each request and each answer. Must not know: targets.
Rules:
* Producer ids become P1, P2, ... and member ids M1, M2, ... by first appearance; errors stand by
  their names.
* A case's own prefix is cut from its names.
* Left out: throttling, times, addresses, log start offsets, messages for people, and which of
  their partitions internal topics use; when an Empty transaction began (brokers before 4.0 tell
  of the one before it).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from integration.conformance.target import ProducerSeen, RecordSeen
from txnproducer._protocol import messages as m
from txnproducer._record import read_header
from txnproducer.errors import CorruptRecordError, ErrorCode
from txnproducer.records import TopicPartition


class Transcript:
    """The lines of one case: its requests, the answers, and the records that were read.

    Args:
        prefix: what to cut from names.

    Attributes:
        lines: the text so far.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._producers: dict[int, str] = {}
        self._members: dict[str, str] = {}
        self.lines: list[str] = []

    def note(self, line: str) -> None:
        """Add a line."""
        self.lines.append(line)

    def exchange(self, request: m.Request, response: m.Response) -> None:
        """Add a request with its answer."""
        asked = _REQUESTS[type(request)](self, request)
        told = _RESPONSES[type(response)](self, response)
        self.note(f"{type(request).__name__.removesuffix('Request')}({asked}) = {told}")

    # --- the small parts ------------------------------------------------------------------------

    def name(self, name: str | None) -> str:
        """Return a topic's, group's or transactional id's own name."""
        return "null" if name is None else name.removeprefix(self._prefix) or "''"

    def place(self, place: TopicPartition) -> str:
        """Return a partition's name."""
        if place.topic.startswith("__"):
            return place.topic
        return f"{self.name(place.topic)}-{place.partition}"

    def places(self, places: Iterable[TopicPartition]) -> str:
        """Return several partitions' names, in order."""
        return f"[{' '.join(self.place(each) for each in sorted(places))}]"

    def producer(self, producer_id: int, producer_epoch: int) -> str:
        """Return an identity, such as P1/0."""
        if producer_id == m.NO_PRODUCER_ID:
            return "-" if producer_epoch == m.NO_PRODUCER_EPOCH else f"-/{producer_epoch}"
        name = self._producers.setdefault(producer_id, f"P{len(self._producers) + 1}")
        return f"{name}/{producer_epoch}"

    def member(self, member_id: str) -> str:
        """Return a member's name."""
        if not member_id:
            return "-"
        return self._members.setdefault(member_id, f"M{len(self._members) + 1}")

    def batch(self, records: Any) -> str:
        """Return the producer, the sequence and the size of a batch as text."""
        try:
            header = read_header(bytes(records))
        except CorruptRecordError:
            return "unreadable"
        kind = "" if header.is_transactional else " not transactional"
        identity = self.producer(header.producer_id, header.producer_epoch)
        return f"{identity} seq {header.base_sequence} x{header.record_count}{kind}"

    def producers(self, seen: Sequence[ProducerSeen]) -> str:
        """Return a partition's memory of producers as text."""
        told = (
            f"{self.producer(each.producer_id, each.producer_epoch)} seq {each.last_sequence}"
            for each in seen
        )
        return f"[{', '.join(sorted(told))}]"


def records(seen: Sequence[RecordSeen]) -> str:
    """Return records with their offsets, such as [0:a 1:b]."""
    told = (f"{each.offset}:{(each.value or b'').decode()}" for each in seen)
    return f"[{' '.join(told)}]"


def error(code: int) -> str:
    """Return an error's name."""
    return ErrorCode(code).name


# --- requests -----------------------------------------------------------------------------------


def _of_producer(t: Transcript, request: Any) -> str:
    identity = t.producer(request.producer_id, request.producer_epoch)
    return f"{t.name(request.transactional_id)} {identity}"


def _init(t: Transcript, request: m.InitProducerIdRequest) -> str:
    return f"{_of_producer(t, request)} time-out {request.transaction_timeout_ms}"


def _txn_offset_commit(t: Transcript, request: m.TxnOffsetCommitRequest) -> str:
    told = [_of_producer(t, request), f"group {t.name(request.group_id)}"]
    if request.has_group_metadata or request.generation_id != -1:
        told.append(f"member {t.member(request.member_id)} of {request.generation_id}")
    told += [f"{t.place(place)}={offset.offset}" for place, offset in request.offsets]
    return " ".join(told)


def _produce(t: Transcript, request: m.ProduceRequest) -> str:
    parts = (f"{t.place(p.topic_partition)}: {t.batch(p.records)}" for p in request.partitions)
    acks = "" if request.acks == -1 else f" acks {request.acks}"
    return f"{t.name(request.transactional_id)}{acks} {', '.join(parts)}"


_REQUESTS: dict[type, Callable[[Transcript, Any], str]] = {
    m.MetadataRequest: lambda t, r: " ".join(t.name(topic) for topic in r.topics),
    m.FindCoordinatorRequest: lambda t, r: f"{t.name(r.key)} {r.key_type.name.lower()}",
    m.InitProducerIdRequest: _init,
    m.AddPartitionsToTxnRequest: lambda t, r: f"{_of_producer(t, r)} {t.places(r.partitions)}",
    m.AddOffsetsToTxnRequest: lambda t, r: f"{_of_producer(t, r)} group {t.name(r.group_id)}",
    m.TxnOffsetCommitRequest: _txn_offset_commit,
    m.EndTxnRequest: lambda t, r: f"{_of_producer(t, r)} {'commit' if r.is_commit else 'abort'}",
    m.DescribeTransactionsRequest: lambda t, r: " ".join(
        t.name(name) for name in r.transactional_ids
    ),
    m.ProduceRequest: _produce,
}


# --- answers ------------------------------------------------------------------------------------


def _identity(t: Transcript, response: Any) -> str:
    identity = t.producer(response.producer_id, response.producer_epoch)
    return f"{error(response.error_code)} {identity}"


def _partition_codes(t: Transcript, response: Any) -> str:
    told = (
        f"{t.place(each.topic_partition)} {error(each.error_code)}" for each in response.results
    )
    return ", ".join(sorted(told))


def _metadata(t: Transcript, response: m.MetadataResponse) -> str:
    told = []
    for topic in response.topics:
        leaders = [
            f"{each.partition} {'led' if each.leader_id >= 0 else error(each.error_code)}"
            for each in sorted(topic.partitions, key=lambda each: each.partition)
        ]
        told.append(f"{t.name(topic.topic)} {error(topic.error_code)} [{', '.join(leaders)}]")
    return f"brokers {len(response.brokers)}, {', '.join(sorted(told))}"


def _coordinators(t: Transcript, response: m.FindCoordinatorResponse) -> str:
    return ", ".join(
        f"{t.name(each.key)} {error(each.error_code)}{' nowhere' if each.node.node_id < 0 else ''}"
        for each in response.coordinators
    )


def _description(t: Transcript, each: m.TransactionDescription) -> str:
    if each.error_code:
        return f"{t.name(each.transactional_id)} {error(each.error_code)}"
    identity = t.producer(each.producer_id, each.producer_epoch)
    told = [t.name(each.transactional_id), each.state, identity, f"time-out {each.timeout_ms}"]
    if each.state != "Empty":
        told.append("started" if each.start_time_ms >= 0 else "not started")
    return " ".join([*told, t.places(each.partitions)])


def _produced(t: Transcript, response: m.ProduceResponse) -> str:
    told = (
        f"{t.place(each.topic_partition)} {error(each.error_code)}"
        f"{f' at {each.base_offset}' if each.base_offset >= 0 else ''}"
        f"{', with a time' if each.log_append_time_ms >= 0 else ''}"
        f"{_blamed(each)}{', a leader is named' if each.current_leader else ''}"
        for each in response.partitions
    )
    return ", ".join(sorted(told))


def _blamed(part: m.ProducePartitionResponse) -> str:
    indexes = [str(each.batch_index) for each in part.record_errors]
    return f" for records {' '.join(indexes)}" if indexes else ""


_RESPONSES: dict[type, Callable[[Transcript, Any], str]] = {
    m.MetadataResponse: _metadata,
    m.FindCoordinatorResponse: _coordinators,
    m.InitProducerIdResponse: _identity,
    m.AddPartitionsToTxnResponse: _partition_codes,
    m.AddOffsetsToTxnResponse: lambda _, r: error(r.error_code),
    m.TxnOffsetCommitResponse: _partition_codes,
    m.EndTxnResponse: _identity,
    m.DescribeTransactionsResponse: lambda t, r: ", ".join(
        _description(t, each) for each in r.transactions
    ),
    m.ProduceResponse: _produced,
}
