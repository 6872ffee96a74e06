"""A session that consumes, transforms and produces, exactly once.

Owns: the order of polls and transactions, the way back after an abort, records that fail again and
again. Must not know: how a consumer's library names things (`kafka_python`), the end of a batch's
transaction (`block`), which failure is repeated (`transaction_runs`).
Rules:
* A batch is committed or given back before the next poll. So the position after an abort is the
  first record of the batch, unless partitions were lost meanwhile: then it is the committed one.
* The identity in the group is that of the poll. A consumer that the group has given up on, and
  that has joined again since, must not commit the offsets of before (KIP-447).
* A change of the identity sets all positions back to the committed offsets. A consumer may not
  have noticed that another one had its partitions meanwhile.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

from txnproducer._protocol.backoff import doubled
from txnproducer._shell.runs_in_threads import run_once
from txnproducer._shell.transaction_runs import Bounds, Run
from txnproducer.errors import (
    FencedInstanceIdError,
    IllegalStateError,
    KafkaError,
)
from txnproducer.producer import TransactionalProducer
from txnproducer.records import TopicPartition
from txnproducer.session.batch import Batch, Record, SessionConsumer
from txnproducer.session.block import SessionBlock
from txnproducer.transaction import Transaction

__all__ = ["TransactSession"]

_LOG = logging.getLogger(__name__)
_POLL_S = 1.0
_FIRST_PAUSE_MS = 50
_LONGEST_PAUSE_MS = 5_000


class _PoisonError(Exception):
    """Leaves the block of a batch with a record that has failed. Its argument is the place."""


class TransactSession:
    """Reads records, has a function transform them, and commits results and offsets together.

    A program in short::

        with TransactSession.for_kafka_python(
            ["orders"], "billing", "billing-0", bootstrap_servers="localhost:9092"
        ) as session:
            session.run(lambda record, txn: txn.send("bills", record.value), stop)

    Each input record has its results exactly once, however often consumers join, leave and fail.
    Results of an aborted batch are not visible to `read_committed` readers, and its records are
    read again. So the function may be called several times for one record.

    Args:
        consumer: not subscribed yet; it reads committed records, and commits nothing itself.
        producer: initialized, and used by nothing else.
        topics: to read from.
        max_failures: calls for one record that may raise; after that it goes to the dead-letter
            topic, in the transaction of its batch.
        dead_letter_topic: None raises the exception of the last failure.

    Raises:
        InvalidConfigurationError: the consumer has settings with which records would be lost or
            doubled; the error names the setting.
    """

    def __init__(
        self,
        consumer: SessionConsumer,
        producer: TransactionalProducer,
        topics: Sequence[str],
        *,
        max_failures: int = 3,
        dead_letter_topic: str | None = None,
    ) -> None:
        if max_failures < 1:
            raise ValueError(f"max_failures={max_failures}: at least one call is needed")
        consumer.check()
        self._consumer = consumer
        self._producer = producer
        self._max_failures = max_failures
        self._dead_letter_topic = dead_letter_topic
        self._number = 0
        self._guard = threading.Lock()
        self._open: Batch | None = None
        # The generation and the member of the last poll.
        self._identity: tuple[int, str] | None = None
        # Where the next poll has to read first, and whether no partition was lost since.
        self._back: tuple[dict[TopicPartition, int], bool] | None = None
        # Of records that have failed: how often, and the last exception.
        self._failures: dict[tuple[TopicPartition, int], tuple[int, Exception]] = {}
        consumer.subscribe(topics, self._note_loss)

    @classmethod
    def for_kafka_python(
        cls,
        topics: Sequence[str],
        group_id: str,
        transactional_id: str,
        *,
        bootstrap_servers: str | list[str],
        consumer_settings: dict[str, Any] | None = None,
        producer_settings: dict[str, Any] | None = None,
        max_failures: int = 3,
        dead_letter_topic: str | None = None,
    ) -> Self:
        """Make a session with a consumer of kafka-python, and a producer. It closes both.

        Args:
            topics: to read from.
            group_id: the consumer group.
            transactional_id: of this process alone; see the page "Which transactional id".
            bootstrap_servers: of both.
            consumer_settings: for `KafkaConsumer`. Those that a session needs are set.
            producer_settings: for `TransactionalProducer`.
            max_failures: see the class.
            dead_letter_topic: likewise.
        """
        from kafka import KafkaConsumer  # late: another consumer does not need it

        from txnproducer.session.kafka_python import REQUIRED, KafkaPythonConsumer

        with contextlib.ExitStack() as stack:
            producer = TransactionalProducer(
                bootstrap_servers, transactional_id, **(producer_settings or {})
            )
            stack.callback(producer.close, 0)
            producer.init_transactions()
            consumer = KafkaConsumer(
                bootstrap_servers=bootstrap_servers,
                group_id=group_id,
                **{**REQUIRED, **(consumer_settings or {})},
            )
            stack.callback(consumer.close, autocommit=False)
            session = cls(
                KafkaPythonConsumer(consumer),
                producer,
                topics,
                max_failures=max_failures,
                dead_letter_topic=dead_letter_topic,
            )
            stack.pop_all()  # from here on the session closes both
        return session

    def _note_loss(self) -> None:
        with self._guard:
            self._number += 1

    # --- one batch -----------------------------------------------------------------------------

    def poll(self, timeout: float = _POLL_S, max_records: int = 500) -> Batch:
        """Return the next records, or an empty batch after a time.

        A batch with records must go through `transaction` before the next poll.

        Args:
            timeout: seconds.
            max_records: at most.

        Raises:
            IllegalStateError: the batch before was neither committed nor given back.
        """
        if self._open is not None:
            raise IllegalStateError(
                f"the batch before, of {len(self._open)} records, was not processed: put it into"
                " `with session.transaction(batch):`, or its records would be skipped"
            )
        is_back, number = self._goes_back(), self._number
        # On the way back as well: a consumer that does not poll cannot join, and is given up.
        records = self._consumer.poll(timeout, max_records)
        batch = Batch(records, self._consumer.group_metadata(), number)
        is_known = self._is_known_member(batch.group_metadata)
        # The number last: partitions may be lost while the calls above return.
        if not is_back or not is_known or number != self._number:
            # The position may be older than another consumer's commit, so it is looked up again.
            self._back = self._earliest(batch), False
            return Batch(())
        self._open = batch if records else None
        return batch

    def _is_known_member(self, metadata: Any) -> bool:
        """Return whether the identity in the group is a full one, and that of the poll before."""
        identity = metadata.generation_id, metadata.member_id
        is_known = identity == self._identity
        # Without a generation the coordinator could not fence the commit.
        self._identity = identity if identity[0] >= 0 and identity[1] else None
        return is_known and self._identity is not None

    def _earliest(self, batch: Batch) -> dict[TopicPartition, int]:
        """Return where to read on in partitions without a committed offset."""
        before, _ = self._back or ({}, False)
        found = batch.first_offsets
        return {**found, **{place: min(n, found.get(place, n)) for place, n in before.items()}}

    def _goes_back(self) -> bool:
        """Go back to where the next poll has to read. Return whether that is done."""
        if self._back is None:
            return True
        offsets, is_current = self._back
        if is_current:
            self._consumer.seek(offsets)
        elif not self._consumer.rewind(offsets):
            return False
        self._back = None  # only now: a way back that has failed is tried again
        return True

    def transaction(self, batch: Batch) -> SessionBlock:
        """Return a transaction for a `with` block, which processes a batch.

        Its end adds the batch's offsets, and commits. If the group has given up on this consumer,
        or partitions were lost, the transaction is aborted and the block ends without an
        exception: its `outcome` is "aborted", and the next poll reads on from the committed
        offsets. Any other exception aborts, and is raised; the records are then read again.

        Args:
            batch: of the last poll.

        Raises:
            IllegalStateError: it is not the batch of the last poll.
        """
        if batch is not self._open:
            what = "an empty batch needs no transaction" if not batch else "poll again"
            raise IllegalStateError(f"this is not the open batch of the last poll: {what}")
        return self._block_of(batch)

    def _block_of(self, batch: Batch) -> SessionBlock:
        return SessionBlock(self._producer.transaction(), batch, self._is_current, self._settle)

    def _is_current(self, batch: Batch) -> bool:
        return batch.number == self._number

    def _settle(self, batch: Batch, outcome: str) -> None:
        """Note the end of a batch, and go back after an abort."""
        if batch is not self._open or outcome in ("open", "unknown"):
            return  # `run` goes on; otherwise the next poll says that the batch is open
        self._open = None
        if outcome == "committed":
            for record in batch:
                self._failures.pop((record.topic_partition, record.offset), None)
        else:
            # By the next poll: an error here would hide the reason of the abort.
            self._back = batch.first_offsets, self._is_current(batch)

    # --- many batches --------------------------------------------------------------------------

    def run(
        self,
        fn: Callable[[Record, Transaction], object],
        stop: threading.Event,
        *,
        max_records: int = 500,
    ) -> None:
        """Process records until `stop` is set.

        A commit that times out is awaited again. An aborted batch is read again. A record that
        fails `max_failures` times goes to the dead-letter topic.

        Args:
            fn: gets each record, and the transaction of its batch.
            stop: ends it, after the batch under way.
            max_records: of one transaction.

        Raises:
            KafkaError: the producer has failed, or a commit stays in doubt: make a new session.
            Exception: of the function, without a dead-letter topic; or of the consumer's library,
                for instance at a login.
        """
        failed = 0
        while not stop.is_set():
            batch = self.poll(max_records=max_records)
            if not batch:
                continue
            if self._process(batch, fn):
                failed = 0
                continue
            # A failure that lasts must not take all of a processor.
            stop.wait(doubled(_FIRST_PAUSE_MS, _LONGEST_PAUSE_MS, failed) / 1000)
            failed += 1

    def _process(self, batch: Batch, fn: Callable[[Record, Transaction], object]) -> bool:
        """Process a batch. Return whether it was committed; if not, it is read again."""
        block = self._block_of(batch)
        run: Run[SessionBlock, None] = Run(block, Bounds(), has_look=False)
        try:
            run_once(self._producer, lambda txn: self._transform(batch, fn, txn), run, str)
        except Exception as error:
            is_poison = isinstance(error, _PoisonError)
            cause = error.__cause__
            # A result that brokers refuse for good would be refused again and again.
            is_for_good = isinstance(cause, KafkaError) and cause.recovery == "fix"
            # Another process has this one's place in the group, and keeps it.
            is_for_good = is_for_good or isinstance(error, FencedInstanceIdError)
            if not is_poison and (is_for_good or not run.may_run_again):
                raise
            if is_poison and cause is not None and not self._may_be_read_again(error):
                raise cause from None
            _LOG.warning("%d records are read again: %r", len(batch), cause or error)
        finally:
            self._settle(batch, block.outcome)
        return block.outcome == "committed"

    def _transform(
        self, batch: Batch, fn: Callable[[Record, Transaction], object], transaction: Transaction
    ) -> None:
        for record in batch:
            place = (record.topic_partition, record.offset)
            count, error = self._failures.get(place, (0, None))
            if error is not None and count >= self._max_failures:
                self._bury(record, transaction, error)
                continue
            try:
                fn(record, transaction)
            except Exception as error:
                # Another error of Kafka's is of the transaction, and not of the record.
                if isinstance(error, KafkaError) and error.recovery != "fix":
                    raise
                self._failures[place] = count + 1, error
                raise _PoisonError(place) from error

    def _may_be_read_again(self, error: BaseException) -> bool:
        count, _ = self._failures[error.args[0]]
        return self._dead_letter_topic is not None or count < self._max_failures

    def _bury(self, record: Record, transaction: Transaction, error: BaseException) -> None:
        """Write a record that fails again and again to the dead-letter topic."""
        place = f"{record.topic}-{record.partition}, offset {record.offset}"  # not its content
        text = "the record of %s goes to the dead-letter topic %s: %r"
        _LOG.warning(text, place, self._dead_letter_topic, error)
        about = {
            "dlt-topic": record.topic,
            "dlt-partition": str(record.partition),
            "dlt-offset": str(record.offset),
            "dlt-error": repr(error),
        }
        headers = [*record.headers, *((name, value.encode()) for name, value in about.items())]
        transaction.send(self._dead_letter_topic or "", record.value, record.key, headers)

    # --- the end -------------------------------------------------------------------------------

    def close(self) -> None:
        """Leave the group, and close the producer, which aborts an open transaction."""
        try:
            self._consumer.close()
        finally:
            self._producer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
