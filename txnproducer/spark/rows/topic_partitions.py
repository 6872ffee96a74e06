"""The partitions of the one topic that all rows go to: a row that names another one is refused.

Why it exists: a producer waits for a partition that its topic does not have, as long as
`max.block.ms`; it may be about to be added. A row that names it is most often a mistake, and a
task would wait in each of its attempts.

Owns: the check, its text. Must not know: frames, rows' other columns, transactions.

Rule: what the driver has seen may be older than a row, and a topic may have got more since. So
the cluster is asked before a row is refused.
"""

from __future__ import annotations

from txnproducer.admin import topic_access
from txnproducer.spark.errors import SchemaError
from txnproducer.spark.ledger.store import Ledger


def partitions_of_topic(ledger: Ledger, topic: str | None, count: int) -> TopicPartitions | None:
    """Return what checks rows for a topic; nothing does where rows choose theirs.

    Args:
        ledger: knows how to ask the cluster.
        topic: that all rows go to, or None.
        count: of its partitions, as the driver has seen it.
    """
    return None if topic is None else TopicPartitions(ledger, topic, count)


class TopicPartitions:
    """How many partitions a topic has; goes to the tasks in the closure.

    Args:
        ledger: knows how to ask the cluster.
        topic: which.
        count: as the driver has seen it.
    """

    def __init__(self, ledger: Ledger, topic: str, count: int) -> None:
        self._ledger = ledger
        self._topic = topic
        self._count = count

    def check(self, *numbers: int | None) -> None:
        """Check what rows name as their partition; None names none.

        Raises:
            SchemaError: the topic does not have it.
            KafkaError: the cluster could not be asked.
        """
        for number in numbers:
            if number is not None and not 0 <= number < self._count:
                self._look_again(number)

    def _look_again(self, number: int) -> None:
        ledger = self._ledger
        found = topic_access(ledger.bootstrap_servers, [self._topic], **ledger.security)
        self._count = max(self._count, found[self._topic].partition_count)
        if not 0 <= number < self._count:
            raise SchemaError(
                f"a row is for partition {number} (column `partition`); the topic {self._topic!r}"
                f" has partitions 0 to {self._count - 1}. Nothing of this task is written: filter"
                " such rows out, or add partitions to the topic"
            )
