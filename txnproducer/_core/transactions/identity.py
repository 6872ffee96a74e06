"""The producer's identity: its id and epoch, the epoch bumps, and the version of transactions.

Owns: the identity that the next request names, whether a new epoch is due at the end of the
transaction, and the version of transactions in use. Must not know: states, requests.

Rules:
* Whether transactions are v1 or v2 (KIP-890) depends on the finalized feature, not on API
  versions. The feature is read when the producer is initialized and when a transaction begins to
  end. It counts from the next transaction on. The change to v2 also raises the epoch.
* A v1 transaction that lost an answer is followed by a new epoch: the request may still be on its
  way, and would join a later transaction of the same epoch (KAFKA-17754). Where the cluster cannot
  raise epochs, no further transaction is begun. With v2 every transaction has its own epoch.
"""

from __future__ import annotations

from typing import Final

from txnproducer._core.ports import KafkaClient
from txnproducer._core.sequences.sequence_manager import SequenceManager
from txnproducer._core.transactions.commit_evidence import ResolvedOutcome
from txnproducer._protocol.messages import ApiKey
from txnproducer._protocol.versions import NodeApiVersions
from txnproducer.errors import KafkaError
from txnproducer.records import ProducerIdAndEpoch, TransactionLease

# From this version on InitProducerId takes the present id and epoch, and answers with the next
# epoch (KIP-360).
_FIRST_VERSION_WITH_BUMP: Final = 3


