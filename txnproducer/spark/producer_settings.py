"""Settings of the producer among the options of the sink. `kafka.NAME` is Java's setting NAME.

Owns: the settings that are refused, the values that reach the tasks, the names in the texts of
errors. Must not know: the sink's own options.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from numbers import Real
from pathlib import PurePath
from typing import Any, Final

from txnproducer.config import ProducerConfig
from txnproducer.errors import InvalidConfigurationError
from txnproducer.spark.java_logins import PROVIDER_SETTING, with_java_login
from txnproducer.spark.token_providers import NamedTokenProvider, provider_of

# Without an id the settings would be checked as those of a producer without transactions. The ids
# of the partitions are not known yet.
_PLACEHOLDER: Final = {"transactional.id": "of-each-partition"}
# `ProducerConfig` refuses these values too, but its text names the placeholder above, which the
# user did not set, and advises to go without transactions.
_NOT_IDEMPOTENT: Final = {"acks": ("0", "1"), "retries": ("0",), "enable.idempotence": ("false",)}
_REFUSED: Final = {
    "transactional.id": "the sink makes one for each partition, from sinkId",
    "transaction.timeout.ms": "use the option transactionTimeout",
    "key.serializer": "keys are string or binary columns, and are written as they are",
    "value.serializer": "values are string or binary columns, and are written as they are",
    "interceptor.classes": "they are Java classes; change the frame instead",
    "partitioner.class": "it is a Java class; name each row's partition in the column `partition`",
    # Settings of consumers: Spark's sink refuses them as well.
    "group.id": "it is a consumer's; the sink names its groups after sinkId",
    "auto.offset.reset": "it is a consumer's",
    "enable.auto.commit": "it is a consumer's",
    "key.deserializer": "it is a consumer's",
    "value.deserializer": "it is a consumer's",
}


def read_producer_setting(written: str, setting: str, value: Any) -> Any:
    """Return the value of a setting, as the tasks get it. None stays None: it is not given.

    Args:
        written: the option, as the user wrote it.
        setting: Java's name, in lower case.
        value: its value.

    Raises:
        InvalidConfigurationError: the setting cannot be set, or not so.
    """
    if value is None:
        return None
    _refuse_setting(written, setting, value)
    # In both spellings: it is a setting of kafka-python's, and dots are how Java would write it.
    if setting.replace(".", "_") != PROVIDER_SETTING:
        return _text(written, value)
    if not isinstance(value, str):
        raise InvalidConfigurationError(
            f"{written} is a {type(value).__name__}: an object does not reach the tasks. Give its "
            "dotted name, such as 'mypackage.tokens:provider', which driver and tasks import"
        )
    provider_of(value)  # fails here, and not in a task
    return NamedTokenProvider(value)


def _text(written: str, value: Any) -> str:
    # The text of any other object, as of a password in bytes, would be its `repr`.
    if not isinstance(value, str | Real | PurePath):
        raise InvalidConfigurationError(
            f"{written} is of the type {type(value).__name__}: give a text, a number, a bool or a"
            " path"
        )
    return str(value)


def _refuse_setting(written: str, setting: str, value: Any) -> None:
    if setting in _REFUSED:
        raise InvalidConfigurationError(f"{written} cannot be set: {_REFUSED[setting]}")
    if str(value).lower() in _NOT_IDEMPOTENT.get(setting, ()):
        raise InvalidConfigurationError(
            f"{written}={value} cannot be set: a transactional producer is always idempotent, with"
            " acks=all and retries above 0; leave it out"
        )


def with_login(producer: Mapping[str, Any], written: Mapping[str, str]) -> dict[str, Any]:
    """Return the producer's settings, with Java's ways to log in as the producer knows them.

    Args:
        producer: the settings, by Java's names, those of the cluster among them.
        written: their names as options, if the user wrote them so.

    Raises:
        InvalidConfigurationError: see `with_java_login`.
    """
    with _naming_options(written):
        return with_java_login(producer, str(producer["bootstrap.servers"]))


def security_of(producer: Mapping[str, Any], written: Mapping[str, str]) -> dict[str, Any]:
    """Check the producer's settings here, on the driver. Return those for logging in.

    Args:
        producer: the settings, by Java's names.
        written: their names as options, if the user wrote them so.

    Raises:
        UnknownConfigError: there is no such setting.
        InvalidConfigurationError: a value does not fit.
    """
    with _naming_options(written):
        config = ProducerConfig.from_properties({**producer, **_PLACEHOLDER})
    return {name: value for name, value in config.security.items() if value is not None}


@contextlib.contextmanager
def _naming_options(written: Mapping[str, str]) -> Iterator[None]:
    """Name settings as options in the error of a block."""
    try:
        yield
    except InvalidConfigurationError as error:
        text = _as_written(str(error), written)
        error.args = (f"{text} (a setting NAME is given to the sink as the option kafka.NAME)",)
        raise


def _as_written(text: str, written: Mapping[str, str]) -> str:
    """Return a text of the producer's with settings named as the user wrote them.

    Args:
        text: with Java's names, or those with underscores.
        written: the options, by Java's names.
    """
    snake_case = {name.replace(".", "_"): option for name, option in written.items()}
    options = {**written, **snake_case}
    if not options:
        return text
    # The longest name first: a regular expression takes the first alternative that fits.
    names = "|".join(re.escape(name) for name in sorted(options, key=len, reverse=True))
    return re.sub(rf"(?<![\w.])({names})(?!\w|\.\w)", lambda found: options[found[1]], text)
