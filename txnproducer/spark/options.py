"""The sink's options: names as in Spark's own Kafka sink, values checked where the sink is made.

Owns: the option names, what is passed on to the producer, what is refused. Must not know: frames,
transactions.

* `kafka.NAME` is passed to the producer as Java's setting NAME.
* `topic` as in Spark's sink; `includeHeaders`: "false" leaves the column `headers` out.
* `transactionTimeout`: milliseconds; default 15 minutes, or the broker's maximum if that is less.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from txnproducer.config import ProducerConfig
from txnproducer.errors import InvalidConfigurationError, UnknownConfigError

DEFAULT_TRANSACTION_TIMEOUT_MS: Final = 15 * 60 * 1000
ATOMICITIES: Final = ("partition", "batch")
_SINK_ID: Final = re.compile(r"[A-Za-z0-9_-]+")
_OWN: Final = ("topic", "includeHeaders", "transactionTimeout")
_KAFKA: Final = "kafka."
_REFUSED: Final = {
    "transactional.id": "the sink makes one for each partition, from sink_id",
    "transaction.timeout.ms": "use the option transactionTimeout",
    "bootstrap.servers": "use the argument bootstrap_servers",
    "enable.idempotence": "a transactional producer is always idempotent",
    "key.serializer": "keys are string or binary columns",
    "value.serializer": "values are string or binary columns",
    "interceptor.classes": "there are no interceptors",
}


@dataclass(frozen=True)
class SinkSettings:
    """The checked options.

    Attributes:
        topic: for all rows, or None to take each row's.
        transaction_timeout_ms: None for the default.
        include_headers: whether the column `headers` is written.
        producer: settings of the producers, by Java's names.
        security: kafka-python's settings, for the driver's own questions.
    """

    topic: str | None
    transaction_timeout_ms: int | None
    include_headers: bool
    producer: Mapping[str, str]
    security: Mapping[str, Any]


def check_sink_id(sink_id: str) -> None:
    """Check the sink's name.

    Raises:
        InvalidConfigurationError: it has other characters than letters, digits, `_` and `-`.
    """
    if not isinstance(sink_id, str) or not _SINK_ID.fullmatch(sink_id):
        raise InvalidConfigurationError(
            f"sink_id={sink_id!r}: letters, digits, _ and - only, since ids and groups are made "
            "from it; choose it once, and keep it as long as the query lives"
        )


def check_choice(name: str, value: str, allowed: tuple[str, ...], hint: str = "") -> None:
    """Check an argument that takes one of a few words.

    Raises:
        InvalidConfigurationError: it is none of them.
    """
    if value not in allowed:
        words = " or ".join(repr(word) for word in allowed)
        raise InvalidConfigurationError(f"{name}={value!r}: must be {words}{hint}")


def check_batch_atomicity(topic: str | None, writers: int | None) -> None:
    """Check what does not go with atomicity "batch".

    Raises:
        InvalidConfigurationError: rows choose their topic, or a number of writers is asked for.
    """
    if topic is None:
        raise InvalidConfigurationError(
            'topic is needed with atomicity="batch": each of its partitions has one writer. Give '
            'the sink the option `topic`, or use atomicity="partition"'
        )
    if writers is not None:
        raise InvalidConfigurationError(
            f'writers={writers} does not go with atomicity="batch": there are as many as the '
            "topic has partitions, or fewer where the frame has fewer"
        )


def read_options(
    bootstrap_servers: str, topic: str | None, options: Mapping[str, Any] | None
) -> SinkSettings:
    """Check the options, and merge them with the arguments that mean the same.

    Raises:
        UnknownConfigError: there is no such option.
        InvalidConfigurationError: a value does not fit.
    """
    given = {name: str(value) for name, value in (options or {}).items()}
    producer = {"bootstrap.servers": bootstrap_servers}
    own: dict[str, str] = {}
    for name, value in given.items():
        if name.startswith(_KAFKA):
            setting = name.removeprefix(_KAFKA)
            if setting in _REFUSED:
                raise InvalidConfigurationError(f"{name} can't be set: {_REFUSED[setting]}")
            producer[setting] = value
        elif name in _OWN:
            own[name] = value
        else:
            raise UnknownConfigError(f"{name} is not an option of the sink{_did_you_mean(name)}")
    option_topic = own.get("topic")
    if topic is not None and option_topic is not None and topic != option_topic:
        raise InvalidConfigurationError(
            f"topic is given twice: the argument says {topic!r}, the option {option_topic!r}"
        )
    # Unknown and malformed producer settings are refused here, on the driver.
    security = ProducerConfig.from_properties(producer).security
    return SinkSettings(
        topic if topic is not None else option_topic,
        _milliseconds(own.get("transactionTimeout")),
        _boolean("includeHeaders", own.get("includeHeaders", "true")),
        producer,
        {name: value for name, value in security.items() if value is not None},
    )


def _milliseconds(text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isdigit() or int(text) == 0:
        raise InvalidConfigurationError(
            f"transactionTimeout={text!r}: must be a number of milliseconds above 0"
        )
    return int(text)


def _boolean(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise InvalidConfigurationError(f"{name}={text!r}: must be true or false")
    return text.lower() == "true"


def _did_you_mean(name: str) -> str:
    near = difflib.get_close_matches(name, _OWN, n=1)
    if near:
        return f"; did you mean {near[0]}?"
    return f"; there are {', '.join(_OWN)}, and the producer's as {_KAFKA}NAME"
