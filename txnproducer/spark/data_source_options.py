"""The options of the data source: the sink's, and two that a batch job needs.

Owns: which options go with a stream and which with a batch job, those that a data source cannot
follow. Must not know: Spark's classes, transactions; the meaning of the sink's own options
(`options.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from txnproducer.errors import InvalidConfigurationError, KafkaError, UnknownConfigError
from txnproducer.spark.ledger.move import MARK_OFFSET
from txnproducer.spark.ledger.places import OFFSETS
from txnproducer.spark.ledger.rules import LedgerRules
from txnproducer.spark.ledger.store import Ledger
from txnproducer.spark.options import ARGUMENTS, SinkSettings, read_settings

_BATCH_ID: Final = "batchId"
_DIGITS: Final = len(str(MARK_OFFSET))
_NOT_HERE: Final = {
    "writers": "which cannot shuffle: use frame.repartition(n).write or .writeStream",
    "driverRows": (
        "whose rows all go by tasks: use writeStream.foreachBatch(ExactlyOnceKafkaSink(...))"
    ),
}


@dataclass(frozen=True)
class DataSourceSettings:
    """The checked options.

    Attributes:
        sink: the settings of the sink.
        batch_id: of a batch job; None in a stream.
    """

    sink: SinkSettings
    batch_id: int | None

    @property
    def ledger(self) -> Ledger:
        """The ledger of the sink."""
        return self.sink.sink_ledger

    @property
    def rules(self) -> LedgerRules:
        """The rules for entries that do not fit."""
        return self.sink.rules


def read_data_source_options(
    options: Mapping[str, str], *, is_streaming: bool
) -> DataSourceSettings:
    """Check the options.

    Raises:
        UnknownConfigError: there is no such option.
        InvalidConfigurationError: an option is missing, or a value does not fit.
    """
    # Kept apart: the sink has no option `batchId`, since each call of `write` names its batch.
    theirs = {name: value for name, value in options.items() if not _is(name, _BATCH_ID)}
    batch_ids = [value for name, value in options.items() if _is(name, _BATCH_ID)]
    for name, reason in _NOT_HERE.items():
        if any(_is(each, name) for each in theirs):
            raise UnknownConfigError(f"{name} cannot be set for a data source, {reason}")
    # Before the settings are read: their check of "batch" would ask for a topic, and with one the
    # job would be refused all the same.
    _refuse_whole(theirs)
    with naming_options():
        # No other one goes here, so the ledger need not be asked.
        sink = read_settings(theirs).with_atomicity("partition")
    _refuse_ledger_topic(sink)
    # At most one: Spark hands a data source its options by names in lower case.
    batch_id = batch_ids[0] if batch_ids else None
    if is_streaming:
        _refuse_batch_id(batch_id)
        return DataSourceSettings(sink, None)
    return DataSourceSettings(sink, _batch_id(batch_id, sink.query_id))


@contextmanager
def naming_options() -> Iterator[None]:
    """Name settings as options in the errors of a block, as `sinkId` and not `sink_id`."""
    try:
        yield
    except KafkaError as error:
        text = str(error)
        for argument, option in ARGUMENTS.items():
            text = re.sub(rf"\b{argument}\b", option, text)
        if text != str(error):
            # In place, so that the error keeps its class, its `recovery` and its cause.
            error.args = (text, *error.args[1:])
        raise


_REASONS: Final = {
    "batch": "can't place rows by their Kafka partition",
    "prepared": "has no driver that holds the ids of its parts",
}


def _is(name: str, option: str) -> bool:
    return name.lower() == option.lower()


def _refuse_whole(options: Mapping[str, str]) -> None:
    for name, value in options.items():
        if _is(name, "atomicity") and value in _REASONS:
            raise InvalidConfigurationError(
                f'atomicity="{value}": a data source {_REASONS[value]}, which that needs. Way out:'
                " writeStream.foreachBatch(ExactlyOnceKafkaSink(...,"
                f' atomicity="{value}"))'
            )


def _refuse_ledger_topic(sink: SinkSettings) -> None:
    if sink.ledger != OFFSETS:
        raise InvalidConfigurationError(
            # A process that resumes a task's transaction writes no records into it.
            f"ledger={sink.ledger!r}: the commit of a data source can add offsets to the tasks'"
            " transactions, and no records. Way out:"
            " writeStream.foreachBatch(ExactlyOnceKafkaSink(...)), or its write(frame, ...)"
        )


def _refuse_batch_id(text: str | None) -> None:
    if text is not None:
        raise InvalidConfigurationError(
            # With one id for all, each batch after the first would look like a replay of the
            # first.
            f"batchId={text!r}: in a streaming query Spark counts the batches; leave it out"
        )


def _batch_id(text: str | None, query_id: str | None) -> int:
    given = {"queryId": query_id, _BATCH_ID: text}
    missing = [name for name, value in given.items() if not value]
    if missing or text is None:
        raise InvalidConfigurationError(
            f"a batch job needs the option(s) {' and '.join(missing)}: queryId names the job that"
            " the batch ids belong to, such as nightly-load, and batchId grows from batch to"
            " batch; the same one again is a replay of that batch"
        )
    # `int` alone would take '1_0', ' 7' and '-1' as well.
    # Python reads no integer of thousands of digits.
    is_number = text.isascii() and text.isdigit() and len(text.lstrip("0")) <= _DIGITS
    if not (is_number and int(text) < MARK_OFFSET):
        raise InvalidConfigurationError(
            f"batchId={text!r}: must be an integer from 0 to 2**62 - 1"
        )
    return int(text)
