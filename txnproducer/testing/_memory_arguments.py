"""The checks of the arguments that a test gives to an in-memory Kafka, and their refusals.

Why it exists: a mistake of a test should be named at its line, and not show as a strange cluster.
Owns: one function for each kind of argument. Must not know: the cluster's state, threads.
"""

from __future__ import annotations

import difflib
import math
import reprlib
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

from txnproducer._broker.cluster import OFFSETS_TOPIC, ClusterOptions
from txnproducer._broker.topics import LEGAL_NAME
from txnproducer.errors import ErrorCode

_INTERNAL: Final = frozenset({OFFSETS_TOPIC, "__transaction_state"})
_OPTIONS: Final[Mapping[str, Mapping[str, Any]]] = MappingProxyType(
    {
        "4.3": {},
        "3.9": {"is_before_4": True},
        # The last one without KIP-360.
        "2.4": {"is_before_4": True, "init_producer_id_version": 2},
    }
)

# A cluster may have thousands of topics, and the name of one 249 characters.
_BRIEF: Final = reprlib.Repr()
_BRIEF.maxlist = 8
_BRIEF.maxstring = 60


def count(name: str, value: object) -> int:
    """Return an argument that is a whole number of at least one."""
    # A bool is an int to Python, and `partitions=True` is a mistake.
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} is {value!r}: it must be a whole number")
    if value < 1:
        raise ValueError(f"{name} is {value}: it must be at least one")
    return value


def cluster_options(
    nodes: object, transaction_version: int | None, version: str, max_timeout_ms: object
) -> ClusterOptions:
    """Return the model's settings for the arguments of a cluster."""
    if version not in _OPTIONS:
        raise ValueError(f"version is {version!r}: it must be one of {', '.join(_OPTIONS)}")
    given = _OPTIONS[version]
    # Transactions v2 came with Kafka 4.0 (KIP-890).
    newest = 1 if given else 2
    level = newest if transaction_version is None else transaction_version
    if isinstance(level, bool) or level not in (1, 2):
        raise ValueError(f"transaction_version is {level!r}: it must be 1 or 2")
    if level > newest:
        raise ValueError(f"transaction_version is 2: Kafka {version} knows only 1")
    return ClusterOptions(
        node_count=count("nodes", nodes),
        transaction_version=level,
        max_transaction_timeout_ms=count("max_transaction_timeout_ms", max_timeout_ms),
        **given,
    )


def checked_users(users: object) -> dict[str, str] | None:
    """Return names and passwords, or None for a cluster without logins."""
    if users is None:
        return None
    if not isinstance(users, Mapping) or not all(
        isinstance(text, str) for pair in users.items() for text in pair
    ):
        raise TypeError("users must map names to passwords, as in {'alice': 'secret'}")
    if not users:
        raise ValueError("users is empty, so no client could log in: name one, or leave it out")
    return dict(users)


def login_of(name: str, password: str) -> dict[str, Any]:
    """Return the settings with which a producer logs in."""
    return {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": name,
        "sasl_plain_password": password,
    }


def checked_topics(topics: object) -> dict[str, int]:
    """Return the number of partitions by topic."""
    if topics is None:
        return {}
    if not isinstance(topics, Mapping):
        raise TypeError(
            f"topics is {topics!r}: it must map names to numbers of partitions, as in"
            " {'orders': 3}"
        )
    return {topic_name(name): partition_count(name, n) for name, n in topics.items()}


def partition_count(topic: str, number: object) -> int:
    """Return the number of partitions that a topic is to have."""
    return count(f"the number of partitions of {topic!r}", number)


def topic_name(name: object) -> str:
    """Return the name of a topic that may be created."""
    if not isinstance(name, str):
        raise TypeError(f"the name of a topic is {name!r}: it must be a str")
    if not LEGAL_NAME.fullmatch(name):
        raise ValueError(
            f"{name!r} cannot be the name of a topic: it may have up to 249 letters, digits,"
            " '.', '_' and '-', and must not be '.' or '..'"
        )
    # The model makes these itself, as brokers do.
    if name in _INTERNAL:
        raise ValueError(f"{name!r} is the brokers' own topic: choose another name")
    return name


