"""The driver's checks before any task starts: arguments, speculation, the cluster, time-outs.

Owns: the checks against the cluster, and their texts. Must not know: frames, the ledger's content,
how rows are written; topics and rights have a module of their own.

Rule: everything that can be refused is refused here. A task that fails costs attempts, and its
reason stands in a stack trace of Spark's.
"""

from __future__ import annotations

import logging
import warnings
from typing import Any, Final

from txnproducer.admin import broker_setting
from txnproducer.errors import AuthorizationError, InvalidConfigurationError
from txnproducer.spark.errors import SinkError
from txnproducer.spark.ledger import rights
from txnproducer.spark.ledger.ledger_topic import check_ledger_topic
from txnproducer.spark.ledger.move import MARK_OFFSET
from txnproducer.spark.ledger.named_runs import check_run_id
from txnproducer.spark.ledger.places import OFFSETS
from txnproducer.spark.ledger.store import Ledger
from txnproducer.spark.options import SinkSettings

_LOG = logging.getLogger(__name__)
_DEFAULT_TIMEOUT_MS: Final = 15 * 60 * 1000
# With prepared parts: to decide, to end them all, and to do so after a crash in between.
LEAST_LEFT_S: Final = 30.0
LEAST_TIMEOUT_MS: Final = 40_000
_MAX_TIMEOUT_SETTING: Final = "transaction.max.timeout.ms"


def check_batch_id(batch_id: Any) -> int:
    """Return the number of a batch, as Spark or the user gives it.

    Raises:
        InvalidConfigurationError: it is no integer, below 0, or too large.
    """
    # The exact type: `True` is an int as well. The id is the entry's offset, which cannot be
    # negative, and is below that of a mark.
    if type(batch_id) is not int or not 0 <= batch_id < MARK_OFFSET:
        raise InvalidConfigurationError(
            f"batch_id={batch_id!r}: give the number of the batch, an integer from 0 to 2**62 - 1"
            " that grows from batch to batch; or a name in its place, write(df, run_id=...)"
        )
    return batch_id


def check_named(settings: SinkSettings, run_id: Any, batch_id: Any) -> None:
    """Check the name of a run, and that the sink takes names.

    Raises:
        InvalidConfigurationError: it is no name, there is a number as well, the ledger is in
            offsets, or the atomicity is "partition".
    """
    check_run_id(run_id)
    if batch_id is not None:
        raise InvalidConfigurationError(
            f"run_id={run_id!r} and batch_id={batch_id!r}: a batch has a name or a number"
        )
    # Without an atomicity the ledger is asked first, and it is checked again.
    if settings.atomicity == "partition":
        raise InvalidConfigurationError(
            f'run_id={run_id!r} needs atomicity="prepared" or "batch", and ledger="topic": with '
            '"partition" a run that is committed in part could be overtaken by any other one'
        )
    if settings.ledger == OFFSETS:
        raise InvalidConfigurationError(
            f'run_id={run_id!r} needs ledger="topic", where each name has an entry of its own'
        )


def check_writers(writers: Any) -> None:
    """Check a number of writers.

    Raises:
        InvalidConfigurationError: it is no integer, or below 1.
    """
    if type(writers) is not int or writers < 1:
        raise InvalidConfigurationError(f"writers={writers!r}: must be an integer above 0")


def check_speculation(atomicity: str, *, is_on: bool) -> None:
    """Warn of second attempts beside the first, or refuse them if a part has only one writer.

    Raises:
        SinkError: they are on, and the atomicity is not "partition".
    """
    if not is_on:
        return
    if atomicity != "partition":
        raise SinkError(
            f'spark.speculation=true: with atomicity="{atomicity}" a part has one writer, so that '
            "a second attempt of a task is refused, and the batch begins again. Switch "
            'speculation off, or use atomicity="partition"'
        )
    warnings.warn(
        "spark.speculation=true: two attempts of a task fence each other; nothing is lost "
        "or doubled, but it costs time and attempts",
        RuntimeWarning,
        stacklevel=5,
    )


