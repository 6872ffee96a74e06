"""One transaction that several processes write: leases, participants, receipts.

    # the holder                              # each worker, with its n
    producer.begin_transaction()              part = TransactionParticipant(lease, n, servers)
    lease = producer.lease(claims=4)          with part:
    ... start workers, collect receipts ...       part.send("topic", b"value", partition=n)
    producer.adopt(receipts)                      return part.receipt()
    producer.commit_transaction()

Owns: `TransactionParticipant`, the producer of a worker. Must not know: how a claim is decided
(the broker does that, see the core), how the worker got its lease, where its receipt goes.
Rules:
* A partition has one writer in a transaction. The application decides which one, and the holder
  refuses two receipts for one partition.
* A participant that fails gives no receipt. The holder then aborts, makes a new lease, and starts
  all work again; so no record is lost, and none is written twice.
"""

from __future__ import annotations

from typing import Any

from txnproducer._shell.arguments import check_claim
from txnproducer._shell.record_writer import RecordWriter
from txnproducer.config import ProducerConfig
from txnproducer.errors import InvalidConfigurationError
from txnproducer.records import PartitionReceipt, TransactionLease, TransactionReceipt

__all__ = [
    "PartitionReceipt",
    "TransactionLease",
    "TransactionParticipant",
    "TransactionReceipt",
]


class TransactionParticipant(RecordWriter):
    """A writer of records into a transaction that another process holds and ends.

    The constructor takes the claim: of all processes that ask for a claim of one lease, the broker
    lets only one write. A participant has no calls for the transaction, and closing it ends
    nothing.

    Args:
        lease: the result of the holder's `lease()`.
        claim: the number of this participant's claim, from 0.
        bootstrap_servers: "host:port", several separated by commas, or a list of them.
        settings: as for `TransactionalProducer`; the transactional id is the lease's.

    Raises:
        ClaimRefusedError: another process may have the claim, or the lease is an old one, or of
            another cluster. Nothing was written.
        TypeError, ValueError: the lease has no such claim.
        KafkaTimeoutError: no answer within `max_block_ms`.
        InvalidConfigurationError: a setting is unknown or does not fit; the error names it.
    """

    def __init__(
        self,
        lease: TransactionLease,
        claim: int,
        bootstrap_servers: str | list[str] | None = None,
        **settings: Any,
    ) -> None:
        # Otherwise `build` would get it twice, and the error would not speak of the lease.
        if "transactional_id" in settings or "transactional.id" in settings:
            raise InvalidConfigurationError(
                "transactional_id is the lease's: leave it out of a participant's settings"
            )
        if bootstrap_servers is not None:
            settings["bootstrap_servers"] = bootstrap_servers
        config = ProducerConfig.build(transactional_id=lease.transactional_id, **settings)
        self._take_part(lease, claim, config)

    @classmethod
    def from_config(
        cls, lease: TransactionLease, claim: int, config: ProducerConfig
    ) -> TransactionParticipant:
        """Take part with an existing configuration. It must have the lease's transactional id."""
        # Without `__init__`, which would build another configuration.
        participant = cls.__new__(cls)
        participant._take_part(lease, claim, config)  # noqa: SLF001 - our own class
        return participant

    def _take_part(self, lease: TransactionLease, claim: int, config: ProducerConfig) -> None:
        # Before `_open`: a number that is refused must leave no thread.
        claim = check_claim("claim", claim)
        self._open(config)
        try:
            self._await("join", lambda: self._core.begin_join(lease, claim))
            self._check_cluster(lease, "join")
        except BaseException:
            # Also after Ctrl-C: nobody has the object yet, so nobody else could close it.
            self.close(0)
            raise

    def receipt(self) -> TransactionReceipt:
        """Wait until every record is acknowledged, take no more, and return the receipt.

        Pass it to the holder, which needs one for each claim to commit. A second call returns the
        same receipt.

        Raises:
            KafkaTimeoutError: records are still on their way after `delivery_timeout_ms`.
            KafkaError: a record was not written, or the transaction was aborted or timed out;
                there will be no receipt, and the holder has to abort.
        """
        # Before the lock is taken: while this waits, the I/O thread needs the lock to send.
        self.flush()
        with self._lock:
            return self._core.give_receipt()
