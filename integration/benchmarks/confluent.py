"""How confluent-kafka writes a transaction, by each of its calls."""

from __future__ import annotations

import contextlib
from importlib.metadata import version
from typing import Any

from integration.benchmarks.job import Job
from integration.benchmarks.rows import Rows, Threads

_POLL_EVERY = 1_000
# More in one call, and librdkafka begins to send later; fewer, and its calls cost more.
_BATCH_CALL = 5_000
_LIMIT_S = 60


class Produce:
    """confluent-kafka, a call of `produce` for each record, polled as its makers advise."""

    def __init__(self, job: Job, rows: Rows) -> None:
        import confluent_kafka

        self.version = f"{version('confluent-kafka')} ({confluent_kafka.libversion()[0]})"
        self._topic = job.topic
        self._rows = rows
        self._parts = rows.parts(job.threads)
        self._threads = Threads(job.threads)
        servers = {"bootstrap.servers": job.servers, "transactional.id": job.transactional_id}
        self._producer = confluent_kafka.Producer({**servers, **job.settings, "log_level": 3})
        self._producer.init_transactions(_LIMIT_S)
        self.begin = self._producer.begin_transaction

    def write(self) -> None:
        self._threads.run(self._send, self._parts)

    def _send(self, rows: Rows) -> None:
        for _ in range(rows.repeats):
            for at in range(0, len(rows.values), _POLL_EVERY):
                self._send_some(rows, slice(at, at + _POLL_EVERY))
                self._producer.poll(0)

    def _send_some(self, rows: Rows, some: slice) -> None:
        # As bare as ours: a `try` costs nothing while nothing is raised.
        produce, topic = self._producer.produce, self._topic
        if rows.places is None:
            for value in rows.values[some]:
                try:
                    produce(topic, value)
                except BufferError:
                    self._send_late(value)
        else:
            for value, place in zip(rows.values[some], rows.places[some], strict=True):
                try:
                    produce(topic, value, partition=place)
                except BufferError:
                    self._send_late(value, partition=place)

    def _send_late(self, value: bytes, **more: int) -> None:
        """Send a record for which the queue was too full."""
        while True:
            self._producer.poll(0.05)
            with contextlib.suppress(BufferError):
                self._producer.produce(self._topic, value, **more)
                return

    def commit(self) -> None:
        self._producer.commit_transaction(_LIMIT_S)

    def close(self) -> None:
        self._threads.close()


class ProduceBatch(Produce):
    """confluent-kafka, `produce_batch` for a few thousand records at a time."""

    def __init__(self, job: Job, rows: Rows) -> None:
        messages: list[dict[str, Any]] = [{"value": value} for value in rows.values]
        for message, place in zip(messages, rows.places or (), strict=False):
            message["partition"] = place
        self._calls = [
            messages[at : at + _BATCH_CALL] for at in range(0, len(messages), _BATCH_CALL)
        ]
        super().__init__(job, rows)

    def write(self) -> None:
        for _ in range(self._rows.repeats):
            for messages in self._calls:
                self._produce_all(messages)
                self._producer.poll(0)

    def _produce_all(self, messages: list[dict[str, Any]]) -> None:
        while self._producer.produce_batch(self._topic, messages) < len(messages):
            messages = [message for message in messages if _is_refused(message)]
            self._producer.poll(0.05)


def _is_refused(message: dict[str, Any]) -> bool:
    """Return whether the queue was too full for a message, which is marked then."""
    import confluent_kafka

    error = message.pop("_error", None)
    if error is not None and error.code() != confluent_kafka.KafkaError._QUEUE_FULL:
        raise confluent_kafka.KafkaException(error)
    return error is not None
