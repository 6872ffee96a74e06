"""`InMemoryKafka`: a modelled Kafka in this process, for unit tests that take milliseconds.

Why it exists: a service's tests want the producer that ships, a broker's own answers, and the
failures that a real broker gives only with much effort. There is no JVM and no port.
Owns: the public calls of a test. Must not know: bytes, sockets.

Rules:
* One suite of cases compares the model with real brokers (docs/conformance.md). A test of
  consumers, of brokers' settings or of performance needs a real one: `EmbeddedKafka`.
* A fault is asked for by the API's name in Kafka's protocol, and meets the next request of it.
* A mistake of the test is refused with its reason before anything is started or changed.
"""

from __future__ import annotations

import random
import socket
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeAlias

from txnproducer._broker.cluster import BrokerCluster
from txnproducer._server.login import Users
from txnproducer._server.script import Fault, ScriptedFault
from txnproducer._wire.platform import Platform
from txnproducer._wire.tcp import BufferSizes
from txnproducer.aio import AsyncTransactionalProducer
from txnproducer.errors import DisconnectError, UnknownHostError
from txnproducer.producer import TransactionalProducer
from txnproducer.records import OffsetAndMetadata, TopicPartition

from . import _memory_arguments as arguments
from . import _memory_changes as changes
from . import _memory_faults as faults
from ._arguments import is_committed, text
from ._memory_cluster import MemoryCluster
from ._memory_producer import MemoryAsyncProducer, MemoryPlatform, MemoryProducer
from ._memory_server import MemoryServer
from ._memory_tls import ListenerCertificate
from ._memory_views import MemoryQuestions, MemoryRecord, MemoryTransaction, described, records_of

if TYPE_CHECKING:
    from ._virtual_server import VirtualServer

Isolation: TypeAlias = Literal["read_committed", "read_uncommitted"]

# A unit test that meets no broker should say so in seconds. The default is a minute.
_MAX_BLOCK_MS: Final = 5_000
# Nor should `close` and `flush` wait for two minutes. With virtual time nobody waits for them.
_DELIVERY: Final = {"request_timeout_ms": 5_000, "delivery_timeout_ms": 10_000}
# A delivery has to last at least as long as these together.
_OF_A_DELIVERY: Final = frozenset({*_DELIVERY, "linger_ms"})


