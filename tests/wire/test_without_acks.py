"""A producer with acks=0 over real sockets loses nothing that was flushed."""

from __future__ import annotations

import pytest

from txnproducer import TransactionalProducer
from txnproducer.testing import InMemoryKafka

RECORDS = 500
VALUE = bytes(20_000)


@pytest.mark.parametrize("is_flushed", [True, False])
def test_close_waits_until_the_sockets_have_taken_all_records(is_flushed: bool) -> None:
    with InMemoryKafka(topics={"t": 1}) as kafka:
        producer = TransactionalProducer(kafka.listen(), acks=0, enable_idempotence=False)
        futures = [producer.send("t", VALUE) for _ in range(RECORDS)]
        if is_flushed:
            producer.flush()
            assert all(future.done() for future in futures)
        producer.close()
        assert not any(future.exception() for future in futures)
        while len(kafka.records("t")) < RECORDS:  # the broker may still be reading
            kafka.sleep(0.01)
