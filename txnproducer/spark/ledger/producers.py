"""Producers under the transactional ids of a sink: how they are configured, held and closed.

Owns: the time limits of a close and of many takes. Must not know: the content of the transactions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Protocol, TypeVar

from txnproducer.config import ProducerConfig
from txnproducer.errors import KafkaError
from txnproducer.producer import TransactionalProducer
from txnproducer.spark.ledger.coordinator_client import CoordinatorClient, TakenId
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


def take_ids(
    ledger: Ledger, transactional_ids: Iterable[str], settings: Mapping[str, Any]
) -> dict[str, TakenId]:
    """Take many ids at once. Fence their holders, and abort the transactions these left open.

    Args:
        ledger: of the sink.
        transactional_ids: of the sink.
        settings: of the sink's producers, by Java's names.

    Returns:
        What a lease of each needs, by id.

    Raises:
        MissingRightError: Write on one of the ids is missing.
        KafkaError: the cluster refused one of them, or did not answer.
    """
    names = list(transactional_ids)
    if not names:
        return {}
    config = config_for(settings, names[0])
    with CoordinatorClient(config) as client:
        return checked(ledger, client.take_each(names, config.max_block_ms))


def checked(ledger: Ledger, found: Mapping[str, TakenId | KafkaError]) -> dict[str, TakenId]:
    """Return ids that were taken, if all of them were.

    Raises:
        MissingRightError: Write on one of the ids is missing.
        KafkaError: the cluster refused one of them, or did not answer.
    """
    taken = {name: one for name, one in found.items() if isinstance(one, TakenId)}
    for name, one in found.items():
        if isinstance(one, KafkaError):
            with taking(ledger, name):
                left = f"{len(found) - len(taken)} of {len(found)} transactional ids"
                # The same object: its class says whether another attempt may help.
                one.args = (f"{left} could not be taken, the first one is {name!r}: {one}",)
                raise one
    return taken
