"""What the applications did, and what they were told: the claims that the checkers judge.

Owns: `Attempt` (one transaction of one producer process), `SentRecord`, `History`. Must not know:
how it was done, nor what the logs say.
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


class CallbackError(Exception):
    """What an application's callback raises by mistake: it must harm nobody else."""


@dataclass(slots=True)
class SentRecord:
    """One record of an attempt.

    Attributes:
        history: counts deliveries.
        place: where to (the partition as the producer chose it).
        value: unique in the whole run.
        key: as it was given to `send`.
        headers: as they were given.
        partition: as it was given; None for the producer's choice.
        timestamp_ms: as it was given.
        is_watched: whether a callback was given.
        is_faulty: whether the callback raises.
        future: what `send` returned.
        waited_in_vain: for memory or metadata; it never got into a batch.
        deliveries: what its callback was called with, each time.
        delivered_as: the number of its last callback, counted over the whole run.
        is_sent: whether it has to be in its transaction, if that is committed. (One whose call was
            interrupted before it had begun need not, and must not; None for one whose call was
            interrupted at an inner call: it may.)
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
    waited_in_vain: bool = False
    deliveries: list[tuple[RecordMetadata, KafkaError | None]] = field(default_factory=list)
    delivered_as: int = -1
    is_sent: bool | None = True

    def on_delivery(self, metadata: RecordMetadata, error: KafkaError | None) -> None:
        """Note that the callback was called."""
        self.history.delivery_count += 1
        self.delivered_as = self.history.delivery_count
        self.deliveries.append((metadata, error))
        if self.is_faulty:
            raise CallbackError


@dataclass(slots=True)
class SentRows:
    """The rows of one call.

    Attributes:
        future: of all of them.
        records: those that went into batches, by their row.
        last_rows: the last of them in each partition.
    """

    future: FutureBatchMetadata
    records: dict[int, SentRecord] = field(default_factory=dict)
    last_rows: dict[TopicPartition, int] = field(default_factory=dict)


@dataclass(slots=True)
class Attempt:
    """One transaction, or (idempotent) one run of records.

    Attributes:
        name: unique in the run; every value begins with it, or with `label`.
        owner_process: whose.
        owner: the transactional id; None for plain records.
        incarnation: which process under this id.
        number: counts the run's attempts.
        identity: of the producer when it began; a later identity is greater.
        records: in the order of sending.
        interrupted: records during whose sending an exception came: they have no future.
        calls: those that sent many of them.
        group_id: whose offsets were sent in it, if any were.
        offset: what was committed for the group, for each partition the same.
        earlier_offsets: that were sent before it in the same transaction.
        offset_places: the partitions whose offsets were sent.
        are_offsets_sent: whether the call that sent them succeeded.
        is_commit_asked: whether commit was ever called.
        claim: what the application was told.
        is_idempotent: whether nothing of it may be written twice.
        is_acknowledged: whether a broker tells what was written (`acks` other than 0).
        is_calm: whether its producer began when all was well, and has nobody beside it.
        errors: what its calls ended with, time-outs apart.
        has_given_up: whether it had no more patience with a call.
        has_timed_out: whether a call of its end had to be made again, or was given up.
        abort_error: what its abort ended with.
        is_mistaken: whether it sent what cannot be sent, or what a broker refuses.
        is_crashed: whether the process ended before it was told.
        forgotten_at: partitions that had forgotten its producer when a call of it failed.
        late_before: how many such requests of its id had arrived late when it began.
        late_by_end: how many when its end was told; None if it was not.
        commits_in_doubt_before: how many commits of its producer had no answer when it began.
        delivery_timeout_ms: of its producer.
        is_leased: whether others were let in, of whose lost answers its producer does not know.
        has_stragglers: whether participants of it were left behind, who may go on, or of whom
            a request was on its way by which a transaction begins.
        label: what the values of a participant begin with: its holder's attempt, and who it is.
        kept_before: how many refused writes of its id to the transaction log had been kept when
            its producer began its first under this identity.
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
    kept_before: int = 0
    commits_in_doubt_before: int = 0
    delivery_timeout_ms: int = 0
    is_leased: bool = False
    has_stragglers: bool = False
    label: str = ""

    @property
    def is_fruitful(self) -> bool:
        """Whether records were committed; an empty transaction proves little."""
        futures = [record.future for record in self.records if record.future is not None]
        is_written = any(future.done() and future.error is None for future in futures)
        return self.claim == "committed" and is_written

    @property
    def final_claim(self) -> Claim:
        """What may be relied upon in the end."""
        if self.claim != "open":
            return self.claim
        # Nobody was told anything: without a commit asked for, nothing may be visible.
        return "unknown" if self.is_commit_asked else "aborted"


@dataclass(slots=True)
class Fence:
    """A producer has begun its life: nothing of older ones may be appended any more.

    Attributes:
        owner: the transactional id.
        producer_id: its identity.
        producer_epoch: its identity.
        log_end_offsets: of every partition at that moment.
        asked_by: the process that asked for it.
        acts_of_time: how often its id had been timed out, or forgotten, by then.
    """

    owner: str
    producer_id: int
    producer_epoch: int
    log_end_offsets: dict[Life, int]
    asked_by: str
    acts_of_time: int


class History:
    """Everything that was claimed in a run.

    Attributes:
        attempts: in the order in which they were begun.
        fences: in the order of their time.
        violations: the checker and a text, of each.
        delivery_count: how many callbacks were called.
        shaken: the producers (process and incarnation) that lost requests with a connection.
        late: how many requests of a transactional id arrived late that can begin a transaction.
        openings_kept_before: how many refused writes to the transaction log by which a transaction
            of its id goes on had been kept, when a producer began its first one under an identity.
        doubtful: the attempts whose records a broker refused without saying that it has them not.
        doubtful_at: the same, each with the partition.
        forgotten_at: the attempts of whose producer a partition said that it does not know it.
        straggled_ms: when a participant last asked for a claim of an old lease, by its id.
        inits_in_doubt: how often a producer asked for another identity and was not told whether
            it has got it, by the one that it had.
        asked_for_identity: the processes that have asked for an identity, by transactional id.
        openings_in_doubt: the identities under which a request by which a transaction can begin
            had no answer.
        told: the partition and first offset of each batch, as the answers came; by network, which
            is one for each life of a process.
    """

    def __init__(self) -> None:
        self.delivery_count = 0
        self.straggled_ms: dict[str | None, int] = {}
        self.attempts: list[Attempt] = []
        self.fences: list[Fence] = []
        self.shaken: set[tuple[str, int]] = set()
        self.late: Counter[str] = Counter()
        self.openings_kept_before: dict[ProducerIdAndEpoch, int] = {}
        self.doubtful: set[str] = set()
        self.doubtful_at: set[tuple[str, TopicPartition]] = set()
        self.forgotten_at: set[tuple[str, TopicPartition]] = set()
        self.inits_in_doubt: Counter[ProducerIdAndEpoch] = Counter()
        self.asked_for_identity: dict[str, set[str]] = defaultdict(set)
        self.openings_in_doubt: set[ProducerIdAndEpoch] = set()
        self.told: dict[object, list[tuple[TopicPartition, int]]] = defaultdict(list)
        self.violations: list[tuple[str, str]] = []

    def violate(self, checker: str, text: str) -> None:
        """Note something that must not be."""
        self.violations.append((checker, text))
