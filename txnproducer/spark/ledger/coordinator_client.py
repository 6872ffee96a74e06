"""A client of coordinators: takes many transactional ids at once, and ends their transactions.

    with CoordinatorClient(config) as coordinators:
        taken = coordinators.take_ids(["sink.p0", "sink.p1"], timeout_ms=30_000)
        leases = [one.lease() for one in taken.values()]
        ... tasks write under the leases ...
        ends = coordinators.end_ids(leases, is_commit=True, timeout_ms=30_000)

Why it exists: a producer for each id costs a thread, two connections and several round trips. This
asks for hundreds of ids over few connections (`coordinator_steps.py`).

Owns: the I/O thread and its end, deadlines. Must not know: what the ids are for.

Rules:
* Connections are kept between calls. Brokers close those that are idle, and the next call opens
  others.
* Several threads may call. The requests of one call to the same id have no order.
* It belongs to the process that made it, as the connections do.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self, TypeVar

from txnproducer._core.failed_tries import also
from txnproducer._core.transactions.claims import next_answer
from txnproducer._shell.io_thread import IoThread
from txnproducer._sync.core_lock import new_loop_priority
from txnproducer._wire.network_client import NetworkClient
from txnproducer._wire.platform import SYSTEM, Platform
from txnproducer.config import ProducerConfig
from txnproducer.errors import KafkaError
from txnproducer.records import (
    OffsetAndMetadata,
    ProducerIdAndEpoch,
    TopicPartition,
    TransactionLease,
    claim_id,
)
from txnproducer.spark.ledger.coordinator_steps import CoordinatorSteps
from txnproducer.spark.ledger.id_requests import EndRequest, IdRequest, OffsetRequest, TakeRequest

_V2: Final = 2
_R = TypeVar("_R", bound=IdRequest)


@dataclass(frozen=True, slots=True)
class TakenId:
    """A transactional id that was taken: its earlier holder is fenced.

    Attributes:
        transactional_id: the id.
        producer: its producer id and epoch from now on.
        is_transaction_v2: whether its transactions are of v2 (KIP-890).
        cluster_id: of the cluster; None if it is not known.
    """

    transactional_id: str
    producer: ProducerIdAndEpoch
    is_transaction_v2: bool
    cluster_id: str | None = None

    def lease(self, claims: Sequence[ProducerIdAndEpoch] = ()) -> TransactionLease:
        """Return a lease of the id's next transaction, into which nothing is written yet.

        Args:
            claims: for each participant, the answer that it has to get; see `take_claims`. Without
                claims the lease is only good for `resume`, and for `end_ids`.
        """
        return TransactionLease(
            self.transactional_id,
            self.producer,
            self.is_transaction_v2,
            tuple(claims),
            cluster_id=self.cluster_id,
        )


@dataclass(frozen=True, slots=True)
class EndResult:
    """The end of a transaction.

    Attributes:
        error: the reason why it was not ended; None if it was. `CommitOutcomeUnknownError` if a
            commit was sent and its outcome is unknown: it may be repeated under the same lease.
        next: the identity for the next transaction of the id, with v2. NONE with v1, where the id
            has to be taken again: participants' sequence numbers begin at 0.
    """

    error: KafkaError | None
    next: ProducerIdAndEpoch


class CoordinatorClient:
    """Takes and ends many transactional ids at once, over at most eight connections a broker.

    Args:
        config: settings of the producers of the ids; its own transactional id is not used.
        platform: has the sockets, threads and clock.

    Raises:
        InvalidConfigurationError: a security setting is missing or wrong.
    """

    def __init__(self, config: ProducerConfig, platform: Platform = SYSTEM) -> None:
        self._timeout_ms = config.transaction_timeout_ms
        priority = new_loop_priority()
        self._client = NetworkClient(
            config, platform.monotonic_ms, priority=priority, platform=platform
        )
        self._steps = CoordinatorSteps(config, self._client, platform)
        name = f"txnproducer-coordinators-{config.client_id}"
        self._io = IoThread(self._client, name, priority, platform)
        try:
            self._io.start(self._steps)
        except BaseException:
            self._io.orphan()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def take_ids(self, ids: Iterable[str], timeout_ms: int) -> dict[str, TakenId]:
        """Take ids: fence their holders, and abort the transactions that these left open.

        Args:
            ids: transactional ids; each is taken once.
            timeout_ms: the deadline for all of them.

        Returns:
            What a lease of each needs, in the order of the ids.

        Raises:
            KafkaTimeoutError: an id could not be taken in time.
            KafkaError: an id was refused, with its id as a note. All others that can be taken are
                taken nevertheless.
        """
        taken: dict[str, TakenId] = {}
        for name, found in self.take_each(ids, timeout_ms).items():
            if isinstance(found, KafkaError):
                found.add_note(f"transactional id {name!r} was not taken")
                raise found
            taken[name] = found
        return taken

    def take_each(self, ids: Iterable[str], timeout_ms: int) -> dict[str, TakenId | KafkaError]:
        """Take ids like `take_ids`, and return the error of each that was not taken."""
        requests = {name: TakeRequest(name, self._timeout_ms) for name in ids}
        self._run(requests.values(), timeout_ms)
        # Read after the answers: a new connection has brought the features by then.
        is_v2 = self._client.finalized_features().transaction_version >= _V2
        cluster_id = self._steps.cluster_id
        return {
            name: request.error or TakenId(name, request.producer, is_v2, cluster_id)
            for name, request in requests.items()
        }

    def take_claims(
        self, claims: Iterable[tuple[str, int]], timeout_ms: int
    ) -> dict[tuple[str, int], ProducerIdAndEpoch]:
        """Take claims for a lease, and return the answer that the participant of each has to get.

        Args:
            claims: the transactional id of the lease, and the number of the claim.
            timeout_ms: the deadline for all of them.

        Raises:
            KafkaError: see `take_ids`.
        """
        left = dict.fromkeys(claims)
        answers: dict[tuple[str, int], ProducerIdAndEpoch] = {}
        while left:
            taken = self.take_ids((claim_id(*claim) for claim in left), timeout_ms)
            for claim in list(left):
                answer = next_answer(taken[claim_id(*claim)].producer)
                # After the last epoch the next answer is not known: the claim is taken once more.
                if answer is not None:
                    answers[claim] = answer
                    del left[claim]
        return answers

    def end_ids(
        self, leases: Iterable[TransactionLease], *, is_commit: bool, timeout_ms: int
    ) -> dict[str, EndResult]:
        """Commit or abort transactions by their leases. The same call may be repeated.

        A commit needs records, or offsets, in each transaction; an abort does not.

        Args:
            leases: of transactions with different ids.
            is_commit: whether to commit them.
            timeout_ms: the deadline for all of them.

        Returns:
            The result for each id, in the order of the leases. A refusal or a time-out is in the
            result, and never raised.
        """
        requests = [EndRequest(lease, is_commit=is_commit) for lease in leases]
        self._run(requests, timeout_ms)
        return {each.transactional_id: EndResult(each.error, each.producer) for each in requests}

    def write_offsets(
        self,
        offsets: Iterable[tuple[TransactionLease, str, TopicPartition, OffsetAndMetadata]],
        timeout_ms: int,
    ) -> dict[str, KafkaError]:
        """Write an offset into each of many transactions.

        Args:
            offsets: for each, the lease of its transaction, a group, a partition and the offset.
                The ids of the leases differ.
            timeout_ms: the deadline for all of them.

        Returns:
            The error of each transaction that may be without its offset, by id.
        """
        requests = [OffsetRequest(*each) for each in offsets]
        self._run(requests, timeout_ms)
        return {each.transactional_id: each.error for each in requests if each.error is not None}

    def _run(self, requests: Iterable[_R], timeout_ms: int) -> None:
        """Have requests sent, and wait until all have ended. Those that are late are given up."""
        waiting = list(requests)

        def are_over() -> bool:
            # From the end, so that each look only counts what has ended since the last.
            while waiting and waiting[-1].is_over:
                waiting.pop()
            return not waiting

        io = self._io
        every = list(waiting)
        try:
            with io.lock:
                self._steps.add(every)
                io.poke()
            io.wait_until(are_over, timeout_ms / 1000)
        finally:
            # Also after Ctrl-C: a request without a caller must not be repeated.
            with io.lock:
                tries = also(self._steps.last_failures)
                for request in every:
                    if not request.is_over:
                        request.give_up(timeout_ms, tries)

    def close(self) -> None:
        """Close the connections, and end the thread. No request may be under way."""
        self._io.close(0)
