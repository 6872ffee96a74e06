"""The limit: requests that were built before any clock starts, sent by hardly more than a socket.

Why it exists: no client that asks a broker the same can be faster, so it shows how much of a
client's time is the broker's. `raw.sender` writes batches without a producer id. `raw.loop` writes
transactions, and begins the next one as soon as EndTxn is answered; `raw.waits` asks for the
markers first, again and again. The difference from one transaction to the next, the epoch and with
it the CRC, is written into the batches as they lie.
Owns: the requests and their connections. Must not know: clocks, works, the other peers. It reads
errors, and mends none: a run with one has failed.
"""

from __future__ import annotations

import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import repeat, zip_longest
from typing import Any, cast

from crc32c import crc32c

from integration.benchmarks.job import Job, LeftOutError
from integration.benchmarks.rows import Rows
from txnproducer._protocol import messages as m
from txnproducer._record.batch_builder import RecordBatchBuilder
from txnproducer._record.format import ATTRIBUTES_OFFSET, CRC_OFFSET
from txnproducer._wire.codec import WireCodec
from txnproducer.errors import ErrorCode
from txnproducer.records import TopicPartition

_VERSIONS = {
    m.MetadataRequest: 12,
    m.FindCoordinatorRequest: 4,
    m.InitProducerIdRequest: 4,
    m.ProduceRequest: 12,
    m.EndTxnRequest: 5,
    m.DescribeTransactionsRequest: 0,
}
_IN_FLIGHT = 5
_LIMIT_S = 30.0
_TIMEOUT_MS = 30_000
_PAUSE_S = 0.05
_UNSETTLED = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)
_TIME_MS = 1_700_000_000_000
_EPOCH_OFFSET = 51
_EPOCH_BITS = 16
_SIZE = struct.Struct(">i")
_CRC_AND_EPOCH = (struct.Struct(">I"), struct.Struct(">h"))


class RawSender:
    """Produce requests without a producer id, of which five are in flight."""

    is_transactional = False

    def __init__(self, job: Job, rows: Rows) -> None:
        self.version = "prebuilt"
        self._id = job.transactional_id if self.is_transactional else None
        self._links = {-1: _Link(job.servers.split(",")[0])}
        self._brokers, leaders = self._ask_for_leaders(job)
        self._producer_id, self._epoch = m.NO_PRODUCER_ID, m.NO_PRODUCER_EPOCH
        if self._id is not None:
            self._init_producer_id()
        built = batches(job, rows, self._producer_id, self._epoch)
        of_leaders = [
            [(self._link(leader), Prebuilt(body)) for body in bodies(job, mine, self._id)]
            for leader in dict.fromkeys(leaders.values())
            if (mine := {place: built[place] for place in built if leaders[place] == leader})
        ]
        # In turn, so that all brokers work at the same time.
        self._requests = [
            each for layer in zip_longest(*of_leaders) for each in layer if each is not None
        ]

    def begin(self) -> None:
        pass

    def write(self) -> None:
        for link, request in self._requests:
            link.send(request.buffer, request.body)

    def commit(self) -> None:
        pass

    def close(self) -> None:
        self._await_answers()
        for link in self._links.values():
            link.close()

    def _await_answers(self) -> None:
        for link in self._links.values():
            link.await_answers()

    def _ask_for_leaders(self, job: Job) -> tuple[dict[int, m.BrokerNode], dict[int, int]]:
        answer = cast("m.MetadataResponse", self._links[-1].ask(m.MetadataRequest((job.topic,))))
        (topic,) = answer.topics
        _check(topic)
        brokers = {broker.node_id: broker for broker in answer.brokers}
        return brokers, {each.partition: each.leader_id for each in topic.partitions}

    def _init_producer_id(self) -> None:
        assert self._id is not None
        question = m.FindCoordinatorRequest(self._id, m.CoordinatorType.TRANSACTION)
        found = _settled(lambda: self._links[-1].ask(question).coordinators[0])
        self._coordinator = self._link(found.node.node_id)
        first = m.InitProducerIdRequest(self._id, 60_000)
        answer = _settled(lambda: self._coordinator.ask(first))
        self._producer_id, self._epoch = answer.producer_id, answer.producer_epoch

    def _link(self, node_id: int) -> _Link:
        if node_id not in self._links:
            self._links[node_id] = _Link(self._brokers[node_id].address)
        return self._links[node_id]


class RawLoop(RawSender):
    """Transactions: Produce requests, and EndTxn when all are answered."""

    is_transactional = True

    def commit(self) -> None:
        self._await_answers()
        assert self._id is not None
        request = m.EndTxnRequest(
            self._id,
            self._producer_id,
            self._epoch,
            is_commit=True,
            is_transaction_v2_enabled=True,
        )
        answer = self._coordinator.ask(request)
        _check(answer)
        if answer.producer_id != self._producer_id:
            raise LeftOutError("the epochs of a producer id are used up, or transactions are v1")
        self._epoch = answer.producer_epoch
        for _, each in self._requests:
            each.stamp(self._epoch)


class RawWaits(RawLoop):
    """The same, but a transaction begins when the markers of the one before are written."""

    def begin(self) -> None:
        assert self._id is not None
        question = m.DescribeTransactionsRequest((self._id,))
        is_written = False
        while not is_written:
            (transaction,) = self._coordinator.ask(question).transactions
            _check(transaction)
            is_written = not transaction.state.startswith("Prepare")