def unknown_topic(topic: str, topics: Iterable[str]) -> KeyError:
    """Return the refusal of a topic that does not exist.

    Args:
        topic: its name.
        topics: the names of those that exist.
    """
    names = sorted(topics)
    known = f"the topics are {_BRIEF.repr(names)}" if names else "the cluster has none"
    return KeyError(
        f"there is no topic {_BRIEF.repr(topic)}: {known}. Correct the name, or make the topic by"
        " create_topic() or topics= of the cluster"
    )


def unknown_partition(topic: str, partition: int, partitions: int) -> KeyError:
    """Return the refusal of a partition that does not exist.

    Args:
        topic: its topic, which exists.
        partition: its number.
        partitions: how many partitions the topic has.
    """
    known = f"it has {partitions}, numbered from 0" if partitions > 1 else "it has only 0"
    return KeyError(f"there is no partition {partition} of {topic!r}: {known}")


def node_number(node: object, nodes: Collection[int]) -> int:
    """Return the number of an existing broker."""
    if isinstance(node, bool) or not isinstance(node, int):
        raise TypeError(f"node is {node!r}: it must be a broker's number")
    if node not in nodes:
        last = len(nodes) - 1
        known = f"the brokers are 0 to {last}" if last else "the only broker is 0"
        raise ValueError(f"there is no broker {node}: {known}")
    return node


def partition(number: object) -> int:
    """Return the number of a partition."""
    if isinstance(number, bool) or not isinstance(number, int):
        raise TypeError(f"partition is {number!r}: it must be a whole number")
    return number


def error_code(error: object) -> ErrorCode:
    """Return the error of a refusal, given by its name or number."""
    if isinstance(error, bool) or not isinstance(error, str | int):
        raise TypeError(f"error is {error!r}: it must be a name as NOT_COORDINATOR, or a number")
    try:
        code = ErrorCode[error] if isinstance(error, str) else ErrorCode(error)
    except (KeyError, ValueError):
        raise ValueError(
            f"error is {error!r}, which is not an error of Kafka's protocol: {_near(error)}"
        ) from None
    # An answer with this code is a success, so the fault would do nothing unnoticed.
    if code is ErrorCode.NONE:
        raise ValueError("error is NONE, which refuses nothing: leave the fault out")
    return code


def _near(error: str | int) -> str:
    names = difflib.get_close_matches(str(error).upper(), ErrorCode.__members__)
    if not names:
        return "names are as NOT_COORDINATOR"
    return f"did you mean {' or '.join(names)}?"


def is_virtual(clock: object) -> bool:
    """Return whether the time is virtual.

    Raises:
        ValueError: there is no such clock.
    """
    if clock not in ("real", "virtual"):
        raise ValueError(f'clock is {clock!r}: it must be "real" or "virtual"')
    return clock == "virtual"


def delay_ms(seconds: object) -> int:
    """Return a delay in milliseconds."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise TypeError(f"seconds is {seconds!r}: it must be a number")
    # An endless wait would only end at the test's own limit.
    if not math.isfinite(seconds) or seconds < 0:
        raise ValueError(f"seconds is {seconds}: it must be finite, and not negative")
    return round(seconds * 1000)


def is_compacted(config: Mapping[str, Any] | None) -> bool:
    """Return whether the settings of a topic make it a compacted one.

    Raises:
        ValueError: there is another setting, or another value.
    """
    given = dict(config or {})
    policy = given.pop("cleanup.policy", "delete")
    if given or policy not in ("delete", "compact"):
        raise ValueError(
            f"config is {dict(config or {})!r}: a topic in memory has cleanup.policy alone, which"
            " is delete or compact. Other settings need a real broker: EmbeddedKafka"
        )
    return bool(policy == "compact")
