"""The applications' calls and the results that they got: the claims that the checkers judge.

Owns: `Attempt` (one transaction of one producer process), `SentRecord`, `History`. Must not know:
the scripts, the contents of the logs.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from txnproducer._broker.topics import Life
from txnproducer._core.batches.batch_future import FutureBatchMetadata
from txnproducer._core.batches.results import FutureRecordMetadata
from txnproducer.errors import KafkaError
from txnproducer.records import ProducerIdAndEpoch, RecordMetadata, TopicPartition

Claim: TypeAlias = Literal["open", "committed", "aborted", "unknown"]

# The last epoch that a producer gets: the coordinator keeps 2^15 - 1 for fencing. The simulator
# has a number of its own, since one that it took from the core could not contradict the core.
LAST_EPOCH = 2**15 - 2


class CallbackError(Exception):
    """The error that a faulty callback raises. It must not harm anyone else."""


@dataclass(slots=True)
class SentRecord:
    """One record of an attempt.

    Attributes:
        history: the history, which counts callbacks.
        place: the partition that the producer chose.
        value: the value, unique in the whole run.
        key: the key given to `send`.
        headers: the headers given to `send`.
        partition: the partition given to `send`, or None for the producer's choice.
        timestamp_ms: the timestamp given to `send`.
        is_watched: whether a callback was given.
        is_faulty: whether the callback raises.
        future: the future that `send` returned.
        has_timed_out: whether it timed out while waiting for memory or metadata, outside any
            batch.
        deliveries: the arguments of each call of its callback.
        delivered_as: the number of its last callback, counted over the whole run.
        is_sent: whether it must be in its transaction if that is committed. False if its call was
            interrupted before it began: the record must not be there. None if its call was
            interrupted at an inner call: it may be there.
    """

    history: History
    place: TopicPartition
    value: bytes
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    partition: int | None = None
    timestamp_ms: int = -1
    is_watched: bool = True
    is_faulty: bool = False
    future: FutureRecordMetadata | None = None
    has_timed_out: bool = False
    deliveries: list[tuple[RecordMetadata, KafkaError | None]] = field(default_factory=list)
    delivered_as: int = -1
    is_sent: bool | None = True

    def on_delivery(self, metadata: RecordMetadata, error: KafkaError | None) -> None:
        """Record a call of the callback."""
        self.history.delivery_count += 1
        self.delivered_as = self.history.delivery_count
        self.deliveries.append((metadata, error))
        if self.is_faulty:
            # Last, so that the call is on record whatever becomes of the exception.
            raise CallbackError


@dataclass(slots=True)
class SentRows:
    """The rows of one call.

    Attributes:
        future: the future of the call.
        records: the records that went into batches, by their row.
        last_rows: the last row in each partition.
    """

    future: FutureBatchMetadata
    records: dict[int, SentRecord] = field(default_factory=dict)
    last_rows: dict[TopicPartition, int] = field(default_factory=dict)


@dataclass(slots=True)
class Attempt:
    """One transaction, or one series of records without a transaction.

    Attributes:
        name: its name, unique in the run. Every value begins with it or with `label`.
        owner_process: the name of its process.
        owner: the transactional id, or None for records without transactions.
        incarnation: the number of its producer under this id.
        number: its number in the run.
        identity: the producer's id and epoch when it began. Later identities are greater.
        records: the records in the order of sending.
        interrupted: the records without a future, because an exception interrupted their call.
        calls: the calls that sent many of the records.
        group_id: the group of the offsets that were sent in it, if any were.
        offset: the offset committed for the group, the same for each partition.
        earlier_offsets: offsets sent before it in the same transaction.
        offset_places: the partitions of the offsets.
        are_offsets_sent: whether the call that sent them succeeded.
        is_commit_asked: whether commit was ever called.
        claim: the outcome that the application was given.
        is_idempotent: whether none of its records may be written twice.
        is_acknowledged: whether brokers acknowledge its records (`acks` other than 0).
        is_calm: whether its producer began after the faults ended, and no other one has its id.
        errors: the errors of its calls, except time-outs.
        has_given_up: whether the application gave up a call.
        has_timed_out: whether a call to end it was repeated or given up after a time-out.
        abort_error: the error of its abort.
        is_mistaken: whether it sent something that cannot be sent or that a broker refuses.
        is_crashed: whether the process crashed before it had a result.
        forgotten_at: the partitions that had forgotten its producer when a call of it failed.
        late_before: how many requests of its id that can begin a transaction had arrived late when
            it began.
        late_by_end: the same number when its end returned, or None if it did not return.
        late_commits_by_end: how many commits of its id had arrived late when its end returned.
        commits_in_doubt_before: how many commits of its producer had no answer when it began.
        delivery_timeout_ms: the delivery time-out of its producer.
        is_leased: whether it was leased to participants. Its producer does not know of their lost
            answers.
        has_stragglers: whether participants had not ended when it did, or a request that can begin
            a transaction was still in flight.
        label: the prefix of a participant's values: the holder's attempt and the participant.
        kept_before: how many refused writes of its id to the transaction log had been kept when
            its producer began the first attempt under this identity.
    """

    name: str
    owner_process: str
    owner: str | None
    incarnation: int
    number: int
    identity: ProducerIdAndEpoch = ProducerIdAndEpoch.NONE
    records: list[SentRecord] = field(default_factory=list)
    interrupted: list[SentRecord] = field(default_factory=list)
    calls: list[SentRows] = field(default_factory=list)
    group_id: str | None = None
    offset: int = -1
    earlier_offsets: list[int] = field(default_factory=list)
    offset_places: tuple[TopicPartition, ...] = ()
    are_offsets_sent: bool = False
    is_commit_asked: bool = False
    claim: Claim = "open"
    is_crashed: bool = False
    is_idempotent: bool = True
    is_acknowledged: bool = True
    is_calm: bool = False
    errors: list[KafkaError] = field(default_factory=list)
    has_given_up: bool = False
    has_timed_out: bool = False
    abort_error: KafkaError | None = None
    is_mistaken: bool = False
    forgotten_at: set[TopicPartition] = field(default_factory=set)
    late_before: int = 0
    late_by_end: int | None = None
    late_commits_by_end: int = 0
    kept_before: int = 0
    commits_in_doubt_before: int = 0
    delivery_timeout_ms: int = 0
    is_leased: bool = False
    has_stragglers: bool = False
    label: str = ""

    @property
    def is_fruitful(self) -> bool:
        """Whether records were committed. An empty transaction proves little."""
        futures = [record.future for record in self.records if record.future is not None]
        is_written = any(future.done() and future.error is None for future in futures)
        return self.claim == "committed" and is_written

    @property
    def final_claim(self) -> Claim:
        """The claim at the end of the run, which the logs must confirm."""
        if self.claim != "open":
            return self.claim
        # The application got no result. Unless it called commit, nothing may be visible.
        return "unknown" if self.is_commit_asked else "aborted"


@dataclass(slots=True)
class Fence:
    """A producer that has got a new identity. Older ones must not append any more.

    Attributes:
        owner: the transactional id.
        producer_id: the new producer id.
        producer_epoch: the new epoch.
        log_end_offsets: the end of every partition at that moment.
        asked_by: the process that asked for the identity.
        acts_of_time: how often a transaction of the id had timed out, or the id had expired,
            before.
    """

    owner: str
    producer_id: int
    producer_epoch: int
    log_end_offsets: dict[Life, int]
    asked_by: str
    acts_of_time: int


class History:
    """All claims of a run.

    Attributes:
        attempts: the attempts in the order in which they began.
        fences: the fences in the order of their time.
        violations: the checker and the text of each violation.
        delivery_count: how many callbacks were called.
        shaken: the producers (process and incarnation) that lost requests with a connection.
        late: by transactional id, how many requests arrived late that can begin a transaction.
        late_commits: by transactional id, how many requests to commit arrived late.
        openings_kept_before: by identity, how many refused writes to the transaction log had been
            kept when a producer began its first attempt under it. Only writes that begin or
            continue a transaction of its id count.
        doubtful: the names of attempts with records that a broker may have written although it
            refused them.
        doubtful_at: the same, each with the partition.
        forgotten_at: the names of attempts with a producer to which a partition answered
            UNKNOWN_PRODUCER_ID, each with the partition.
        straggled_ms: by id, when a participant last asked for a claim of an old lease.
        inits_in_doubt: by identity, how often its producer asked for another one and did not learn
            whether it got it.
        asked_under: by identity, the transactional id and the coordinator epoch when its producer
            first asked for another one.
        ends_refused: by identity, whether each EndTxn of it that was refused for its identity or
            its state was refused rightly.
        asked_for_identity: the processes that have asked for an identity, by transactional id.
        openings_in_doubt: the identities with an unanswered request that can begin a transaction.
        told: the partition and first offset of each batch, in the order of the answers; by
            network, of which each life of a process has one.
    """

    def __init__(self) -> None:
        self.delivery_count = 0
        self.straggled_ms: dict[str | None, int] = {}
        self.attempts: list[Attempt] = []
        self.fences: list[Fence] = []
        self.shaken: set[tuple[str, int]] = set()
        self.late: Counter[str] = Counter()
        self.late_commits: Counter[str] = Counter()
        self.openings_kept_before: dict[ProducerIdAndEpoch, int] = {}
        self.doubtful: set[str] = set()
        self.doubtful_at: set[tuple[str, TopicPartition]] = set()
        self.forgotten_at: set[tuple[str, TopicPartition]] = set()
        self.inits_in_doubt: Counter[ProducerIdAndEpoch] = Counter()
        self.asked_under: dict[ProducerIdAndEpoch, tuple[str, int]] = {}
        self.ends_refused: dict[ProducerIdAndEpoch, set[bool]] = defaultdict(set)
        self.asked_for_identity: dict[str, set[str]] = defaultdict(set)
        self.openings_in_doubt: set[ProducerIdAndEpoch] = set()
        self.told: dict[object, list[tuple[TopicPartition, int]]] = defaultdict(list)
        self.violations: list[tuple[str, str]] = []

    def violate(self, checker: str, text: str) -> None:
        """Record a violation."""
        self.violations.append((checker, text))
