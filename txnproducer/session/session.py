"""A session that consumes, transforms and produces, exactly once.

Owns: the order of polls and transactions, the offsets of each batch, the way back after an abort,
records that fail again and again. Must not know: how a consumer's library names things
(`kafka_python`), which failure is repeated (`transaction_runs`).
Rules:
* A batch is committed or given back before the next poll. So the position after an abort is the
  first record of the batch, unless partitions were lost meanwhile: then it is the committed one.
* The identity in the group is that of the poll. A consumer that the group has given up on, and
  that has joined again since, must not commit the offsets of before (KIP-447).
* The loss of any partition between poll and commit aborts: another consumer may have the records.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

from txnproducer._protocol.backoff import doubled
from txnproducer._shell.runs_in_threads import run_once
from txnproducer._shell.transaction_runs import Bounds, Run
from txnproducer.errors import (
    CommitFailedError,
    FencedInstanceIdError,
    IllegalGenerationError,
    IllegalStateError,
    KafkaError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)
from txnproducer.producer import TransactionalProducer
from txnproducer.records import TopicPartition
from txnproducer.session.batch import Batch, Record, SessionConsumer
from txnproducer.transaction import Transaction

__all__ = ["TransactSession"]

_LOG = logging.getLogger(__name__)
# The group has given up on this consumer, which joins again by its next poll.
_OF_THE_GROUP = (
    CommitFailedError,
    FencedInstanceIdError,
    IllegalGenerationError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)
_POLL_S = 1.0
_FIRST_PAUSE_MS = 50
_LONGEST_PAUSE_MS = 5_000


class _LostPartitionsError(Exception):
    """Leaves the block of a batch of which partitions were lost, and so aborts it."""


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
            consumer_settings: for `KafkaConsumer`. `isolation_level` and `enable_auto_commit` are
                set.
            producer_settings: for `TransactionalProducer`.
            max_failures: see the class.
            dead_letter_topic: likewise.
        """
        from kafka import KafkaConsumer  # late: another consumer does not need it

        from txnproducer.session.kafka_python import REQUIRED, KafkaPythonConsumer

        settings = {"auto_offset_reset": "earliest", **(consumer_settings or {}), **REQUIRED}
        producer = TransactionalProducer(
            bootstrap_servers, transactional_id, **(producer_settings or {})
        )
        try:
            producer.init_transactions()
            consumer = KafkaConsumer(
                bootstrap_servers=bootstrap_servers, group_id=group_id, **settings
            )
        except BaseException:
            producer.close(0)
            raise
        return cls(
            KafkaPythonConsumer(consumer),
            producer,
            topics,
            max_failures=max_failures,
            dead_letter_topic=dead_letter_topic,
        )

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
        number = self._number
        records = self._consumer.poll(timeout, max_records)
        batch = Batch(records, self._consumer.group_metadata(), number)
        if not records:
            return batch
        # Last: partitions may be lost on another thread while the calls above return.
        if number != self._number:
            self._consumer.rewind(batch.first_offsets)
            return Batch(())
        self._open = batch
        return batch

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
            raise IllegalStateError("this is not the batch of the last poll")
        return SessionBlock(self, batch)

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
        elif self._is_current(batch):
            self._consumer.seek(batch.first_offsets)
        else:
            self._consumer.rewind(batch.first_offsets)

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
            Exception: of the function, without a dead-letter topic.
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
        block = SessionBlock(self, batch)
        run: Run[SessionBlock, None] = Run(block, Bounds(), has_look=False)
        try:
            run_once(self._producer, lambda txn: self._transform(batch, fn, txn), run, str)
        except Exception as error:
            is_poison = isinstance(error, _PoisonError)
            if not (run.may_run_again or is_poison):
                raise
            cause = error.__cause__ if is_poison else error
            if is_poison and cause is not None and not self._may_be_read_again(error):
                raise cause from None
            _LOG.warning("%d records are read again: %r", len(batch), cause)
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
            except KafkaError:
                raise  # of the transaction, and not of the record
            except Exception as error:
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


class SessionBlock:
    """The transaction of one batch, as a `with` block.

    Attributes:
        outcome: see `Transaction`.
    """

    def __init__(self, session: TransactSession, batch: Batch) -> None:
        self._session = session
        self._batch = batch
        self._block = session._producer.transaction()  # noqa: SLF001 - our own class

    @property
    def outcome(self) -> str:
        """The outcome as far as it is known."""
        return self._block.outcome

    def __enter__(self) -> Transaction:
        return self._block.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                self._commit()
            else:
                self._block.__exit__(kind, error, trace)
        finally:
            self._session._settle(self._batch, self.outcome)  # noqa: SLF001 - likewise

    def _commit(self) -> None:
        block, batch = self._block, self._batch
        try:
            if block.outcome == "open" and self._session._is_current(batch):  # noqa: SLF001
                block.send_offsets(batch.next_offsets, batch.group_metadata)
            elif block.outcome == "open":
                raise _LostPartitionsError
        except BaseException as error:
            block.__exit__(type(error), error, error.__traceback__)
            if not isinstance(error, (_LostPartitionsError, *_OF_THE_GROUP)):
                raise
            _LOG.info("the group has moved on: %d records are read again", len(batch))
            return
        try:
            block.__exit__(None, None, None)
        except _OF_THE_GROUP as error:
            if block.outcome != "aborted":
                raise
            _LOG.info("the group has given up on this consumer: %s", error)
