"""Producers under the transactional ids of a sink: how they are configured, held and closed.

Owns: the time limits of a close. Must not know: the content of the transactions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Protocol, TypeVar

from txnproducer.config import ProducerConfig
from txnproducer.producer import TransactionalProducer
from txnproducer.spark.ledger.rights import taking
from txnproducer.spark.ledger.store import Ledger

CLOSE_S: Final = 30.0
CLOSE_AT_STOP_S: Final = 0.5  # `query.stop()` waits for it


class _Closable(Protocol):
    def close(self, timeout: float) -> None: ...


_P = TypeVar("_P", bound=_Closable)


def config_for(settings: Mapping[str, Any], transactional_id: str) -> ProducerConfig:
    """Return the configuration of a producer with an id of the sink.

    Args:
        settings: of the sink's producers, by Java's names.
        transactional_id: the id.
    """
    return ProducerConfig.from_properties({**settings, "transactional.id": transactional_id})


@contextmanager
def closing(producer: _P) -> Iterator[_P]:
    """Close a producer, or a participant, after a block. An open transaction is aborted."""
    try:
        yield producer
    finally:
        producer.close(CLOSE_S)


@contextmanager
def holding(
    ledger: Ledger, transactional_id: str, settings: Mapping[str, Any]
) -> Iterator[TransactionalProducer]:
    """Hold an id for a block. Its holder is fenced, and the transaction it left open is aborted.

    Args:
        ledger: of the sink.
        transactional_id: the id.
        settings: of the sink's producers, by Java's names.

    Raises:
        KafkaError: the cluster refused, or did not answer.
    """
    config = config_for(settings, transactional_id)
    with closing(TransactionalProducer.from_config(config)) as producer:
        # Only around the taking: an error of the block is not about the right to the id.
        with taking(ledger, transactional_id):
            producer.init_transactions()
        yield producer