class _Link:
    """A connection on which each question waits for its answer."""

    def __init__(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), timeout=_LIMIT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = self._socket.makefile("rb")
        self._codec = WireCodec("raw")
        self._waiting: deque[m.ProduceRequest] = deque()

    def ask(self, body: m.Request) -> Any:
        """Return the answer to a request."""
        version = _VERSIONS[type(body)]
        self._socket.sendall(b"".join(self._codec.encode(body, version, 0)))
        return self._codec.decode(body, version, self._read())

    def send(self, buffer: bytearray, body: m.ProduceRequest) -> None:
        """Send a Produce request, with so many others before it unanswered at most."""
        if len(self._waiting) == _IN_FLIGHT:
            self._take()
        self._socket.sendall(buffer)
        self._waiting.append(body)

    def await_answers(self) -> None:
        while self._waiting:
            self._take()

    def close(self) -> None:
        self._reader.close()
        self._socket.close()

    def _take(self) -> None:
        body = self._waiting.popleft()
        answer = self._codec.decode(body, _VERSIONS[m.ProduceRequest], self._read())
        for each in cast("m.ProduceResponse", answer).partitions:
            _check(each)

    def _read(self) -> memoryview:
        (size,) = _SIZE.unpack(self._reader.read(_SIZE.size))
        return memoryview(self._reader.read(size))


class Prebuilt:
    """A framed Produce request, in which the epoch of its batches can be changed."""

    def __init__(self, body: m.ProduceRequest) -> None:
        self.body = body
        parts = WireCodec("raw").encode(body, _VERSIONS[m.ProduceRequest], 0)
        self.buffer = bytearray().join(parts)
        batches = {id(each.records) for each in body.partitions}
        self._stamps, at = [], 0
        for part in parts:
            if id(part) in batches:
                self._stamps.append(_Stamp.of(part, at))
            at += len(part)

    def stamp(self, epoch: int) -> None:
        for each in self._stamps:
            each.write(self.buffer, epoch)


@dataclass(frozen=True)
class _Stamp:
    """Where a batch has its epoch, and how each of its bits changes the CRC.

    A CRC is linear: those of two equally long texts differ by what their difference gives.
    """

    at: int
    plain_crc: int
    of_bits: list[int]

    @classmethod
    def of(cls, batch: Any, at: int) -> _Stamp:
        plain = bytearray(memoryview(batch)[ATTRIBUTES_OFFSET:])
        place = _EPOCH_OFFSET - ATTRIBUTES_OFFSET
        plain[place : place + 2] = bytes(2)
        crc, of_bits = crc32c(plain), []
        for bit in range(_EPOCH_BITS):
            plain[place : place + 2] = (1 << bit).to_bytes(2, "big")
            of_bits.append(crc32c(plain) ^ crc)
        return cls(at, crc, of_bits)

    def write(self, buffer: bytearray, epoch: int) -> None:
        crc = self.plain_crc
        for bit, change in enumerate(self.of_bits):
            if epoch >> bit & 1:
                crc ^= change
        for form, offset, value in zip(
            _CRC_AND_EPOCH, (CRC_OFFSET, _EPOCH_OFFSET), (crc, epoch), strict=True
        ):
            form.pack_into(buffer, self.at + offset, value)


def batches(job: Job, rows: Rows, producer_id: int, epoch: int) -> dict[int, list[bytearray]]:
    """Return the full batches of each partition, numbered from 0, as each epoch begins."""
    values: dict[int, list[bytes]] = {}
    for value, place in zip(rows.values, rows.places or repeat(0), strict=False):
        values.setdefault(place, []).append(value)
    return {
        place: list(_built(job, mine * rows.repeats, producer_id, epoch))
        for place, mine in values.items()
    }


def _built(job: Job, values: list[bytes], producer_id: int, epoch: int) -> Iterator[bytearray]:
    codec, at = job.settings.get("compression_type", "none"), 0
    while at < len(values):
        builder, first = RecordBatchBuilder(job.settings["batch_size"], codec), at
        while at < len(values) and builder.append(_TIME_MS, None, values[at]) is not None:
            at += 1
        if producer_id != m.NO_PRODUCER_ID:
            builder.set_producer_state(producer_id, epoch, first, is_transactional=True)
        yield builder.build()


def bodies(
    job: Job, built: dict[int, list[bytearray]], transactional_id: str | None
) -> Iterator[m.ProduceRequest]:
    """Yield requests of full size, with one batch of each partition at most."""
    for layer in zip_longest(*built.values()):
        parts: list[m.ProducePartition] = []
        room = job.settings["max_request_size"]
        for place, batch in zip(built, layer, strict=True):
            if batch is None:
                continue
            if parts and len(batch) > room:
                yield m.ProduceRequest(transactional_id, -1, _TIMEOUT_MS, tuple(parts), True)
                parts, room = [], job.settings["max_request_size"]
            parts.append(m.ProducePartition(TopicPartition(job.topic, place), batch))
            room -= len(batch)
        yield m.ProduceRequest(transactional_id, -1, _TIMEOUT_MS, tuple(parts), True)


def _settled(ask: Callable[[], Any]) -> Any:
    """Ask again while a coordinator is being chosen, or loads its log."""
    end = time.monotonic() + _LIMIT_S
    while (answer := ask()).error_code in _UNSETTLED and time.monotonic() < end:
        time.sleep(_PAUSE_S)  # no event tells that a coordinator has loaded its log
    _check(answer)
    return answer


def _check(answer: Any) -> None:
    if answer.error_code:
        code = answer.error_code
        name = ErrorCode(code).name if code in set(ErrorCode) else f"error {code}"
        raise RuntimeError(f"{type(answer).__name__}: {name}")
