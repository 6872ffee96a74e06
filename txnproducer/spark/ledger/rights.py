"""The rights that a sink needs. They are looked up before any task starts, and named if missing.

Owns: which operation is needed on what, the questions, the texts. Must not know: frames, batches,
the name of the user (no message has it).

    transactional ids  Write            <sink id>.p0, .p1 ..., .plan, and .batch with the first
                                        plan; or .batch, .batch.claim-0 ...
    groups             Read             __txn. and the id; those of the other atomicity as well
    ledger topic       Read             an offset is committed for it
    topics             Write            the rows

Write and Read include Describe (Kafka's AclAuthorizer and StandardAuthorizer agree).

Rules:
* Nothing is tried out. Brokers list the operations that are allowed on a topic or a group
  (KIP-430), even on a group that does not exist yet. They do not for a transactional id; but the
  driver takes each id before a task does, and `taking` names a right that is missing then.
* Brokers before 2.3 do not list operations. A right that is missing is found later there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

from txnproducer.admin import TopicAccess, group_operations, topic_access
from txnproducer.errors import (
    GroupAuthorizationError,
    InvalidConfigurationError,
    InvalidTxnTimeoutError,
    TransactionalIdAuthorizationError,
)
from txnproducer.spark.errors import MissingRightError, SinkError
from txnproducer.spark.ledger.store import Ledger


def check_topics(ledger: Ledger, topic: str | None) -> int:
    """Check that the topics exist, and that the sink may use them.

    Args:
        ledger: of the sink; it names a topic of its own.
        topic: of all rows; None if rows choose their topics, which cannot be checked before.

    Returns:
        The number of partitions of `topic`; 0 without one.

    Raises:
        SinkError: a topic does not exist.
        MissingRightError: Write on the topic, or Read on the ledger's, is missing.
    """
    needed = ledger.needed_topics()
    if topic is not None:
        # The ledger's topic is often the same one, and then needs both.
        rights = needed.setdefault(topic, [])
        if "WRITE" not in rights:
            rights.append("WRITE")
    found = topic_access(ledger.bootstrap_servers, needed, **ledger.security)
    for name, operations in needed.items():
        _check_topic(ledger, name, found[name], operations)
    return 0 if topic is None else found[topic].partition_count


def _check_topic(ledger: Ledger, name: str, access: TopicAccess, operations: list[str]) -> None:
    if not access.exists:
        raise SinkError(
            f"the topic {name!r} does not exist: create it first, with as many partitions as its"
            " readers need (kafka-topics.sh --bootstrap-server"
            f" {ledger.bootstrap_servers} --create --topic {name} --partitions N)"
        )
    # A broker before 2.3 does not list operations (KIP-430).
    if access.operations is None:
        return
    missing = [one for one in operations if one not in access.operations]
    if missing:
        use = "the ledger's offsets are committed for it" if "READ" in missing else "rows"
        if len(missing) == 2:
            use = "rows, and the ledger's offsets"
        if name == ledger.records_topic:
            use = "the ledger's records"
        raise _missing(ledger, missing, "topic", name, f"--topic {name}", use)


def check_groups(ledger: Ledger, groups: Iterable[str]) -> None:
    """Check that the ledger's groups can be read and written.

    Raises:
        MissingRightError: Read on one of them is missing.
    """
    names = sorted(groups)
    try:
        found = group_operations(ledger.bootstrap_servers, names, **ledger.security)
    # Without Describe the broker refuses the question itself, and does not list what is allowed.
    except GroupAuthorizationError as error:
        raise _missing_group(ledger, names[0], "at least for one of the groups") from error
    for name in names:
        operations = found[name]
        if operations is not None and "READ" not in operations:
            raise _missing_group(ledger, name, "the ledger's entries are its offsets")


def _missing_group(ledger: Ledger, name: str, use: str) -> MissingRightError:
    # For all groups by one command: a later batch may have more partitions.
    pattern = f"--group {ledger.group_prefix} --resource-pattern-type prefixed"
    return _missing(ledger, ["READ"], "group", name, pattern, use)


@contextlib.contextmanager
def taking(ledger: Ledger, name: str) -> Iterator[None]:
    """Name the missing right, or the wrong setting, if a transactional id is refused.

    Args:
        ledger: of the sink.
        name: the id.

    Raises:
        MissingRightError: Write on the id is missing.
        InvalidConfigurationError: the time-out is above the broker's maximum.
    """
    try:
        yield
    # Brokers do not list operations of a transactional id, so only the attempt shows it.
    except TransactionalIdAuthorizationError as error:
        pattern = f"--transactional-id {ledger.id_prefix} --resource-pattern-type prefixed"
        raise _missing(
            ledger, ["WRITE"], "transactional id", name, pattern, "transactions"
        ) from error
    except InvalidTxnTimeoutError as error:
        raise InvalidConfigurationError(
            "transactionTimeout: the broker refuses it, since it is above its "
            "transaction.max.timeout.ms (which cannot be read here: that needs DescribeConfigs on "
            "the cluster). Set the option transactionTimeout to less (milliseconds)"
        ) from error


def _missing(
    ledger: Ledger, operations: list[str], kind: str, name: str, pattern: str, use: str
) -> MissingRightError:
    words = [one.capitalize() for one in operations]
    wanted = " ".join(f"--operation {word}" for word in words)
    return MissingRightError(
        f"{' and '.join(words)} on the {kind} {name!r} is missing ({use}). No row was written. "
        f"Way out: kafka-acls.sh --bootstrap-server {ledger.bootstrap_servers} --add "
        f"--allow-principal User:NAME {wanted} {pattern}"
    )
