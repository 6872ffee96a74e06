"""The two clients of a session: how they are made, and which consumers are refused.

Owns: the libraries of the consumers, which are imported late, the names of the topics, and what is
closed if one of the two cannot be made. Must not know: polls, transactions.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from txnproducer._shell.arguments import as_names
from txnproducer._wire.called_tokens import with_token_provider
from txnproducer.errors import InvalidConfigurationError
from txnproducer.producer import TransactionalProducer
from txnproducer.session.batch import LEAVE_S, SessionConsumer

__all__ = [
    "as_topics",
    "check_confluent",
    "check_kafka_python",
    "confluent_consumer",
    "kafka_python_consumer",
    "made",
    "refuse_bare",
]

_CONFLUENT: Final = (
    "use TransactSession.for_confluent. A consumer of this library does not show its settings, so"
    " that they can be checked only before it is made"
)
# By the package of their class.
_ADVICE: Final = {
    "kafka": "use TransactSession.for_kafka_python, or KafkaPythonConsumer(consumer) of"
    " txnproducer.session.kafka_python",
    "confluent_kafka": _CONFLUENT,
    "cimpl": _CONFLUENT,  # the name that the library's own module has for itself
    "aiokafka": "use TransactSession.for_kafka_python or TransactSession.for_confluent, in a"
    " thread. The `poll` of this library is asynchronous, and its member id is private, so that a"
    " consumer which its group has given up on could not be fenced",
}


def as_topics(topics: object) -> list[str]:
    """Return the names of the topics to read from.

    Raises:
        TypeError: it is a str, whose letters would be the topics, or a name is none.
        ValueError: it is empty.
    """
    names = as_names("topics", topics)
    if not names:
        raise ValueError("topics is empty: a session reads from one topic at least")
    return names


def refuse_bare(consumer: object) -> None:
    """Refuse a library's consumer itself.

    Raises:
        InvalidConfigurationError: it is one; the error names the way to use it, or another.
    """
    advice = _ADVICE.get(type(consumer).__module__.partition(".")[0])
    if advice is not None:
        raise InvalidConfigurationError(
            f"consumer: a session does not take a {type(consumer).__name__} itself; {advice}"
        )


def _refuse_own(argument: str, settings: Mapping[str, Any], *own: str) -> None:
    """Refuse settings that have arguments of their own, of which one would be lost."""
    for name in own:
        if name in settings:
            raise InvalidConfigurationError(
                f"{argument}: {name!r} is an argument of the session: leave it out here"
            )


def check_kafka_python(group_id: str, settings: Mapping[str, Any]) -> None:
    """Check the settings of a consumer of kafka-python, which connects as soon as it is made.

    Raises:
        InvalidConfigurationError: a setting is refused, or the library does not have it.
    """
    from kafka import KafkaConsumer  # late: another consumer does not need it

    from txnproducer.session.kafka_python import REQUIRED, check_settings

    _refuse_own("consumer_settings", settings, "bootstrap_servers", "group_id")
    usual = KafkaConsumer.DEFAULT_CONFIG
    unknown = sorted(settings.keys() - usual.keys())
    if unknown:
        raise InvalidConfigurationError(
            f"consumer_settings: kafka-python's consumer has no setting {', '.join(unknown)}"
        )
    check_settings({**usual, **REQUIRED, **settings, "group_id": group_id})


def kafka_python_consumer(
    bootstrap_servers: str | list[str], group_id: str, settings: Mapping[str, Any]
) -> SessionConsumer:
    """Make a consumer of kafka-python."""
    from kafka import KafkaConsumer  # late: another consumer does not need it

    from txnproducer.admin._sockets import CLOSES_REFUSED
    from txnproducer.session.kafka_python import REQUIRED, KafkaPythonConsumer

    given = {**CLOSES_REFUSED, **REQUIRED, **with_token_provider(settings)}
    return KafkaPythonConsumer(
        KafkaConsumer(bootstrap_servers=bootstrap_servers, group_id=group_id, **given)
    )


def check_confluent(
    bootstrap_servers: str | list[str], group_id: str, settings: Mapping[str, Any]
) -> None:
    """Check the settings of a consumer of confluent-kafka, by one that is closed at once.

    Raises:
        Exception: as of `confluent_consumer`, or of the library.
    """
    consumer = confluent_consumer(bootstrap_servers, group_id, settings)
    consumer.close(LEAVE_S)


def confluent_consumer(
    bootstrap_servers: str | list[str], group_id: str, settings: Mapping[str, Any]
) -> SessionConsumer:
    """Make a consumer of confluent-kafka.

    Raises:
        InvalidConfigurationError: the library is missing, or a setting is refused.
    """
    try:
        from txnproducer.session.confluent import ConfluentConsumer  # late: it is an extra
    except ImportError as error:
        raise InvalidConfigurationError(
            "TransactSession.for_confluent needs the library 'confluent-kafka', which is not"
            " installed: pip install 'txnproducer[confluent]'"
        ) from error
    _refuse_own("consumer_settings", settings, "bootstrap.servers", "group.id")
    servers = (
        bootstrap_servers if isinstance(bootstrap_servers, str) else ",".join(bootstrap_servers)
    )
    return ConfluentConsumer({"bootstrap.servers": servers, "group.id": group_id, **settings})


@contextlib.contextmanager
def made(
    check_consumer: Callable[[], None],
    make_consumer: Callable[[], SessionConsumer],
    bootstrap_servers: str | list[str],
    transactional_id: str,
    producer_settings: Mapping[str, Any],
) -> Iterator[tuple[SessionConsumer, TransactionalProducer]]:
    """Make a consumer and a producer, and close both if the block fails.

    A wrong setting of either is refused first: it must not fence the process that is at work.
    """
    own = "bootstrap_servers", "bootstrap.servers", "transactional_id", "transactional.id"
    _refuse_own("producer_settings", producer_settings, *own)
    with contextlib.ExitStack() as stack:
        producer = TransactionalProducer(bootstrap_servers, transactional_id, **producer_settings)
        stack.callback(producer.close, 0)
        check_consumer()
        # Before the consumer joins. It aborts the transaction that a killed process has left, of
        # which the offsets are not known as long as it is open.
        producer.init_transactions()
        consumer = make_consumer()
        stack.callback(consumer.close, LEAVE_S)
        yield consumer, producer
        stack.pop_all()
