"""The world of one run: the brokers, the network, the threads, the time, the trace.

Why it exists: the parts of a run share these objects. Each part gets the world, so that none has
to know the run.
Owns: what the parts share, and whether the faults have ended. Must not know: services, producers,
events, judges, the phases of a run.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Callable

from txnproducer._broker.cluster import BrokerCluster
from txnproducer._server.login import Users
from txnproducer.sim.stack.baton import Baton
from txnproducer.sim.stack.client_watch import ClientWatch
from txnproducer.sim.stack.faults import ByteFaults
from txnproducer.sim.stack.network import VirtualNetwork
from txnproducer.sim.stack.options import (
    GROUP_TOPIC,
    OTHER_TOPICS,
    PARTITIONS,
    TOPIC,
    StackOptions,
)
from txnproducer.sim.stack.platform import VirtualPlatform
from txnproducer.sim.stack.tokens import IssuedTokens
from txnproducer.sim.world.history import History

__all__ = ["StackWorld"]


class StackWorld:
    """Hold the things that the parts of a run share.

    Args:
        options: of the run.
        emit: takes the lines of the trace; None for no trace.

    Attributes:
        options: likewise.
        history: of the transactions, with the violations.
        cluster: the brokers.
        baton: the threads and the time.
        faults: at the bytes.
        users: may log in.
        tokens: that were issued.
        network: between producers and brokers.
        platform: of the services' own threads.
        counts: how often each event has happened, and each fault at a call.
        is_healed: whether the faults have ended.
        healed_ms: when they ended.
        jumped_ms: by how much the clocks have jumped.
    """

    def __init__(self, options: StackOptions, emit: Callable[[str], None] | None = None) -> None:
        self.options = options
        self._emit = emit
        self._digest = hashlib.sha256()
        self.history = History()
        self.cluster = BrokerCluster(options.cluster, self.new_rng("cluster"))
        self.cluster.create_topic(TOPIC, PARTITIONS)
        self.cluster.create_topic(GROUP_TOPIC, 1)
        for topic in OTHER_TOPICS:
            self.cluster.create_topic(topic, 1)
        self.baton = Baton(self.new_rng("threads"), self.cluster, options.switch_rate)
        self.baton.tick_ns = options.tick_ns
        self.baton.longest_stall_s = options.longest_stall_s
        self.faults = ByteFaults(options.byte_rates, self.new_rng("bytes"))
        self.tokens = IssuedTokens(lambda: self.baton.now_ms)
        self.users = Users({"user": "secret"}, session_lifetime_ms=options.session_ms)
        if options.tokens is not None:
            self.users = Users({}, ("OAUTHBEARER",), options.session_ms, self.tokens.judge)
        self.network = VirtualNetwork(
            self.baton,
            self.cluster,
            self.faults,
            self.new_rng("network"),
            options.latency_ms,
            self.trace,
            self.users if options.users else None,
        )
        # One source for all platforms: with one each, all producers would have the same jitter.
        self._jitter = self.new_rng("jitter")
        self.platform = self.new_platform()
        self.counts: Counter[str] = Counter()
        self.is_healed = False
        self.healed_ms = 0
        self.jumped_ms = 0
        self._offsets = 0

    def new_rng(self, name: str) -> random.Random:
        """Return the source of randomness for one part of the run."""
        # One for each part: a part that draws once more does not shift the draws of the others.
        return random.Random(f"{name} {self.options.seed}")  # noqa: S311 - seeded on purpose

    def new_platform(self, watch: ClientWatch | None = None) -> VirtualPlatform:
        """Return a platform on this network and time.

        Args:
            watch: judges the connections of the producer that uses it; None for no judge.
        """
        return VirtualPlatform(self.baton, self.network, self._jitter, watch)

    def heal(self) -> None:
        """End the faults of the network, and note that all faults have ended."""
        self.network.heal()
        self.is_healed, self.healed_ms = True, self.baton.now_ms

    def next_offset(self) -> int:
        """Return an offset that was never used before."""
        self._offsets += 1
        return self._offsets

    # --- the trace ------------------------------------------------------------------------------

    def trace(self, line: str) -> None:
        """Note an event."""
        told = f"{self.baton.now_ns // 1000:>12} {self.baton.current.name:<24} {line}"
        self._digest.update(told.encode())
        if self._emit is not None:
            self._emit(told)

    @property
    def digest(self) -> str:
        """The digest of the trace until now."""
        return self._digest.hexdigest()[:16]

    # --- the limits of calls --------------------------------------------------------------------

    @property
    def max_block_ms(self) -> int:
        """The limit of a call that waits for brokers."""
        return int(self.options.settings["max_block_ms"])

    @property
    def delivery_ms(self) -> int:
        """The limit of a flush or a close."""
        # The producer adds two seconds, so that the core's answer can reach the caller.
        return int(self.options.settings["delivery_timeout_ms"]) + 2_000
