"""Records that fail again and again, and their way into the dead-letter topic.

Owns: the count of the failures of each record, the text of an error in a header or a log. Must not
know: polls, commits, how a batch is read again (`session`).
Rules:
* A record is counted by its place, so that a batch which is cut differently changes nothing.
* The count of a record that is committed, or that another consumer reads now, is forgotten.
"""

from __future__ import annotations

import logging
import reprlib
from collections.abc import Callable, Collection, Mapping
from typing import Final

from txnproducer._core.metadata import invalid_name, is_valid_name
from txnproducer._shell.arguments import check_claim
from txnproducer._shell.runs_in_threads import refuse_unfinished
from txnproducer._shell.serialization import as_serialized
from txnproducer.errors import KafkaError, RecordTooLargeError
from txnproducer.records import TopicPartition
from txnproducer.session.batch import Record, UnreadableHeaders
from txnproducer.transaction import Transaction

__all__ = ["PLAIN_FUNCTION", "Failures", "PoisonError", "check_failures", "text_of"]

_LOG = logging.getLogger(__name__)
PLAIN_FUNCTION: Final = "A session needs a plain function, which has sent its records at its end"
# The text of a UnicodeDecodeError has all of a value's bytes, each as four characters.
_SHORT: Final = reprlib.Repr()
_SHORT.maxother = 1000
_TOO_LARGE: Final = (
    "The record of %s is to go to the dead-letter topic %r, and is too large with the headers that"
    " say why. Way out: give the session's producer a max_request_size, and that topic a"
    " max.message.bytes, that is a few kB above those of the input"
)


def text_of(error: BaseException) -> str:
    """Return the text of an error, shortened in its middle, as UTF-8 can have it."""
    return _SHORT.repr(error).encode(errors="backslashreplace").decode()


def check_failures(most: object, dead_letter_topic: object, topics: Collection[str]) -> None:
    """Check the arguments of `Failures` before the first bad record needs them.

    Args:
        most: of `Failures`.
        dead_letter_topic: likewise.
        topics: that the session reads from.

    Raises:
        TypeError: an argument is of another type.
        ValueError: the number is below 1, or the topic has no valid name, or is read from.
    """
    if check_claim("max_failures", most) < 1:
        raise ValueError(f"max_failures={most}: at least one call is needed")
    if dead_letter_topic is None:
        return
    if not isinstance(dead_letter_topic, str):
        kind = type(dead_letter_topic).__name__
        raise TypeError(f"dead_letter_topic must be a str or None, not {kind}")
    if not is_valid_name(dead_letter_topic):
        raise ValueError(f"dead_letter_topic: {invalid_name(dead_letter_topic)}")
    if dead_letter_topic in topics:
        raise ValueError(
            f"dead_letter_topic={dead_letter_topic!r} is one of the topics to read from, so that"
            " each dead letter would be read and fail again: give another one"
        )


class PoisonError(Exception):
    """Leaves the block of a batch with a record that has failed.

    Attributes:
        error: of the function.
        count: of the record's failures.
        may_be_read_again: whether it may be called again, or has a dead-letter topic.
    """

    def __init__(self, error: Exception, count: int, *, may_be_read_again: bool) -> None:
        super().__init__(error)
        self.error = error
        self.count = count
        self.may_be_read_again = may_be_read_again


class Failures:
    """How often records have failed, and their last exceptions.

    Args:
        most: calls for one record that may raise.
        dead_letter_topic: of the records that have failed as often; None if there is none.
    """

    def __init__(self, most: int, dead_letter_topic: str | None) -> None:
        self._most = most
        self._dead_letter_topic = dead_letter_topic
        self._found: dict[tuple[TopicPartition, int], tuple[int, Exception]] = {}
        self._refusal = ""

    def __len__(self) -> int:
        return len(self._found)

    def process(
        self,
        record: Record,
        fn: Callable[[Record, Transaction], object],
        transaction: Transaction,
        retry_on: tuple[type[BaseException], ...],
    ) -> None:
        """Call a function with a record, or write the record to the dead-letter topic.

        Args:
            record: of the batch.
            fn: the function.
            transaction: of the batch.
            retry_on: exceptions that are no failure of the record.

        Raises:
            PoisonError: the record has failed.
            Exception: it is no failure of the record: an error of the transaction, or one in
                `retry_on`.
            TypeError: the function has returned a coroutine or a generator.
        """
        place = record.topic_partition, record.offset
        count, last = self._found.get(place, (0, None))
        if last is not None and count >= self._most:
            self._bury(record, transaction, last)
            return
        try:
            value = fn(record, transaction)
        except retry_on:
            raise
        except Exception as error:
            # Another error of Kafka's is of the transaction, and not of the record.
            if isinstance(error, KafkaError) and error.recovery != "fix":
                raise
            count += 1
            self._found[place] = count, error
            may = self._dead_letter_topic is not None or count < self._most
            raise PoisonError(error, count, may_be_read_again=may) from error
        # Out of the `try`: no record is to blame, and each would be a dead letter.
        refuse_unfinished(fn, value, PLAIN_FUNCTION)

    def _bury(self, record: Record, transaction: Transaction, error: BaseException) -> None:
        place = f"{record.topic}-{record.partition}, offset {record.offset}"  # not its content
        text = "the record of %s goes to the dead-letter topic %s: %s"
        _LOG.warning(text, place, self._dead_letter_topic, text_of(error))
        about = {
            "dlt-topic": record.topic,
            "dlt-partition": str(record.partition),
            "dlt-offset": str(record.offset),
            "dlt-error": text_of(error),
        }
        # Those that cannot be read stay in the input, whose place the headers below name.
        own = () if isinstance(record.headers, UnreadableHeaders) else record.headers
        headers = [*own, *((name, value.encode()) for name, value in about.items())]
        # As they came: the producer's serializers are for the results.
        value, key = as_serialized(record.value), as_serialized(record.key)

        def note_refusal(_: object, refusal: KafkaError | None) -> None:
            if isinstance(refusal, RecordTooLargeError):
                self._refusal = _TOO_LARGE % (place, self._dead_letter_topic)

        transaction.send(
            self._dead_letter_topic or "", value, key, headers, on_delivery=note_refusal
        )

    def name_refused(self, error: BaseException) -> None:
        """Name the dead letter that was too large, if there is one, in the error of its commit."""
        refusal, self._refusal = self._refusal, ""
        if refusal:
            error.add_note(refusal)

    def forget_before(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Forget the records before these offsets, which are committed."""
        self._keep(lambda place, offset: offset >= offsets.get(place, 0))

    def forget_elsewhere(self, assigned: Collection[TopicPartition]) -> None:
        """Forget the records of partitions that other consumers read."""
        self._keep(lambda place, _: place in assigned)

    def _keep(self, is_kept: Callable[[TopicPartition, int], bool]) -> None:
        if self._found:
            self._found = {place: one for place, one in self._found.items() if is_kept(*place)}