class ProducerIdentity:
    """The producer's id and epoch, and the version of its transactions.

    Args:
        sequences: hold id and epoch, and begin at 0 with a new one.
        client: asked for the cluster's finalized features.
        is_transactional: whether there is a transactional id.

    Attributes:
        sequences: the partitions' sequence numbers.
        is_transaction_v2_enabled: whether the present transaction is written with v2.
        coordinator_can_bump: whether the transaction coordinator raises epochs when asked; kept
            while it is disconnected.
        is_bump_required: whether the epoch has to be raised when this transaction ends.
        has_stray_request: whether a lost request forbids further transactions, because this epoch
            cannot be raised.
        may_begin_again: whether a request without an answer may still begin another transaction
            under this epoch (v1).
        is_due: whether the producer has to be initialized.
        loss: the refusal that took the identity away; None if there is one, or never was.
    """

    def __init__(
        self, sequences: SequenceManager, client: KafkaClient, *, is_transactional: bool
    ) -> None:
        self.sequences = sequences
        self._client = client
        self._is_transactional = is_transactional
        self.is_transaction_v2_enabled = False
        self._is_v2_enabled_next = False
        self._features_epoch = -1
        self.coordinator_can_bump = False
        self.is_bump_required = False
        self.has_stray_request = False
        self.may_begin_again = False
        self.is_due = True
        self.loss: KafkaError | None = None
        # How transactions under this epoch may have ended before (v1).
        self._ends: set[ResolvedOutcome] = set()

    @property
    def producer_id_and_epoch(self) -> ProducerIdAndEpoch:
        """The present identity."""
        return self.sequences.producer_id_and_epoch

    @property
    def has_producer_id(self) -> bool:
        """Whether there is an identity."""
        return self.producer_id_and_epoch.is_valid

    @property
    def must_bump_from_client(self) -> bool:
        """Whether the client has to raise the epoch after an error, and can."""
        return self.coordinator_can_bump and not self.is_transaction_v2_enabled

    @property
    def can_handle_abortable_error(self) -> bool:
        """Whether the epoch is raised after an abort, by the client or by the coordinator."""
        return self.coordinator_can_bump or self.is_transaction_v2_enabled

    def learn_coordinator(self, api_versions: NodeApiVersions | None) -> None:
        """Learn whether the transaction coordinator can raise epochs."""
        version = (
            None if api_versions is None else api_versions.max_version(ApiKey.INIT_PRODUCER_ID)
        )
        self.coordinator_can_bump = version is not None and version >= _FIRST_VERSION_WITH_BUMP

    # --- the ends under an epoch ----------------------------------------------------------------

    def ended(self, outcome: ResolvedOutcome) -> None:
        """Note the end of a transaction under the present epoch."""
        self._ends.add(outcome)

    def may_have_ended(self, outcome: ResolvedOutcome) -> bool:
        """Return whether another transaction under the present epoch may have ended so."""
        return outcome in self._ends

    # --- a new identity -------------------------------------------------------------------------

    def take(self, producer: ProducerIdAndEpoch) -> None:
        """Take an identity that InitProducerId has given."""
        # A transactional producer has nothing in flight here. An idempotent one may have: it keeps
        # its numbers until the next step renumbers them.
        if self._is_transactional:
            self.sequences.reset_sequence_numbers()
        self.sequences.adopt(producer)
        self._ends.clear()
        # The new epoch fences every late request of the old one.
        self.is_bump_required = self.has_stray_request = self.may_begin_again = False
        self.is_due = False

    def take_next(self, producer: ProducerIdAndEpoch) -> None:
        """Take the identity for the next transaction, if its end has brought one."""
        if not producer.is_valid:
            return
        # Under a new epoch each partition expects 0 first.
        self.sequences.reset_sequence_numbers()
        self.sequences.adopt(producer)
        self._ends.clear()
        if not self.is_transaction_v2_enabled:
            # The epoch was raised to prove the end, and serves every other reason as well.
            self.is_bump_required = self.has_stray_request = self.may_begin_again = False

    def begin_next(self) -> None:
        """Begin with the next transaction's version, and without a due bump."""
        # Not earlier: a transaction is ended with the version that it was begun with.
        self.is_bump_required = False
        self.is_transaction_v2_enabled = self._is_v2_enabled_next

    def take_over(self, lease: TransactionLease) -> None:
        """Take the identity of a transaction that another process has opened."""
        self.sequences.reset_sequence_numbers()
        self.sequences.adopt(lease.producer)
        # The transaction has begun with this version; the features read here may differ.
        self.is_transaction_v2_enabled = self._is_v2_enabled_next = lease.is_transaction_v2
        # The other process may have ended transactions under it before.
        self._ends = {"committed", "aborted"}
        self.is_due = False

    def ask_again(self) -> None:
        """Note that the application initializes the producer again, and so has seen its loss."""
        self.loss = None

    def lose(self, error: KafkaError) -> None:
        """Note that the producer has to be initialized again.

        Args:
            error: the refusal that is the cause.
        """
        # A producer that had no identity yet has lost none.
        if not self.is_due:
            self.loss = error
        self.is_due = True
        # The next InitProducerId raises the epoch in any case.
        self.is_bump_required = False
        self.sequences.reset_sequence_numbers()

    # --- when the epoch is raised ---------------------------------------------------------------

    def require_epoch_bump(self) -> None:
        """Raise the epoch when this transaction ends, if the client has to."""
        # With v2 the coordinator raises it at each end.
        if self.must_bump_from_client:
            self.is_bump_required = True

    def epoch_bump_failed(self) -> None:
        """Note that the epoch was not raised. It is raised when the next transaction ends."""
        # Without `must_bump_from_client`: after an upgrade the version is v2, but the bump that is
        # missing is v1's.
        self.is_bump_required = True

    def request_lost(self, *, may_begin_transaction: bool) -> None:
        """Note that a v1 transaction's request has no answer, and could do harm later."""
        if may_begin_transaction:
            self.may_begin_again = True
        self.need_new_epoch()

    def need_new_epoch(self) -> None:
        """Let no other transaction begin under this epoch. Without bumps, none at all."""
        # An idempotent producer raises its epoch by itself, and v2 raises it at each end.
        if not self._is_transactional or self.is_transaction_v2_enabled:
            return
        if self.coordinator_can_bump:
            self.is_bump_required = True
        else:
            self.has_stray_request = True

    def share(self) -> None:
        """Note that other processes write under this identity, and may have requests out."""
        # Their lost requests are not known here, so they are assumed.
        if not self.is_transaction_v2_enabled:
            self.is_bump_required = self.may_begin_again = True

    # --- the version of transactions ------------------------------------------------------------

    def update_transaction_version(self, *, on_initialization: bool) -> None:
        """Read the finalized features, unless they were read before."""
        features = self._client.finalized_features()
        # Brokers learn of new features one after the other, so an older epoch may come later.
        if features.epoch <= self._features_epoch:
            return
        self._features_epoch = features.epoch
        self._is_v2_enabled_next = features.transaction_version >= 2
        if on_initialization:
            self.is_transaction_v2_enabled = self._is_v2_enabled_next
        elif self._is_v2_enabled_next and not self.is_transaction_v2_enabled:
            # Fences what the v1 transaction may have left: v2 does not add partitions explicitly.
            self.is_bump_required = True