class ClusterChecks:
    """The checks against the cluster that a driver makes once, before its first batch.

    Args:
        settings: of the sink.
        ledger: of the sink.
        checks_groups: whether the rights on the ledger's groups are checked as well.

    Attributes:
        partitions: how many the sink's topic has; 0 before the checks, and without one topic.
    """

    def __init__(self, settings: SinkSettings, ledger: Ledger, *, checks_groups: bool) -> None:
        self._settings = settings
        self._ledger = ledger
        self._checks_groups = checks_groups
        self._timeout_ms: int | None = None
        self.partitions = 0

    @property
    def are_made(self) -> bool:
        """Whether the checks were made, and nothing was wrong."""
        return self._timeout_ms is not None

    def timeout_ms(self) -> int:
        """Return the transaction time-out. The first call makes the checks.

        Raises:
            SinkError: a topic does not exist, or a right is missing.
            InvalidConfigurationError: the time-out is above the broker's maximum.
        """
        if self._timeout_ms is None:
            check_ledger_topic(self._ledger)  # it makes the topic, which is checked next
            self.partitions = rights.check_topics(self._ledger, self._settings.topic)
            if self._checks_groups:
                ledger = self._ledger
                # The groups of both atomicities, since each batch looks for the other one's
                # ledger, too.
                groups = [ledger.plan_group, ledger.whole_group, ledger.group(0)]
                rights.check_groups(ledger, groups)
            wanted = self._settings.transaction_timeout_ms
            # Set last, since it marks the checks as made: after an error the next batch makes all
            # of them.
            timeout_ms = choose_timeout_ms(self._ledger, wanted)
            check_timeout(self._settings.atomicity, timeout_ms)
            self._timeout_ms = timeout_ms
        return self._timeout_ms

    def producer_settings(self) -> dict[str, Any]:
        """Return the producers' settings, by Java's names. It raises as `timeout_ms` does."""
        return {"transaction.timeout.ms": str(self.timeout_ms()), **self._settings.producer}


def check_timeout(atomicity: str | None, timeout_ms: int) -> None:
    """Check that prepared parts have time to be ended.

    Raises:
        InvalidConfigurationError: the time-out is too short for them.
    """
    if atomicity == "prepared" and timeout_ms < LEAST_TIMEOUT_MS:
        raise InvalidConfigurationError(
            f'transactionTimeout={timeout_ms}: with atomicity="prepared" it must be at least '
            f"{LEAST_TIMEOUT_MS} ms, since {LEAST_LEFT_S:.0f} s of it are kept to end the parts, "
            "also after a restart. Raise it (and transaction.max.timeout.ms of the brokers, if "
            'that is less), or use atomicity="partition" for a new sink id'
        )


def choose_timeout_ms(ledger: Ledger, wanted: int | None) -> int:
    """Return the transaction time-out: the one given, the default, or the broker's maximum.

    Raises:
        InvalidConfigurationError: it is above the broker's maximum.
    """
    try:
        text = broker_setting(ledger.bootstrap_servers, _MAX_TIMEOUT_SETTING, **ledger.security)
    # The sink works without DescribeConfigs on the cluster: a time-out that is too long is then
    # refused when the first id is taken.
    except AuthorizationError as error:
        _LOG.warning("cannot ask the broker for %s: %s", _MAX_TIMEOUT_SETTING, error)
        text = None
    maximum = int(text) if text is not None else None
    if wanted is None:
        default = _DEFAULT_TIMEOUT_MS
        return default if maximum is None else min(default, maximum)
    if maximum is not None and wanted > maximum:
        raise InvalidConfigurationError(
            f"transactionTimeout={wanted}: the broker's {_MAX_TIMEOUT_SETTING} is {maximum}; "
            "lower the one or raise the other"
        )
    return wanted
