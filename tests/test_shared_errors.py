"""The records of a batch share one error, which each of their futures raises."""

from __future__ import annotations

from types import TracebackType

from txnproducer import FutureBatchMetadata, FutureRecordMetadata, KafkaError
from txnproducer.testing import InMemoryKafka


def frames(trace: TracebackType | None) -> int:
    count = 0
    while trace is not None:
        count, trace = count + 1, trace.tb_next
    return count


def frames_of(future: FutureRecordMetadata | FutureBatchMetadata) -> int:
    try:
        future.result()
    except KafkaError as error:
        return frames(error.__traceback__)
    raise AssertionError("the record was written")


def test_a_raise_of_a_shared_error_has_its_own_frames_alone() -> None:
    with InMemoryKafka(topics={"topic": 1}) as kafka:
        kafka.delay("Produce", 3)
        producer = kafka.producer("id")
        producer.init_transactions()
        producer.begin_transaction()
        futures: list[FutureRecordMetadata | FutureBatchMetadata]
        futures = [producer.send("topic", b"value") for _ in range(3)]
        futures.append(producer.send_batch("topic", [b"value"]))
        producer.abort_transaction()
        counts = [frames_of(future) for future in futures * 2]
        kafka.clear_faults()  # the abort may have come before any request
    assert len(set(counts)) == 1
