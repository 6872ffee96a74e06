"""The entries and ends of a data source's parts: many transactions over few connections.

Why it exists: a job may have thousands of parts, and its cluster may be gone. If each part had a
time of its own, the end of the job would take hours.

Owns: the deadlines. Must not know: the ledger, the order of steps in a commit.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from txnproducer.config import ProducerConfig
from txnproducer.errors import KafkaError
from txnproducer.lease import TransactionLease
from txnproducer.records import OffsetAndMetadata, TopicPartition
from txnproducer.spark.ledger.coordinator_client import CoordinatorClient, TakenId

# Of the time for all, for those that are ended some at once.
_SHARE_OF_SOME: Final = 0.25


class PartEnds:
    """Ends transactions by their leases, all of them before one deadline.

    Args:
        client: asks the coordinators.
        timeout_ms: for all ends together, from now on or from `begin`.
    """

    def __init__(self, client: CoordinatorClient, timeout_ms: int) -> None:
        self._client = client
        self._began_s = time.monotonic()
        self.timeout_ms = timeout_ms

    def begin(self) -> None:
        """Begin to count the time for all ends."""
        self._began_s = time.monotonic()

    def write_all(
        self, offsets: Iterable[tuple[TransactionLease, str, TopicPartition, OffsetAndMetadata]]
    ) -> dict[str, KafkaError]:
        """Write an offset into each transaction, in a time of its own. Return the errors by id."""
        return self._client.write_offsets(offsets, self.timeout_ms)

    @property
    def left_ms(self) -> int:
        """The time that is left; 0 if it is over."""
        return self._left_ms(self.timeout_ms)

    @property
    def is_slow(self) -> bool:
        """Whether the time is over in which parts are ended some at once.

        The rest is ended by one call then: parts of a coordinator that does not answer would keep
        all others waiting.
        """
        return not self._left_ms(self.timeout_ms * _SHARE_OF_SOME)

    def end_one(self, lease: TransactionLease) -> KafkaError | None:
        """Commit a transaction, within the time for some at once. Return the error, if any."""
        timeout_ms = self._left_ms(self.timeout_ms * _SHARE_OF_SOME)
        ends = self._client.end_ids([lease], is_commit=True, timeout_ms=timeout_ms)
        return ends[lease.transactional_id].error

    def end_all(
        self, leases: Sequence[TransactionLease], *, is_commit: bool
    ) -> dict[str, KafkaError]:
        """Commit or abort transactions in the time that is left. Return the errors by id."""
        ends = self._client.end_ids(leases, is_commit=is_commit, timeout_ms=self.left_ms)
        return {name: end.error for name, end in ends.items() if end.error is not None}

    def take_all(self, ids: Iterable[str]) -> dict[str, KafkaError]:
        """Take ids in the time that is left: fence their holders. Return the errors by id."""
        found: dict[str, TakenId | KafkaError] = self._client.take_each(ids, self.left_ms)
        return {name: one for name, one in found.items() if isinstance(one, KafkaError)}

    def _left_ms(self, timeout_ms: float) -> int:
        return max(0, int(timeout_ms - (time.monotonic() - self._began_s) * 1000))


@contextmanager
def ends_of(config: ProducerConfig) -> Iterator[PartEnds]:
    """Open connections for the ends of parts. All have as long as a call may block.

    Args:
        config: of the sink's producers.
    """
    with CoordinatorClient(config) as client:
        yield PartEnds(client, config.max_block_ms)
