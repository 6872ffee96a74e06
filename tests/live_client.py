"""The scripted client on a real thread, for unit tests of `TransactionalProducer`.

It accepts each request that a test neither prepared nor holds back. The clock is the real one, but
nothing waits for it: answers are due at once, and `poll` sleeps only until there is work.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from tenacity import Retrying, retry_if_exception_type, stop_after_delay

from tests.scripted_client import ScriptedClient
from txnproducer import KafkaTimeoutError, TransactionalProducer
from txnproducer._protocol.events import ClientEvent, ClientRequest
from txnproducer._protocol.messages import API_KEY_OF, ApiKey
from txnproducer._shell import base_producer

# Long enough for a loop of three threads on a busy machine, short enough to wait for in tests of
# time-outs.
SHORT_MS = 60
PATIENCE_S = 10.0


class LiveClient(ScriptedClient):
    """The scripted client on a real thread. The core calls it with the I/O thread's lock held.

    `poll` and a test's `release` have a lock of their own: without a GIL nothing else keeps them
    apart.

    Attributes:
        held: kinds of requests that are left unanswered until `release`.
        is_closed: whether the I/O thread closed it.
        failure: raised by every `poll`, if set.
    """

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.held: set[ApiKey] = set()
        self.is_closed = False
        self.failure: Exception | None = None
        self._is_woken = threading.Event()
        self._guard = threading.RLock()
        self._next_offset = 0
        self.set_transaction_version(2)

    def poll(self, timeout_ms: int, now_ms: int) -> list[ClientEvent]:
        if self.failure is not None:
            raise self.failure
        self.now_ms = now_ms
        if not self._due and timeout_ms:
            self._is_woken.wait(timeout_ms / 1000)
        self._is_woken.clear()
        with self._guard:
            return self.take_due_events()

    def wakeup(self) -> None:
        self._is_woken.set()

    def hurry(self) -> None:
        """Do nothing: its connections are made at once, or not at all."""

    def close(self) -> None:
        self.is_closed = True

    def send(self, request: ClientRequest, now_ms: int) -> None:
        kind = API_KEY_OF[type(request.body)]
        with self._guard:
            if kind in self.held:
                self.requests.append(request)
                self.outstanding[request.correlation_id] = request
                return
            self._prepare_success(kind)
            super().send(request, now_ms)

    def release(self, *kinds: ApiKey) -> None:
        """Answer the held requests with success, and hold no more back."""
        with self._guard:
            self.held.difference_update(kinds)
            for request in list(self.outstanding.values()):
                kind = API_KEY_OF[type(request.body)]
                if kind in kinds:
                    self._prepare_success(kind)
                    self._end(request, self._prepared[kind].popleft())
        self.wakeup()

    def _prepare_success(self, kind: ApiKey) -> None:
        if self._prepared[kind] or kind is ApiKey.METADATA:
            return
        if kind is ApiKey.PRODUCE:
            self.prepare_produce(base_offset=self._next_offset)
            self._next_offset += 1000
            return
        prepare: dict[ApiKey, Callable[[], None]] = {
            ApiKey.FIND_COORDINATOR: self.prepare_find_coordinator,
            ApiKey.INIT_PRODUCER_ID: self.prepare_init_producer_id,
            ApiKey.ADD_PARTITIONS_TO_TXN: self.prepare_add_partitions,
            ApiKey.ADD_OFFSETS_TO_TXN: self.prepare_add_offsets,
            ApiKey.TXN_OFFSET_COMMIT: self.prepare_txn_offset_commit,
            ApiKey.END_TXN: self.prepare_end_txn,
        }
        prepare[kind]()


def use_live_clients(
    patch: pytest.MonkeyPatch, make_client: Callable[[], Any] = LiveClient
) -> None:
    """Let each producer that is made from here on talk to its client instead of a broker."""
    patch.setattr(base_producer, "NetworkClient", lambda *_, **_more: make_client())


def kept_clients(patch: pytest.MonkeyPatch) -> list[LiveClient]:
    """Return the clients of the producers to come, in the order in which those are made."""
    made: list[LiveClient] = []

    def make_client() -> LiveClient:
        made.append(LiveClient())
        return made[-1]

    use_live_clients(patch, make_client)
    return made


def commits_sent(client: LiveClient) -> list[bool]:
    """Return for each EndTxn whether it commits."""
    return [request.is_commit for request in client.sent(ApiKey.END_TXN)]


def impatient(one: TransactionalProducer) -> TransactionalProducer:
    """Make a producer's calls time out soon."""
    one._max_block_s = SHORT_MS / 1000
    return one


def wait_for_topic(one: TransactionalProducer, topic: str) -> None:
    """Ask for a topic until a producer with a short time-out knows it, on a busy machine too."""
    asking = Retrying(
        retry=retry_if_exception_type(KafkaTimeoutError), stop=stop_after_delay(PATIENCE_S)
    )
    asking(one.partitions_for, topic)