class InMemoryKafka:
    """A modelled Kafka cluster, without a JVM and without ports.

    For example::

        with InMemoryKafka(topics={"orders": 3}) as kafka:
            with kafka.producer(transactional_id="t") as producer:
                ...
            assert [record.value for record in kafka.records("orders")] == [b"order 1"]

    Args:
        topics: the number of partitions by topic.
        nodes: the number of brokers. They are numbered from 0.
        transaction_version: the finalized `transaction.version`: 2 or 1. The default is 2, and 1
            for a version before 4.
        users: names and passwords for SASL logins by PLAIN and SCRAM; None for listeners without
            a login.
        version: the version of Kafka that the brokers are modelled on.
        clock: "virtual" lets waits take no time: time stands still while the test's own code runs,
            and passes while a call waits. It needs TXNPRODUCER_IMPL=python, and a test without
            threads of its own.
        max_transaction_timeout_ms: the longest `transaction_timeout_ms`. 2147483647 lets prepared
            transactions wait for ever.

    Raises:
        ValueError: an argument does not fit.
        RuntimeError: `clock` is "virtual", and the compiled parts are in use.
    """

    _server: MemoryServer | VirtualServer | None = None
    _is_entered = False

    def __init__(
        self,
        topics: Mapping[str, int] | None = None,
        *,
        nodes: int = 1,
        transaction_version: int | None = None,
        users: Mapping[str, str] | None = None,
        version: Literal["4.3", "3.9", "2.4"] = "4.3",
        clock: Literal["real", "virtual"] = "real",
        max_transaction_timeout_ms: int = 900_000,
    ) -> None:
        options = arguments.cluster_options(
            nodes, transaction_version, version, max_transaction_timeout_ms
        )
        names = arguments.checked_users(users)
        # Seeded: two runs of a test see the same cluster.
        self._cluster = MemoryCluster(options, random.Random(1))
        for name, partitions in arguments.checked_topics(topics).items():
            self._cluster.create_topic(name, partitions)
        self._nodes = {(node.host, node.port): n for n, node in self._cluster.nodes.items()}
        self._asked = faults.AskedFaults()
        self._certificate: ListenerCertificate | None = None
        self._security = {} if names is None else arguments.login_of(*next(iter(names.items())))
        logins = None if names is None else Users(names)
        if arguments.is_virtual(clock):
            # Imported late: it is the simulator's, which most tests do not need.
            from ._virtual_server import VirtualServer

            self._server = VirtualServer(self._cluster, logins)
        else:
            self._server = MemoryServer(self._cluster, logins)

    def __enter__(self) -> Self:
        if self._live.is_closing:
            raise RuntimeError("this InMemoryKafka is closed: make a new one")
        # The end of the inner block would close the cluster of the outer one.
        if self._is_entered:
            raise RuntimeError(
                "this InMemoryKafka is in a `with` block already, which closes it at its end:"
                " leave the inner block out"
            )
        self._is_entered = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # An error of the test may be the reason for which faults are left.
        self._close(warns=error is None)

    def close(self) -> None:
        """End the cluster, and close the producers of `producer` that are still open.

        Their later calls are refused. Other clients lose their connections. A `UserWarning` names
        the faults of calls of which none has met a request. A block that an exception leaves
        gives none.

        `records`, `committed`, `transactions` and `remaining_faults` can still be called. All that
        would change the cluster raises a RuntimeError.

        Raises:
            RuntimeError: called in a delivery callback or in another thread, in virtual time.
        """
        self._close(warns=True)

    def _close(self, *, warns: bool) -> None:
        server = self._live
        is_first = not (server.is_closing or server.is_forked)
        server.close()
        if self._certificate is not None:
            self._certificate.close()
        # Last, since a warning may be an error. By the script itself: the server may have failed.
        unmet = self._asked.unmet(server.script.remaining())
        if warns and is_first and unmet:
            told = faults.warning_text(unmet, self._cluster.transaction_version)
            warnings.warn(told, UserWarning, 3)

    def __del__(self) -> None:
        # An attribute of the class: the constructor may have failed.
        server = self._server
        if server is None or server.is_closing or sys.is_finalizing():
            return
        # The thread would keep the cluster for ever. It is not waited for: the collector may run
        # in any thread, also in that one.
        server.abandon()
        if not server.is_forked:
            text = f"unclosed {type(self).__name__}: use `with`, or call close()"
            warnings.warn(text, ResourceWarning, 2, source=self)

    @property
    def _live(self) -> MemoryServer | VirtualServer:
        if self._server is None:
            raise RuntimeError("the constructor of this InMemoryKafka has failed")
        return self._server

    @property
    def _open(self) -> MemoryServer | VirtualServer:
        # A change after the end would meet no producer.
        if self._live.is_closing:
            raise RuntimeError("this InMemoryKafka is closed: its records can be read, no more")
        return self._live

    # --- clients --------------------------------------------------------------------------------

    @property
    def bootstrap_servers(self) -> str:
        """The brokers' addresses, which only `producer` can use. For others see `listen`."""
        return ",".join(f"{host}:{port}" for host, port in self._nodes)

    def producer(
        self, transactional_id: str | None = None, **settings: Any
    ) -> TransactionalProducer:
        """Make a producer that is connected to this cluster. Its owner closes it.

        Args:
            transactional_id: as of `TransactionalProducer`.
            settings: likewise. A test should fail in seconds, so `max_block_ms` is 5,000 unless it
                is given. With the real clock `request_timeout_ms` is 5,000 and
                `delivery_timeout_ms` 10,000 unless one of them or `linger_ms` is given.

        Raises:
            RuntimeError: the cluster is closed, or this process was forked after it was made, or
                the cluster has virtual time and another thread has made it.
        """
        made = MemoryProducer(*self._of_cluster(), **self._settings(transactional_id, settings))
        self._live.adopt(made)
        return made

    def async_producer(
        self, transactional_id: str | None = None, *, init: bool = True, **settings: Any
    ) -> AsyncTransactionalProducer:
        """Make a producer for asyncio that is connected to this cluster. Its owner closes it.

        Args:
            transactional_id: as of `AsyncTransactionalProducer`.
            init: likewise.
            settings: likewise, with the defaults of `producer`.

        Raises:
            RuntimeError: as `producer`; or the cluster has virtual time, in which no event loop
                runs.
        """
        if not isinstance(self._live, MemoryServer):
            raise RuntimeError("no event loop runs in virtual time: use InMemoryKafka(...) for it")
        given = self._settings(transactional_id, settings)
        made = MemoryAsyncProducer(*self._of_cluster(), **given, init=init)
        self._live.adopt(made)
        return made

    def _of_cluster(self) -> tuple[Platform, MemoryQuestions]:
        self._open.check_caller()
        return self._platform(), MemoryQuestions(self._live.call)

    def _settings(
        self, transactional_id: str | None, settings: Mapping[str, Any]
    ) -> dict[str, Any]:
        given = {"bootstrap_servers": self.bootstrap_servers, "max_block_ms": _MAX_BLOCK_MS}
        if transactional_id is not None:
            given["transactional_id"] = transactional_id
        if isinstance(self._live, MemoryServer) and _OF_A_DELIVERY.isdisjoint(settings):
            given |= _DELIVERY
        return {**given, **settings}

    def _platform(self) -> Platform:
        server = self._live
        # Made for each producer: kept here, it would hold this cluster in a circle, and the
        # finalizer would come late.
        if isinstance(server, MemoryServer):
            return MemoryPlatform(self._open_socket)
        return server.platform

    def listen(self, *, tls: bool = False) -> str:
        """Open a port on 127.0.0.1 for each broker. Return the addresses, for any client.

        Args:
            tls: whether clients of these ports speak TLS. They trust the certificate in
                `ca_file`. This needs the extra `testing`.

        Raises:
            RuntimeError: the cluster is closed.
        """
        context = self._tls().context if tls else None
        return ",".join(f"{host}:{port}" for host, port in self._live.listen(context))

    @property
    def ca_file(self) -> str:
        """The path of a PEM file, the certificate that clients of `listen(tls=True)` trust.

        `close()` deletes it. In virtual time, after the end and in a fork there is none.
        """
        return str(self._tls().ca_file)

    def _tls(self) -> ListenerCertificate:
        self._live.check_caller()
        if not isinstance(self._live, MemoryServer):
            self._live.listen(None)  # it refuses: no port can have a certificate
        if self._live.is_closing:
            raise RuntimeError("this InMemoryKafka is closed: it has no certificate any more")
        if self._certificate is None:
            self._certificate = ListenerCertificate()
        return self._certificate

    def _open_socket(
        self,
        host: str,
        port: int,
        buffers: BufferSizes,  # noqa: ARG002 - a socket without a network keeps its sizes
        remaining_s: Callable[[], float],
        on_socket: Callable[[socket.socket], None],
        first: int = 0,  # noqa: ARG002 - each name has one address
    ) -> socket.socket:
        node_id = self._nodes.get((host, port))
        if node_id is None:
            raise UnknownHostError(
                f"cannot find the host of {host}:{port}: this InMemoryKafka has only the brokers"
                f" {self.bootstrap_servers}"
            )
        server = self._live
        try:
            if not isinstance(server, MemoryServer):
                raise ConnectionRefusedError("the cluster is one of virtual time")
            sock = server.connect(node_id)
        except OSError as error:
            remaining_s()
            raise DisconnectError(f"cannot connect to {host}:{port} ({error})") from error
        on_socket(sock)
        return sock

    def sleep(self, seconds: float) -> None:
        """Let time pass. With `clock="virtual"` this takes none."""
        seconds = arguments.delay_ms(seconds) / 1000
        server = self._live
        pause = time.sleep if isinstance(server, MemoryServer) else server.sleep
        pause(seconds)

    # --- topics and records ---------------------------------------------------------------------

    def security_config(self) -> dict[str, Any]:
        """Return a client's security settings: the login of the first user, if there are users."""
        return dict(self._security)

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replication_factor: int | None = None,  # noqa: ARG002 - the model has no replicas
        config: Mapping[str, Any] | None = None,
        timeout: float = 30.0,  # noqa: ARG002 - likewise
        *,
        compacted: bool = False,
    ) -> None:
        """Create a topic. Every broker knows it at once.

        Args:
            name: one that no topic has.
            partitions: their number.
            replication_factor: without effect, as `timeout` is. A real Kafka takes them.
            config: settings of the topic by Kafka's names: `cleanup.policy`.
            timeout: see `replication_factor`.
            compacted: whether brokers refuse its records without a key, as the policy says too.

        Raises:
            ValueError: the topic exists, the name is none of a topic, or a setting is another one.
        """
        arguments.topic_name(name)
        arguments.partition_count(name, partitions)
        compacted |= arguments.is_compacted(config)

        def create(_: BrokerCluster, now_ms: int) -> None:
            changes.create_topic(self._cluster, name, partitions, now_ms, is_compacted=compacted)

        self._open.call(create)

    def records(
        self,
        topic: str,
        *,
        isolation: Isolation = "read_committed",
        timeout: float = 30.0,  # noqa: ARG002 - nothing is waited for
    ) -> list[MemoryRecord]:
        """Return the records of a topic that a consumer gets, by partition and offset.

        Args:
            topic: its name.
            isolation: "read_committed" ends before the first open transaction, and leaves aborted
                records out.
            timeout: without effect; a real Kafka takes it.

        Raises:
            KeyError: there is no such topic.
        """
        text("topic", topic)
        only_committed = is_committed(isolation)
        return self._live.call(
            lambda cluster, _: records_of(cluster, topic, is_committed=only_committed)
        )

    # --- transactions ---------------------------------------------------------------------------

    def transactions(self) -> dict[str, MemoryTransaction]:
        """Return each transactional id that was ever used, as its coordinator knows it."""

        def describe(cluster: BrokerCluster, _: int) -> dict[str, MemoryTransaction]:
            return {name: described(cluster, name) for name in cluster.transactional_ids}

        return self._live.call(describe)

    def committed(self, group_id: str) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the offsets that were committed for a consumer group."""
        text("group_id", group_id)

        def read(cluster: BrokerCluster, _: int) -> dict[TopicPartition, OffsetAndMetadata]:
            return cluster.group_offsets(group_id).committed(group_id)

        return self._live.call(read)

    def fence(self, transactional_id: str) -> None:
        """Let a newer producer of the id take over, as `init_transactions()` of one does.

        Before the first `init_transactions()` of an id there is nothing to fence: a producer that
        comes later is the newer one.

        Raises:
            ValueError: no producer has used the id, or the newer one would be refused too.
        """
        name = text("transactional_id", transactional_id)
        self._open.call(lambda cluster, now_ms: changes.take_over(cluster, name, now_ms))

    def time_out_transaction(self, transactional_id: str) -> None:
        """Let the coordinator abort the id's open transaction, as if its time were up.

        As on a real broker, the coordinator raises the id's epoch. With transactions v2 a commit
        is then refused with INVALID_TXN_STATE, and an abort succeeds. Any other request, and each
        one with v1, is refused with INVALID_PRODUCER_EPOCH or PRODUCER_FENCED. A producer tells
        a time-out from a newer producer by the time that has passed. Here none has, so the text
        of its error names a newer producer.

        If `transaction_timeout_ms` has passed and it is aborted already, this call does nothing.

        Raises:
            ValueError: none is open and the last one did not time out, or no broker is up.
        """
        name = text("transactional_id", transactional_id)
        self._open.call(lambda _, now_ms: changes.time_out(self._cluster, name, now_ms))

    # --- brokers --------------------------------------------------------------------------------

    def move_coordinator(self, transactional_id: str) -> None:
        """Move the id's transaction coordinator to the next broker that is up.

        Without another broker the next request is refused once, with NOT_COORDINATOR.

        Raises:
            ValueError: no producer has used the id, or no broker is up.
        """
        name = text("transactional_id", transactional_id)
        self._open.call(lambda _, now_ms: changes.move_coordinator(self._cluster, name, now_ms))

    def move_group_coordinator(self, group_id: str) -> None:
        """Move a group's coordinator to the next broker that is up, as `move_coordinator` does.

        Raises:
            ValueError: no producer has sent offsets of the group, or no broker is up.
        """
        name = text("group_id", group_id)
        self._open.call(lambda _, now: changes.move_group_coordinator(self._cluster, name, now))

    def move_leader(self, topic: str, partition: int) -> None:
        """Give a partition the next broker that is up as its leader.

        Without another broker the next batch is refused once, with NOT_LEADER_OR_FOLLOWER.

        Raises:
            KeyError: there is no such partition.
            ValueError: no broker is up.
        """
        place = TopicPartition(text("topic", topic), arguments.partition(partition))
        self._open.call(lambda _, now_ms: changes.move_leader(self._cluster, place, now_ms))

    def stop_node(self, node: int) -> None:
        """Stop a broker. Its connections end, and others take over its partitions and ids.

        Raises:
            ValueError: there is no such broker, or it is stopped already.
        """
        self._open.stop_node(arguments.node_number(node, self._nodes.values()))

    def start_node(self, node: int) -> None:
        """Start a stopped broker.

        Raises:
            ValueError: there is no such broker, or it is up already.
        """
        arguments.node_number(node, self._nodes.values())
        self._open.call(lambda cluster, now_ms: cluster.start_node(node, now_ms))

    @contextmanager
    def stopped(self, node: int) -> Iterator[None]:
        """Keep a broker stopped for the length of a block."""
        self.stop_node(node)
        try:
            yield
        # Also if the block has failed: the next test may use the same cluster.
        finally:
            if not self._live.is_closing and not self._cluster.is_up(node):
                self.start_node(node)

    # --- rights ---------------------------------------------------------------------------------

    def deny(
        self,
        *,
        topic: str | None = None,
        group: str | None = None,
        transactional_id: str | None = None,
    ) -> None:
        """Refuse all clients the access to a resource, as missing rights (ACLs) do.

        Args:
            topic: one that cannot be written and described.
            group: one whose offsets cannot be committed.
            transactional_id: one that cannot be used.

        Raises:
            KeyError: there is no such topic. An id and a group need not have been used.
        """
        denied = changes.resources(topic, group, transactional_id)
        self._open.call(lambda cluster, _: changes.deny(cluster, denied))

    def allow(
        self,
        *,
        topic: str | None = None,
        group: str | None = None,
        transactional_id: str | None = None,
    ) -> None:
        """Grant the access again that `deny` has refused. It takes the same arguments.

        Raises:
            ValueError: access to one of them is not denied.
        """
        allowed = changes.resources(topic, group, transactional_id)
        self._open.call(lambda cluster, _: changes.allow(cluster, allowed))

    # --- faults ---------------------------------------------------------------------------------

    def fail_next(self, api: str, *, error: str | int, times: int = 1) -> None:
        """Refuse the next requests of an API.

        A request that names nothing to refuse passes by, as one for the metadata of no topic.

        Args:
            api: its name in Kafka's protocol, as "EndTxn".
            error: the name or the number of the error, as "NOT_COORDINATOR".
            times: how many requests.
        """
        self._add(api, Fault(ScriptedFault.REFUSED, code=arguments.error_code(error)), times)

    def lose_request(self, api: str, *, times: int = 1) -> None:
        """Close the connection on which the next request of an API arrives, unread."""
        self._add(api, Fault(ScriptedFault.REQUEST_LOST), times)

    def lose_answer(self, api: str, *, times: int = 1) -> None:
        """Let the next request of an API take effect, and close the connection without answer."""
        self._add(api, Fault(ScriptedFault.ANSWER_LOST), times)

    def delay(self, api: str, seconds: float, *, times: int = 1) -> None:
        """Send the answer to the next request of an API late. It takes effect at once."""
        self._add(api, Fault(ScriptedFault.SLOW, delay_ms=arguments.delay_ms(seconds)), times)

    def remaining_faults(self) -> dict[str, int]:
        """Return how many faults have met no request so far, by API."""
        return faults.by_name(self._live.call(lambda _, __: self._live.script.remaining()))

    def clear_faults(self) -> None:
        """Forget the faults that have met no request."""

        def clear(_: BrokerCluster, __: int) -> None:
            self._live.script.clear()
            self._asked.clear()

        self._open.call(clear)

    def _add(self, api: str, fault: Fault, times: int) -> None:
        key = faults.api_of(api)
        count = arguments.count("times", times)

        def add(_: BrokerCluster, __: int) -> None:
            self._live.script.add(key, fault, count)
            self._asked.add(key, count)

        self._open.call(add)
