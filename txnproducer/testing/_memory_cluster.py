"""The modelled cluster of an in-memory Kafka, with its answers to a test's calls.

Why it exists: a test asks for an event that the model may bring about by itself at any time. The
model alone does not say that it has.
Owns: `MemoryCluster`. Must not know: threads, sockets, the arguments of a test.
"""

from __future__ import annotations

from collections import Counter

from txnproducer._broker.cluster import BrokerCluster, ClusterOptions
from txnproducer._broker.transaction_coordinator import LogWrite
from txnproducer._broker.transaction_metadata import TransactionMetadata
from txnproducer._protocol.rng import Rng


class MemoryCluster(BrokerCluster):
    """A cluster of brokers in memory, for one test.

    Args:
        options: the settings of the cluster.
        rng: the source of all randomness.
    """

    def __init__(self, options: ClusterOptions, rng: Rng) -> None:
        super().__init__(options, rng)
        # By id: how often time had ended a transaction of it when the id was last written.
        self._acts_when_written: Counter[str] = Counter()

    def log_write(self, changed: TransactionMetadata) -> LogWrite:
        """Decide the outcome of a write to the transaction log."""
        name = changed.transactional_id
        self._acts_when_written[name] = self.acts_of_time[name]
        return super().log_write(changed)

    def has_timed_out(self, transactional_id: str) -> bool:
        """Return whether the last change of an id was the abort at its transaction's time-out."""
        # The coordinator counts a time-out after it has written the abort and its completion. Both
        # come at once: here no marker takes time.
        written = self._acts_when_written[transactional_id]
        return self.acts_of_time[transactional_id] > written
