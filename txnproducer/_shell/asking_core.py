"""The base of a core that only asks coordinators: it has a loop and a client, and no records.

Why it exists: the question for one id's state and the steps for many ids both are driven by an I/O
thread. What they keep of the cluster, and what a loop asks of a core's records, stands here once.
Owns: the brokers that are known, the failed tries, the requests in flight, and the end, which has
nothing to finish. Must not know: what is asked.
"""

from __future__ import annotations

from collections.abc import Sequence

from txnproducer._core.failed_tries import FailedTries
from txnproducer._core.metadata import Metadata
from txnproducer._core.sending.login_refusals import LoginRefusals
from txnproducer._core.sending.request_tracker import RequestTracker
from txnproducer._protocol.backoff import ExponentialBackoff
from txnproducer._protocol.messages import BrokerNode
from txnproducer._shell.driven import DueCallbacks, FullBatch
from txnproducer._wire.network_client import NetworkClient
from txnproducer._wire.platform import Platform
from txnproducer.config import ProducerConfig
from txnproducer.errors import KafkaError

__all__ = ["AskingCore"]


class AskingCore:
    """The base of a core without records and callbacks.

    Args:
        config: the producer's settings.
        client: carries the requests.
        platform: has the source of the jitter.

    Attributes:
        is_closed: whether the loop may end.
    """

    needs_wakeup = False
    has_full_batches = awaits_codec = False

    def __init__(self, config: ProducerConfig, client: NetworkClient, platform: Platform) -> None:
        self.is_closed = False
        self._client = client
        rng = platform.rng()
        self._metadata = Metadata(
            # The client numbers its bootstrap servers in the same way.
            [
                BrokerNode(-1 - number, host, port)
                for number, (host, port) in enumerate(config.bootstrap_addresses)
            ],
            retry_backoff_ms=config.retry_backoff_ms,
            retry_backoff_max_ms=config.retry_backoff_max_ms,
            max_age_ms=config.metadata_max_age_ms,
            max_idle_ms=config.metadata_max_idle_ms,
            rng=rng,
        )
        self._tries = FailedTries(self._metadata)
        self._refusals = LoginRefusals(self._metadata)
        self._requests = RequestTracker(client, config.request_timeout_ms)
        self._backoff = ExponentialBackoff(
            config.retry_backoff_ms, config.retry_backoff_max_ms, rng
        )
        self._retry_backoff_ms = config.retry_backoff_ms

    def _announce(self, node: BrokerNode) -> None:
        """Note a broker's address, for the client and for the texts of errors."""
        self._metadata.nodes[node.node_id] = node
        self._client.update_nodes((node,))

    def initiate_close(self, now_ms: int) -> None:  # noqa: ARG002 - there is nothing to finish
        """Let the loop end."""
        self.is_closed = True

    def force_close(self, now_ms: int) -> None:
        """Let the loop end."""
        self.initiate_close(now_ms)

    def take_full_batches(self) -> Sequence[FullBatch]:
        """Return no batch: it writes no records."""
        return ()

    def lend_full_batch(self, now_ms: int) -> FullBatch | None:  # noqa: ARG002 - it has none
        """Return no batch."""
        return None

    def take_callbacks(self) -> Sequence[DueCallbacks]:
        """Return no callbacks."""
        return ()

    def lose_record(self, error: KafkaError) -> None:
        """Do nothing: there are no records."""
