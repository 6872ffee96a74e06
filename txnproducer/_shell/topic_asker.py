"""The question for a topic's partitions, and the wait for its answer.

Must not know: records, and how they choose a partition.
"""

from __future__ import annotations

from functools import partial

from txnproducer._protocol.messages import PartitionMetadata
from txnproducer._shell import refusals
from txnproducer._shell.arguments import check_place
from txnproducer._shell.base_producer import BaseProducer
from txnproducer._shell.refusals import WaitInCallbackError
from txnproducer._shell.waiting import wait_until_done

__all__ = ["TopicAsker"]


class TopicAsker(BaseProducer):
    """The part of a producer that asks for topics.

    Args:
        config: the settings, checked.
    """

    def partitions_for(self, topic: str) -> tuple[PartitionMetadata, ...]:
        """Return a topic's partitions and their leaders. Ask the cluster if they are not known.

        Raises:
            KafkaTimeoutError: the topic is not known after `max_block_ms`.
            KafkaError: the cluster refused to answer.
        """
        deadline_ms = self._topic_deadline_ms(topic)
        is_decided = partial(self._core.is_topic_decided, topic)
        partitions = self._ask_for_partitions(topic, deadline_ms, has_asked=False)
        while partitions is None:
            wait_until_done(self._io, self._core, is_decided, self._left_s(deadline_ms))
            partitions = self._ask_for_partitions(topic, deadline_ms, has_asked=True)
        return partitions

    # The steps of this question, which a task of an event loop takes as well.

    def _topic_deadline_ms(self, topic: str) -> int:
        self._check_usable("partitions_for")
        check_place(topic, None, None)
        return self._platform.monotonic_ms() + self._config.max_block_ms

    def _left_s(self, deadline_ms: int) -> float:
        return max(0, deadline_ms - self._platform.monotonic_ms()) / 1000

    def _ask_for_partitions(
        self, topic: str, deadline_ms: int, *, has_asked: bool
    ) -> tuple[PartitionMetadata, ...] | None:
        with self._lock:
            self._check_not_overtaken("partitions_for")
            # A topic that is known needs no wait, so a callback may ask for it.
            if not self._core.knows_topic(topic):
                self._refuse_question_in_callback(topic)
            now_ms = self._platform.monotonic_ms()
            partitions = self._core.partitions_for(topic, now_ms, has_asked=has_asked)
            self._io.poke()
        if partitions is None and now_ms >= deadline_ms:
            max_block_ms = self._config.max_block_ms
            tries = self._failed_tries(deadline_ms - max_block_ms)
            with self._lock:
                reason = self._core.failed_tries.reason_unknown(topic)
            raise refusals.topic_unknown(topic, max_block_ms, *tries, reason)
        return partitions

    def _refuse_question_in_callback(self, topic: str) -> None:
        try:
            self._io.refuse_in_callback()
        except WaitInCallbackError as error:
            # A record would follow. If the error leaves the callback, that one is lost as well.
            lost = partial(refusals.record_lost_in_callback, topic)
            self._io.callbacks.note_refused(lost, error)
            raise
