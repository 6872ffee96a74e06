"""The driver's own producer of an id, kept from one batch to the next.

Why it exists: to make a producer and take its id costs as much as a small batch.

Owns: the producer between batches. Must not know: the ledger's content, rows.

Rules:
* Whoever takes the id fences this producer: a task of partition 0, a run that begins, a refresh of
  the ledger. So it is let go before each of these.
* After an error it is let go, without a wait for a dead broker: the next one that takes the id
  aborts what is open.
* A copy of it holds nothing: Spark Connect pickles the sink.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from txnproducer.producer import TransactionalProducer
from txnproducer.spark.ledger.producers import CLOSE_AT_STOP_S, config_for
from txnproducer.spark.ledger.rights import taking
from txnproducer.spark.ledger.store import Ledger


class KeptProducer:
    """A producer that is kept between batches.

    Args:
        ledger: of the sink.
        name: the transactional id.
    """

    def __init__(self, ledger: Ledger, name: str) -> None:
        self._ledger = ledger
        self._name = name
        self._producer: TransactionalProducer | None = None

    @property
    def is_held(self) -> bool:
        """Whether the id is held since an earlier batch."""
        return self._producer is not None

    @contextmanager
    def held(self, settings: Mapping[str, Any]) -> Iterator[TransactionalProducer]:
        """Hold the id for a block, and keep it after that.

        Raises:
            MissingRightError: Write on the id is missing.
            KafkaError: the cluster refused, or did not answer.
        """
        if self._producer is None:
            config = config_for(settings, self._name)
            self._producer = TransactionalProducer.from_config(config)
            try:
                with taking(self._ledger, self._name):
                    self._producer.init_transactions()
            except BaseException:
                self.let_go(0)
                raise
        try:
            yield self._producer
        except Exception:
            self.let_go()
            raise
        except BaseException:
            self.let_go(0)  # Ctrl-C
            raise

    def __reduce__(self) -> tuple[type[KeptProducer], tuple[Ledger, str]]:
        return KeptProducer, (self._ledger, self._name)

    def let_go(self, timeout_s: float = CLOSE_AT_STOP_S) -> None:
        """Close the producer, if there is one."""
        # Dropped first: if the close is interrupted, no later batch uses it.
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.close(timeout_s)
