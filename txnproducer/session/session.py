"""A session that consumes, transforms and produces, exactly once.

Owns: the order of polls and transactions, the way back after an abort. Must not know: how a
consumer's library names things (`kafka_python`), the end of a batch's transaction (`block`),
records that fail again and again (`failures`), which failure is repeated (`passes`).
Rules:
* A batch is committed or given back before the next poll. So the position after an abort is the
  first record of the batch, unless partitions were lost meanwhile: then it is the committed one.
* The identity in the group is that of the poll. A consumer that the group has given up on, and
  that has joined again since, must not commit the offsets of before (KIP-447).
* A change of the identity sets all positions back to the committed offsets. A consumer may not
  have noticed that another one had its partitions meanwhile.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Final, Self

from txnproducer._shell.arguments import refuse_coroutine, to_seconds
from txnproducer._shell.runs_in_threads import as_kinds
from txnproducer._shell.stops import pause
from txnproducer.errors import IllegalStateError
from txnproducer.producer import TransactionalProducer
from txnproducer.records import TopicPartition
from txnproducer.session.batch import LEAVE_S, Batch, Record, SessionConsumer
from txnproducer.session.block import SessionBlock
from txnproducer.session.clients import (
    as_topics,
    check_confluent,
    check_kafka_python,
    confluent_consumer,
    kafka_python_consumer,
    made,
    refuse_bare,
)
from txnproducer.session.failures import PLAIN_FUNCTION, Failures, check_failures
from txnproducer.session.passes import Passes
from txnproducer.transaction import Transaction

__all__ = ["TransactSession"]

_LOG = logging.getLogger(__name__)
_POLL_S = 1.0
_WARNED_AFTER: Final = 30
_NOT_KNOWN: Final = (
    "the committed offsets are not known after %d questions: the group's coordinator is away, or a"
    " transaction with offsets of this group is open; kafka-transactions.sh lists those"
)


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
        TypeError: `topics` is a str: give a list of names. Or another argument is of another type.
        ValueError: there is no topic, or `max_failures` is below 1, or `dead_letter_topic` has no
            valid name, or is one of the topics to read from.
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
        wanted = as_topics(topics)
        check_failures(max_failures, dead_letter_topic, wanted)
        self._failures = Failures(max_failures, dead_letter_topic)
        refuse_bare(consumer)
        consumer.check()
        self._consumer = consumer
        self._producer = producer
        self._number = 0
        self._guard = threading.Lock()
        self._open: Batch | None = None
        # Of the open batch, if its end was left under way, or its outcome is unknown.
        self._left: SessionBlock | None = None
        # The generation and the member of the last poll.
        self._identity: tuple[int, str] | None = None
        # Where the next poll has to read first, and whether no partition was lost since.
        self._back: tuple[dict[TopicPartition, int], bool] | None = None
        # How often the committed offsets were asked for since they were known.
        self._waits = 0
        consumer.subscribe(wanted, self._note_loss)

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
            consumer_settings: for `KafkaConsumer`. Those that a session needs are set. A
                `sasl_oauth_token_provider` may also be a function, as for a producer.
            producer_settings: for `TransactionalProducer`.
            max_failures: see the class.
            dead_letter_topic: likewise.
        """
        # Before a producer fences the one before it.
        topics = as_topics(topics)
        check_failures(max_failures, dead_letter_topic, topics)
        args = bootstrap_servers, group_id, consumer_settings or {}
        check, make = partial(check_kafka_python, *args[1:]), partial(kafka_python_consumer, *args)
        common = bootstrap_servers, transactional_id, producer_settings or {}
        with made(check, make, *common) as (consumer, producer):
            return cls(
                consumer,
                producer,
                topics,
                max_failures=max_failures,
                dead_letter_topic=dead_letter_topic,
            )

    @classmethod
    def for_confluent(
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
        """Make a session with a consumer of confluent-kafka, and a producer. It closes both.

        Args:
            topics: to read from.
            group_id: the consumer group.
            transactional_id: of this process alone; see the page "Which transactional id".
            bootstrap_servers: of both.
            consumer_settings: for `confluent_kafka.Consumer`, by its names. Those that a session
                needs are set.
            producer_settings: for `TransactionalProducer`.
            max_failures: see the class.
            dead_letter_topic: likewise.
        """
        # Before a producer fences the one before it.
        topics = as_topics(topics)
        check_failures(max_failures, dead_letter_topic, topics)
        args = bootstrap_servers, group_id, consumer_settings or {}
        check, make = partial(check_confluent, *args), partial(confluent_consumer, *args)
        common = bootstrap_servers, transactional_id, producer_settings or {}
        with made(check, make, *common) as (consumer, producer):
            return cls(
                consumer,
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

        A batch with records must go through `transaction` before the next poll. If its commit has
        timed out there, or its outcome is unknown, this call first waits for its end, up to the
        producer's `max_block_ms`. It goes on after a committed batch, and back after an aborted
        one.

        Args:
            timeout: seconds for records.
            max_records: at most.

        Raises:
            IllegalStateError: the batch before was neither committed nor given back.
            KafkaTimeoutError: the commit of the batch before goes on; poll again to wait.
            CommitOutcomeUnknownError: the outcome of the batch before stays unknown: make a new
                session, which reads on from the committed offsets.
        """
        if self._left is not None:
            self._left.finish(self._producer)
            self._settle(self._left)
        if self._open is not None:
            raise IllegalStateError(
                f"the batch before, of {len(self._open)} records, was not processed: put it into"
                " `with session.transaction(batch):`, or its records would be skipped"
            )
        number = self._number
        is_back = self._goes_back()
        # Also if Ctrl-C takes the records away, or an error.
        self._back = self._earliest(Batch(())), False
        # On the way back as well: a consumer that does not poll cannot join, and is given up.
        records = self._consumer.poll(timeout, max_records)
        batch = Batch(records, self._consumer.group_metadata(), number)
        is_known = self._is_known_member(batch.group_metadata)
        # The number last: partitions may be lost while the calls above return.
        if not is_back or not is_known or number != self._number:
            # The position may be older than another consumer's commit, so it is looked up again.
            self._back = self._earliest(batch), False
            return Batch(())
        self._open, self._back = batch if records else None, None
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
        if not (is_current and self._consumer.seek(offsets)):
            if not self._consumer.rewind(offsets):
                self._waits += 1
                if self._waits % _WARNED_AFTER == 0:
                    _LOG.warning(_NOT_KNOWN, self._waits)
                return False
            self._failures.forget_elsewhere(self._consumer.assignment())
        # Only now: a way back that has failed is tried again.
        self._back, self._waits = None, 0
        return True

    def transaction(self, batch: Batch) -> SessionBlock:
        """Return a transaction for a `with` block, which processes a batch.

        Its end adds the batch's offsets, and commits. If the group has given up on this consumer,
        or partitions were lost, the transaction is aborted and the block ends without an
        exception: its `outcome` is "aborted", and the next poll reads on from the committed
        offsets. Any other exception aborts, and is raised; the records are then read again. After
        a commit that has timed out, or with an unknown outcome, the next poll settles the batch.

        Args:
            batch: of the last poll.

        Raises:
            IllegalStateError: it is not the batch of the last poll.
        """
        if batch is not self._open:
            what = "an empty batch needs no transaction" if not batch else "poll again"
            raise IllegalStateError(f"this is not the open batch of the last poll: {what}")
        if self._left is not None:
            raise IllegalStateError(
                "the transaction of this batch has not ended yet: poll again, which waits for it"
            )
        return self._block_of(batch)

    def _block_of(self, batch: Batch) -> SessionBlock:
        return SessionBlock(self._producer.transaction(), batch, self._is_current, self._settle)

    def _is_current(self, batch: Batch) -> bool:
        return batch.number == self._number

    def _settle(self, block: SessionBlock) -> None:
        """Note the end of a batch, and go back after an abort."""
        if block.batch is not self._open:
            return
        outcome = block.outcome if block.has_begun else "aborted"
        if outcome in ("open", "unknown"):
            self._left = block  # for `run`, which goes on, or the next poll
            return
        self._open = self._left = None
        if outcome == "committed":
            self._failures.forget_before(block.batch.next_offsets)
        else:
            # By the next poll: an error here would hide the reason of the abort.
            self._back = block.batch.first_offsets, self._is_current(block.batch)

    # --- many batches --------------------------------------------------------------------------

    def run(
        self,
        fn: Callable[[Record, Transaction], object],
        stop: threading.Event,
        *,
        max_records: int = 500,
        retry_on: type[BaseException] | Iterable[type[BaseException]] = (),
    ) -> None:
        """Process records until `stop` is set.

        A commit that times out is awaited again. An aborted batch is read again. A record that
        fails `max_failures` times goes to the dead-letter topic.

        Args:
            fn: gets each record, and the transaction of its batch.
            stop: ends it, after the batch under way. A signal's handler may set it.
            max_records: of one transaction.
            retry_on: exceptions of the function that are no failures of a record, such as those of
                a database that is down. The batch is aborted and read again until it succeeds.

        Raises:
            TypeError: `fn` is a coroutine function, or has returned a coroutine or a generator.
            KafkaError: the producer has failed, or a commit stays in doubt: make a new session.
            Exception: of the function, without a dead-letter topic; or of the consumer's library,
                for instance at a login.
        """
        refuse_coroutine(fn, PLAIN_FUNCTION)
        if not hasattr(stop, "is_set"):
            raise TypeError(f"stop must be a threading.Event, not {stop!r}")
        passes = Passes(self._producer, self._failures, fn, as_kinds(retry_on))
        while not stop.is_set():
            batch = self.poll(max_records=max_records)
            if batch:
                pause(stop, self._process(batch, passes))

    def _process(self, batch: Batch, passes: Passes) -> float:
        """Process a batch. Return the seconds to wait before the next poll."""
        block = self._block_of(batch)
        try:
            return passes.take(batch, block)
        finally:
            self._settle(block)

    # --- the end -------------------------------------------------------------------------------

    def close(self, timeout: float | None = None) -> None:
        """Leave the group, and close the producer, which aborts an open transaction.

        A commit that has timed out is finished. A second call does nothing.

        Args:
            timeout: seconds for both, after which everything that is left fails by force; see
                `TransactionalProducer.close`. None for 5 s to leave the group, and then the
                producer's `delivery_timeout_ms`; 0 for at once. confluent-kafka's consumer has a
                limit of its own, which is 5 s.

        Raises:
            ValueError: the time-out is negative.
        """
        left_s = None if timeout is None else to_seconds(timeout)
        began_s = time.monotonic()  # noqa: TID251 - a wait above the core
        try:
            self._consumer.close(LEAVE_S if left_s is None else min(left_s, LEAVE_S))
        finally:
            if left_s is not None:
                left_s = max(0.0, left_s - (time.monotonic() - began_s))  # noqa: TID251 - likewise
            self._producer.close(left_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(self._producer.limit_of_close_s(after_error=error is not None))
