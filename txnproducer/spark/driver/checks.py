"""What the driver finds out before any task starts: arguments, speculation, time-outs.

Owns: the checks against the cluster, and their texts. Must not know: frames, the ledger's content,
how rows are written; topics and rights have a file of their own.

Rule: everything that can be refused is refused here; a task that fails costs attempts, and says
why in a stack trace of Spark's.
"""

from __future__ import annotations

import logging
import warnings
from typing import Any, Final

from txnproducer.admin import broker_setting
from txnproducer.errors import AuthorizationError, InvalidConfigurationError
from txnproducer.spark.errors import SinkError
from txnproducer.spark.ledger.store import Ledger

_LOG = logging.getLogger(__name__)
_DEFAULT_TIMEOUT_MS: Final = 15 * 60 * 1000
_MAX_TIMEOUT_SETTING: Final = "transaction.max.timeout.ms"


def check_batch_id(batch_id: Any) -> None:
    """Check what Spark, or the user, gives as a batch's number.

    Raises:
        InvalidConfigurationError: it is no integer, or below 0.
    """
    if type(batch_id) is not int or batch_id < 0:
        raise InvalidConfigurationError(f"batch_id={batch_id!r}: must be an integer, 0 or above")


def check_writers(writers: Any) -> None:
    """Check a number of writers.

    Raises:
        InvalidConfigurationError: it is no integer, or below 1.
    """
    if type(writers) is not int or writers < 1:
        raise InvalidConfigurationError(f"writers={writers!r}: must be an integer above 0")


def check_speculation(*, is_on: bool, is_whole: bool) -> None:
    """Warn of second attempts beside the first; refuse them where a batch is one transaction.

    Raises:
        SinkError: they are on, with atomicity "batch".
    """
    if not is_on:
        return
    if is_whole:
        raise SinkError(
            'spark.speculation=true: with atomicity="batch" a part has one writer, so that a '
            "second attempt of a task is refused, and the batch begins again. Switch "
            'speculation off, or use atomicity="partition"'
        )
    warnings.warn(
        "spark.speculation=true: two attempts of a task fence each other; nothing is lost "
        "or doubled, but it costs time and attempts",
        RuntimeWarning,
        stacklevel=5,
    )


def choose_timeout_ms(ledger: Ledger, wanted: int | None) -> int:
    """Return the transaction time-out: what is wanted, or the default if the broker lets us.

    Raises:
        InvalidConfigurationError: it is above the broker's maximum.
    """
    try:
        text = broker_setting(ledger.bootstrap_servers, _MAX_TIMEOUT_SETTING, **ledger.security)
    except AuthorizationError as error:
        _LOG.warning("can't ask the broker for %s: %s", _MAX_TIMEOUT_SETTING, error)
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
