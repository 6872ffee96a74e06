"""The brokers that the integration tests run against: one per mode, started when first needed.

A mode is a version of Kafka and of its transactions. Tests that take the fixture `kafka` run once
per mode; pytest groups them by mode, so that one broker runs at a time.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from txnproducer.testing import EmbeddedKafka

_AUTHORIZER: dict[str, str | bool] = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": True,
}


@dataclass(frozen=True)
class Mode:
    """A version of Kafka, and of transactions on it."""

    name: str
    version: str
    transaction_version: int
    features: tuple[tuple[str, int], ...] = ()

    def start(self, nodes: int = 1, *, has_authorizer: bool = False) -> EmbeddedKafka:
        """Make a cluster of this mode, with time-outs as short as tests want them.

        Args:
            nodes: how many.
            has_authorizer: whether access can be denied; what no ACL speaks of is allowed.
        """
        return EmbeddedKafka(
            nodes,
            version=self.version,
            features=dict(self.features),
            settings={
                # One node of several may be frozen, and the others have to go on.
                "transaction.state.log.replication.factor": 1,
                "transaction.state.log.min.isr": 1,
                "offsets.topic.replication.factor": 1,
                "transaction.abort.timed.out.transaction.cleanup.interval.ms": 200,
                "group.initial.rebalance.delay.ms": 0,
                **(_AUTHORIZER if has_authorizer else {}),
            },
        )


MODES = (
    Mode("4.3.1-v2", "4.3.1", 2),
    Mode("4.3.1-v1", "4.3.1", 1, (("transaction.version", 1),)),
    Mode("3.9.1", "3.9.1", 1),
)
EXISTING = os.environ.get("TXNPRODUCER_BOOTSTRAP")
