"""The world around the simulated producers: virtual time, a cluster, faults, a history.

Why it exists: networks, faults, programs and judges share one time and one cluster. None of them
knows the run that combines them (`simulator`).
Owns: `World`: the event queue, the time, the counts. Must not know: processes, checkers, the
phases of a run.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable

from txnproducer._broker import handlers
from txnproducer._broker.cluster import BrokerCluster
from txnproducer._broker.transaction_metadata import TransactionalIdState
from txnproducer._protocol.events import ClientRequest
from txnproducer._protocol.messages import (
    EndTxnRequest,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ProduceResponse,
    Request,
    Response,
    TxnOffsetCommitResponse,
)
from txnproducer.errors import ErrorCode
from txnproducer.records import ProducerIdAndEpoch
from txnproducer.sim.world.faults import FaultKind, Faults
from txnproducer.sim.world.history import Fence, History
from txnproducer.sim.world.options import COMPACTED_TOPIC, TOPIC, SimOptions
from txnproducer.sim.world.trace import Trace

# The share of the compacted topic in the records of a run, without and with its recreation.
_COMPACTED_RATE = 0.1
_RECREATED_RATE = 0.4
# The time for markers, look-ups and reconnections, in addition to the time-outs in the settings.
_LONGEST_CLEAN_UP_MS = 60_000
_REFUSED_ENDS = (
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ErrorCode.INVALID_TXN_STATE,
)
_OF_MEMBERS = (
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.FENCED_INSTANCE_ID,
)
_BUSIEST_RUN_EVENTS = 400_000


class World:
    """The world of one run.

    Args:
        options: the options of the run.
        trace: takes the lines of the trace.

    Attributes:
        now_ms: the virtual time.
        request_count: how many requests producers have sent.
        slack_ms: how much longer than its bound a bounded call may take.
        transactional_ids: the ids of the producers with which the run begins.
        is_ending: whether the faults have ended.
        healed_ms: the time at which they ended.
        healed_at: the number of attempts at that time.
    """

    def __init__(self, options: SimOptions, trace: Trace) -> None:
        self.options = options
        self.trace = trace
        self.now_ms = 0
        self.request_count = 0
        self.slack_ms = 1
        self._queue: list[tuple[int, int, Callable[[int], None]]] = []
        self._order = 0
        self.history = History()
        self.cluster = BrokerCluster(options.cluster, self.new_rng("cluster"))
        self.cluster.create_topic(TOPIC, options.partition_count)
        self.cluster.create_topic(COMPACTED_TOPIC, options.partition_count)
        self.cluster.compacted.add(COMPACTED_TOPIC)
        self.faults = Faults(
            options.rates,
            self.new_rng("faults"),
            self.new_rng("later faults"),
            options.burst,
            options.settings["request_timeout_ms"],
        )
        self.transactional_ids = [f"txn-{n}" for n in range(options.transactional_producers)]
        self._incarnations: Counter[str] = Counter()
        self._offsets = 0
        self.is_ending = False
        self.healed_at = self.healed_ms = 0
        self._acts_when_healed: Counter[str] = Counter()

    def new_rng(self, name: str) -> random.Random:
        """Return the source of randomness for one part of the run."""
        return random.Random(f"{name} {self.options.seed}")  # noqa: S311 - seeded on purpose

    def note_healing(self) -> None:
        """Note that the faults have ended."""
        self.is_ending = True
        self.healed_at, self.healed_ms = len(self.history.attempts), self.now_ms
        # Only what time does later excuses a calm producer: it began after this moment.
        self._acts_when_healed = self.cluster.acts_of_time.copy()

    # --- time -----------------------------------------------------------------------------------

    def call_at(self, at_ms: int, action: Callable[[int], None]) -> None:
        """Schedule an action."""
        self._order += 1
        heapq.heappush(self._queue, (at_ms, self._order, action))

    def run_until(self, condition: Callable[[], bool], until_ms: int) -> bool:
        """Run events until a condition holds or the time is up. Return whether it holds."""
        queue, cluster = self._queue, self.cluster
        events = 0
        # The first violation ends the run: what follows is mostly its consequence.
        while not condition() and not self.history.violations:
            next_ms = cluster.next_event_ms()
            # At the same time the queue comes before the timers of the cluster, so a seed has one
            # order.
            if queue and queue[0][0] <= next_ms:
                at_ms, _, action = heapq.heappop(queue)
                if at_ms > until_ms:
                    # Put back: the next phase goes on from here.
                    self.call_at(at_ms, action)
                    break
                self.now_ms = at_ms
                action(at_ms)
            elif next_ms > until_ms:
                break
            else:
                self.now_ms = next_ms
                cluster.advance(next_ms)
            events += 1
            if events > _BUSIEST_RUN_EVENTS:
                self.history.violate("spins", f"{events} events in one phase")
        return condition()

    # --- what the parts ask for -----------------------------------------------------------------

    def next_incarnation(self, transactional_id: str | None) -> int:
        """Return the next number of a producer under an id."""
        name = transactional_id or ""
        self._incarnations[name] += 1
        return self._incarnations[name]

    def next_offset(self) -> int:
        """Return an offset that was never used before."""
        self._offsets += 1
        return self._offsets

    @property
    def compacted_rate(self) -> float:
        """The largest share of records for the compacted topic."""
        is_recreated = FaultKind.TOPIC_RECREATED in self.options.intervals_ms
        return _RECREATED_RATE if is_recreated else _COMPACTED_RATE

    def partition_count(self, topic: str) -> int:
        """Return the number of partitions on which applications rely."""
        given = self.options.partition_count
        may_grow = FaultKind.PARTITIONS_ADDED in self.options.intervals_ms
        return self.cluster.topics.get(topic, given) if may_grow else given

    def has_time_acted(self, transactional_id: str | None) -> bool:
        """Return whether an id or its transaction timed out after the faults ended."""
        name = transactional_id or ""
        return self.cluster.acts_of_time[name] != self._acts_when_healed[name]

    def is_upset(self, transactional_id: str | None, identity: ProducerIdAndEpoch) -> bool:
        """Return whether time has acted on a producer, or a former coordinator has misled it.

        With transactions v1 one that was given a success from memory may be aborted by its own
        question for the next epoch, or have begun nowhere.
        """
        return self.has_time_acted(transactional_id) or identity in self.cluster.misled

    def is_asker_forgotten(self, identity: ProducerIdAndEpoch) -> bool:
        """Return whether the coordinator has moved since an unanswered request for an epoch."""
        name, epoch = self.history.asked_under.get(identity, ("", -1))
        is_moved = self.cluster.transaction_coordinator(name).epoch != epoch
        return is_moved and self.history.inits_in_doubt[identity] > 0

    @property
    def longest_call_ms(self) -> int:
        """The longest time until any call returns or raises after the faults end."""
        settings = self.options.settings
        lasting = ("transaction_timeout_ms", "delivery_timeout_ms", "max_block_ms")
        return _LONGEST_CLEAN_UP_MS + sum(int(settings[name]) for name in lasting)

    # --- requests -------------------------------------------------------------------------------

    def handle(self, node_id: int, request: ClientRequest, sender: str, now_ms: int) -> Response:
        """Let a broker answer a request of a process."""
        if isinstance(request.body, InitProducerIdRequest):
            # Before the answer: a request that is refused, or whose answer is lost, may have
            # fenced as well.
            name = request.body.transactional_id or ""
            self.history.asked_for_identity[name].add(sender)
            present = ProducerIdAndEpoch(request.body.producer_id, request.body.producer_epoch)
            coordinator = self.cluster.transaction_coordinator(name)
            self.history.asked_under.setdefault(present, (name, coordinator.epoch))
        body = handlers.handle(self.cluster, node_id, request.body, now_ms)
        if isinstance(request.body, EndTxnRequest):
            self._note_refused_end(request.body, body)
        if isinstance(body, InitProducerIdResponse) and not body.error_code:
            self._note_fence(request.body, body, sender)
        elif isinstance(body, ProduceResponse):
            self._count_refusals(body)
        elif isinstance(body, TxnOffsetCommitResponse):
            self._count_members_refused(body)
        return body

    def _count_members_refused(self, body: TxnOffsetCommitResponse) -> None:
        if any(result.error_code in _OF_MEMBERS for result in body.results):
            self.faults.counts[FaultKind.MEMBER_FENCED] += 1

    def _count_refusals(self, body: ProduceResponse) -> None:
        for partition in body.partitions:
            if partition.error_code == ErrorCode.MESSAGE_TOO_LARGE:
                self.faults.counts[FaultKind.BATCH_TOO_LARGE] += 1
            elif partition.error_code == ErrorCode.INVALID_RECORD:
                self.faults.counts[FaultKind.RECORD_INVALID] += 1

    def _note_refused_end(self, request: EndTxnRequest, response: Response) -> None:
        code = getattr(response, "error_code", ErrorCode.NONE)
        if code not in _REFUSED_ENDS:
            return
        name = request.transactional_id
        known = self.cluster.transaction_coordinator(name).find(name)
        named = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
        is_other = known is None or named != ProducerIdAndEpoch(
            known.producer_id, known.producer_epoch
        )
        is_open = known is not None and known.state is TransactionalIdState.ONGOING
        # Its transaction is open, so that only a state can have been refused.
        is_right = is_other or (code == ErrorCode.INVALID_TXN_STATE and not is_open)
        self.history.ends_refused[named].add(is_right)

    def _note_fence(self, request: Request, body: InitProducerIdResponse, sender: str) -> None:
        if not isinstance(request, InitProducerIdRequest) or request.transactional_id is None:
            return
        logs = self.cluster.topology.all_logs()
        # Of this moment: what older producers wrote before is theirs.
        ends = {life: log.log_end_offset for life, log in logs.items()}
        name = request.transactional_id
        acts = self.cluster.acts_of_time[name]
        self.history.fences.append(
            Fence(name, body.producer_id, body.producer_epoch, ends, sender, acts)
        )
