"""The partitions of the one topic of a sink. A row that names another partition is refused.

Why it exists: a producer waits for a partition that its topic does not have, as long as
`max.block.ms`, since it may be about to be added. A row that names such a partition is most often
a mistake, and a task would wait in each of its attempts.

Owns: the check and its text. Must not know: frames, other columns of rows, transactions.

Rule: the driver may have counted the partitions before some were added. So the cluster is asked
again before a row is refused.
"""

from __future__ import annotations

from txnproducer.admin import topic_access
from txnproducer.spark.errors import SchemaError
from txnproducer.spark.ledger.store import Ledger


def partitions_of_topic(ledger: Ledger, topic: str | None, count: int) -> TopicPartitions | None:
    """Return the check of a topic's partitions, or None if rows choose their topics.

    Args:
        ledger: of the sink; it has the address and the login of the cluster.
        topic: of all rows, or None.
        count: of its partitions, as the driver has counted them.
    """
    return None if topic is None else TopicPartitions(ledger, topic, count)


class TopicPartitions:
    """The number of a topic's partitions, sent to the tasks in their closure.

    Args:
        ledger: of the sink; it has the address and the login of the cluster.
        topic: its name.
        count: as the driver has counted them.
    """

    def __init__(self, ledger: Ledger, topic: str, count: int) -> None:
        self._ledger = ledger
        self._topic = topic
        self._count = count

    def check(self, *numbers: int | None) -> None:
        """Check the partitions that rows name. None is a row that names none.

        Raises:
            SchemaError: the topic does not have it.
            KafkaError: the cluster could not be asked.
        """
        for number in numbers:
            if number is not None and not 0 <= number < self._count:
                # The driver has counted at its start, and partitions may have been added since.
                self._look_again(number)

    def _look_again(self, number: int) -> None:
        ledger = self._ledger
        found = topic_access(ledger.bootstrap_servers, [self._topic], **ledger.security)
        # The larger one: a broker with old metadata may still answer with the former number.
        self._count = max(self._count, found[self._topic].partition_count)
        if not 0 <= number < self._count:
            raise SchemaError(
                f"a row is for partition {number} (column `partition`); the topic {self._topic!r}"
                f" has partitions 0 to {self._count - 1}. Nothing of this task is written: filter"
                " such rows out, or add partitions to the topic"
            )
