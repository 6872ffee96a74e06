"""The transactional ids of prepared parts. The driver takes them, leases them, and ends the parts.

Why it exists: only the driver takes the id of a part. A task that took it itself would abort a
part that is decided, whenever an attempt of it came late.

Owns: the producers of the ids, and which transactions are theirs to abort. Must not know: the
decision, the ledger, tasks.

Rules:
* A transaction that may be decided is never aborted here, neither by `abort`, nor when the ids are
  let go, nor at the interpreter's exit: see `leave`.
* An end is repeated under the same lease as long as its answer is not clear. A repeated commit of
  a committed part succeeds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from txnproducer._core.transactions.transaction_loss import sign_of_loss
from txnproducer.errors import KafkaError
from txnproducer.lease import TransactionLease, TransactionReceipt
from txnproducer.producer import TransactionalProducer
from txnproducer.spark.driver.runs import MOST_AT_ONCE
from txnproducer.spark.ledger.entries import LedgerEntry
from txnproducer.spark.ledger.producers import CLOSE_AT_STOP_S, closing, config_for
from txnproducer.spark.ledger.rights import taking
from txnproducer.spark.ledger.store import Ledger

_In = TypeVar("_In")
_Out = TypeVar("_Out")


class PartIds:
    """The ids of a sink's parts, as far as this driver holds them.

    Args:
        ledger: of the sink.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._producers: dict[int, TransactionalProducer] = {}

    def __reduce__(self) -> tuple[type[PartIds], tuple[Ledger]]:
        # A copy holds nothing: Spark Connect pickles the sink.
        return PartIds, (self._ledger,)

    def take(self, slots: Iterable[int], settings: Mapping[str, Any]) -> None:
        """Take the ids of slots. Their holders are fenced, and what they left open is aborted.

        Raises:
            MissingRightError: Write on an id is missing.
            KafkaError: the cluster refused, or did not answer.
        """

        def take_one(slot: int) -> None:
            self.let_go([slot])
            name = self._ledger.transactional_id(slot)
            producer = TransactionalProducer.from_config(config_for(settings, name))
            try:
                with taking(self._ledger, name):
                    producer.init_transactions()
            except BaseException:
                producer.close(0)
                raise
            self._producers[slot] = producer

        _at_once(take_one, slots)

    def lease(
        self, slots: Iterable[int], settings: Mapping[str, Any]
    ) -> dict[int, TransactionLease]:
        """Begin a transaction for each slot, and lease it to one task. Missing ids are taken.

        Raises:
            KafkaError: the cluster refused, or did not answer.
        """
        wanted = list(slots)
        self.take([slot for slot in wanted if slot not in self._producers], settings)

        def lease_one(slot: int) -> TransactionLease:
            producer = self._producers[slot]
            producer.begin_transaction()
            # The claim has an id of its own, and needs the right to Write on it.
            with taking(self._ledger, f"{self._ledger.transactional_id(slot)}.claim-0"):
                return producer.lease(claims=1)

        return dict(zip(wanted, _at_once(lease_one, wanted), strict=True))

    def prepare(self, parts: Mapping[int, tuple[TransactionReceipt, LedgerEntry]]) -> None:
        """Add its entry to each part that was written, which shows that the part is still alive.

        Args:
            parts: by slot, the task's receipt and the entry.

        Raises:
            KafkaError: a part is lost, or the cluster did not answer.
        """

        def prepare_one(slot: int) -> None:
            receipt, entry = parts[slot]
            producer = self._producers[slot]
            producer.adopt([receipt])
            self._ledger.write(producer, slot, entry)

        _at_once(prepare_one, parts)

    def commit(self, slot: int) -> None:
        """Commit the part of a slot.

        Raises:
            KafkaError: it is not certain that it is committed; or the transaction is lost.
        """
        self._producers[slot].commit_transaction()

    def abort(self, slots: Iterable[int]) -> None:
        """Abort the parts of slots that nobody has decided.

        Raises:
            KafkaError: one could not be aborted; the next that takes its id does.
        """
        _at_once(lambda slot: self._producers[slot].abort_transaction(), slots)

    def let_go(
        self, slots: Iterable[int] | None = None, timeout_s: float = CLOSE_AT_STOP_S
    ) -> None:
        """Let go of ids, all by default. What is open under them is aborted, if time is left."""
        wanted = list(self._producers if slots is None else slots)
        # Taken out first: if a close is interrupted, no later batch uses the producer.
        ours = [self._producers.pop(slot) for slot in wanted if slot in self._producers]
        _at_once(lambda producer: producer.close(timeout_s), ours)

    def leave(self) -> None:
        """Let go of all ids, and abort nothing: what is open under them may be decided."""
        producers, self._producers = self._producers, {}
        for producer in producers.values():
            producer.disown()


def end_by_lease(
    leases: Mapping[int, TransactionLease], settings: Mapping[str, Any]
) -> dict[int, KafkaError]:
    """Commit decided parts by their leases.

    Args:
        leases: by slot.
        settings: the producer's, by Java's names.

    Returns:
        By slot, the error of each part whose transaction was over before: it may have been
        committed and gone on, or aborted by its time-out. The ledger's entry tells which.

    Raises:
        KafkaError: it is not known of a part whether it was ended.
    """

    def end_one(slot: int) -> KafkaError | None:
        lease = leases[slot]
        config = config_for(settings, lease.transactional_id)
        with closing(TransactionalProducer.resume_from_config(lease, config)) as producer:
            try:
                producer.commit_transaction()
            except KafkaError as error:
                if sign_of_loss(error) is None:
                    raise
                return error
        return None

    ends = zip(leases, _at_once(end_one, leases), strict=True)
    return {slot: error for slot, error in ends if error is not None}


def _at_once(call: Callable[[_In], _Out], inputs: Iterable[_In]) -> list[_Out]:
    """Call for all inputs, some at once. No call is under way when this returns or raises."""
    with ThreadPoolExecutor(MOST_AT_ONCE) as pool:
        # The list reads every result, so that an error in one of the threads is raised here.
        return list(pool.map(call, inputs))
