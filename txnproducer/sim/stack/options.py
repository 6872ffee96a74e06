"""The options that a seed draws for a run of the whole stack.

Owns: `StackOptions`. As in the simulator of the core, a run has a few kinds of faults at high
rates (swarm testing; Groce et al., ISSTA 2012), and a tenth of the runs has none.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from txnproducer._broker.options import ClusterOptions
from txnproducer.sim.stack.faults import ByteFault
from txnproducer.sim.stack.listeners import ASKS
from txnproducer.sim.stack.token_options import TokenOptions

__all__ = [
    "CALL_FAULTS",
    "CLOSES_IN_BLOCK",
    "CODECS",
    "EVENTS",
    "GROUP_TOPIC",
    "LATER_CALL_FAULTS",
    "LATER_EVENTS",
    "OTHER_TOPICS",
    "PARTITIONS",
    "RAISES",
    "REFUSES_OTHERS",
    "TOPIC",
    "StackOptions",
    "group_of",
]

TOPIC: Final = "topic"
GROUP_TOPIC: Final = "input"
# A producer that asks for the partitions of one has to wait for its metadata.
OTHER_TOPICS: Final = tuple(f"other-{number}" for number in range(8))
PARTITIONS: Final = 4
CODECS: Final = ("none", "lz4")
_CALM_RATE: Final = 0.1
_UNDISTURBED_RATE: Final = 0.2
_LONG_STALL_S: Final = 0.1
# Longer than a run without faults.
_DEFAULT_IDLE_MS: Final = 540_000
# The fault at calls that delays others: it holds up the I/O thread.
_BLOCKS: Final = "callback blocks"
_LEAVES: Final = "a broker leaves"
CLOSES_IN_BLOCK: Final = "close in a block"
RAISES: Final = "raise the transaction version"
REFUSES_OTHERS: Final = "refuse another request"

# For one connection, look-up or call of a socket.
_HIGHEST_RATES: Final[Mapping[ByteFault, float]] = dict.fromkeys(ByteFault, 0.3) | {
    ByteFault.LOOK_UP_FAILS: 0.4,
    ByteFault.LOOK_UP_HANGS: 0.2,
}


@dataclass(frozen=True, slots=True)
class StackOptions:
    """The options of one run.

    Attributes:
        seed: draws the rest.
        cluster: the settings of the brokers.
        services: the number of processes, each with a transactional id.
        has_rival: whether a process takes the first one's id from time to time.
        byte_rates: the rates of faults at the bytes.
        event_s: the mean time between two events of the cluster, by the name of the event.
        call_rates: the rates of faults at calls, by their names.
        settings: of every producer.
        users: whether listeners ask for a login.
        mechanism: of the logins.
        tokens: of logins by OAUTHBEARER; None for another mechanism.
        has_companions: whether a second thread sends and flushes beside all calls of each process.
        session_ms: how long a login is valid.
        latency_ms: the longest of one way.
        tick_ns: added to the time by each look at the clock.
        longest_stall_s: the longest time for which a thread loses its processor.
        switch_rate: the probability that another thread goes on where one could.
        transactions: how many a process makes before the faults end.
    """

    seed: int
    cluster: ClusterOptions
    services: int
    has_rival: bool
    byte_rates: Mapping[ByteFault, float]
    event_s: Mapping[str, float]
    call_rates: Mapping[str, float]
    settings: Mapping[str, Any] = field(repr=False)
    users: bool
    session_ms: int
    latency_ms: float
    tick_ns: int
    longest_stall_s: float
    switch_rate: float
    transactions: int
    mechanism: str = "SCRAM-SHA-256"
    has_companions: bool = False
    tokens: TokenOptions | None = None

    @property
    def is_calm(self) -> bool:
        """Whether the run has no fault at all."""
        return self.is_undisturbed and not self.call_rates

    @property
    def is_undisturbed(self) -> bool:
        """Whether no fault delays a call. Those at other calls do not, nor do small pieces."""
        disturbs = self.byte_rates.keys() - {ByteFault.PIECES} or self.event_s or self.has_rival
        if self.tokens is not None:
            disturbs = disturbs or self.tokens.rates
        return not disturbs and _BLOCKS not in self.call_rates

    @property
    def keeps_connections(self) -> bool:
        """Whether no connection has a reason to end before its producer."""
        return self.is_undisturbed and self.settings["connections_max_idle_ms"] == _DEFAULT_IDLE_MS

    @property
    def is_loop_steady(self) -> bool:
        """Whether no fault lets the I/O thread stand still between two of its calls."""
        stands = "jump of the clock" in self.event_s or _BLOCKS in self.call_rates
        return not stands and self.longest_stall_s < _LONG_STALL_S

    @property
    def leaver(self) -> int | None:
        """The broker that leaves the cluster for good; None if none does.

        No producer has it as a bootstrap address, which a client may try for ever.
        """
        count = self.cluster.node_count
        if _LEAVES not in self.event_s or count == 1:
            return None
        return random.Random(f"leaver {self.seed}").randrange(count)  # noqa: S311 - likewise

    @classmethod
    def draw(cls, seed: int) -> StackOptions:
        """Draw the options of a seed."""
        options = _with_later_draws(cls._draw(seed))
        # Else a lost wake-up looks like a slow broker.
        if random.Random(f"undisturbed {seed}").random() < _UNDISTURBED_RATE:  # noqa: S311
            left = {ByteFault.PIECES: 0.2} if ByteFault.PIECES in options.byte_rates else {}
            # Nor does an age or an idle connection wake the loop, as long as a run lasts.
            ages = {"metadata_max_age_ms": 300_000, "connections_max_idle_ms": _DEFAULT_IDLE_MS}
            return replace(
                options,
                has_rival=False,
                # A longer one would excuse the loop from the judge of connections.
                longest_stall_s=0.01,
                byte_rates=left,
                event_s={},
                call_rates={
                    # Few of the places in a call matter to the wake-ups.
                    each: 0.3 if each == "interrupt at a call" else rate
                    for each, rate in options.call_rates.items()
                    if each != _BLOCKS
                },
                settings={**options.settings, **ages},
                # Such a run is short, and sessions end in it all the same.
                session_ms=min(options.session_ms, 500),
                tokens=options.tokens and options.tokens.undisturbed(),
            )
        return options

    @classmethod
    def _draw(cls, seed: int) -> StackOptions:
        rng = random.Random(f"stack {seed}")  # noqa: S311 - seeded on purpose
        is_calm = rng.random() < _CALM_RATE
        users = rng.random() < 0.3
        return cls(
            seed,
            ClusterOptions(
                node_count=rng.choice((1, 2, 3)),
                # 1 is the protocol before KIP-890, of brokers before 4.0.
                transaction_version=rng.choice((1, 2, 2)),
                max_marker_delay_ms=rng.choice((0, 5, 200)),
                max_metadata_delay_ms=0 if is_calm else rng.choice((0, 0, 500)),
                loading_ms=rng.choice((0, 100)),
            ),
            rng.choice((1, 1, 2)),
            not is_calm and rng.random() < 0.15,
            {} if is_calm else _some(rng, _HIGHEST_RATES, 0.3),
            {} if is_calm else _intervals(rng),
            {} if is_calm else _some(rng, CALL_FAULTS, 0.3),
            _settings(rng),
            users,
            rng.choice((0, 3_000, 20_000)) if users else 0,
            rng.choice((0.2, 2.0, 20.0)),
            rng.choice((0, 0, 1_000, 100_000)),
            rng.choice((0.01, 0.01, 0.2)),
            rng.choice((0.02, 0.1, 0.5)),
            rng.randint(3, 12),
        )


# By name, the highest rate of a fault at a call or in a callback.
CALL_FAULTS: Final[Mapping[str, float]] = {
    "callback raises": 0.2,
    "callback sends": 0.2,
    _BLOCKS: 0.1,
    "callback commits": 0.1,
    "callback flushes": 0.1,
    "callback closes": 0.02,
    "interrupt at a wait": 0.3,
    "interrupt at a call": 0.3,
    "close on another thread": 0.1,
    "close at once": 0.3,
    "dropped": 0.1,
    "wrong call": 0.2,
}
# By name, the shortest and the longest mean time between two events, in seconds.
EVENTS: Final[Mapping[str, tuple[float, float]]] = {
    "stop a broker": (2, 30),
    "move a leader": (1, 20),
    "move a coordinator": (1, 20),
    "time out": (2, 30),
    "fence": (5, 60),
    "refuse a request": (0.2, 5),
    "lose a request": (0.5, 10),
    "lose an answer": (0.5, 10),
    "slow answer": (0.5, 10),
    "kill a process": (3, 60),
    "jump of the clock": (3, 60),
    "refuse logins": (5, 60),
}


# Rows from here on, and the draws of `_with_later_draws`, have a source of their own each: a seed
# that does not draw one keeps its run.
LATER_CALL_FAULTS: Final[Mapping[str, float]] = {
    "another thread ends": 0.5,
    "callback sends offsets": 0.2,
    CLOSES_IN_BLOCK: 0.3,
}
LATER_EVENTS: Final[Mapping[str, tuple[float, float]]] = {
    "refuse logins of one broker": (1, 15),
    "jump of the wall clock": (0.5, 15),
    "move a name": (2, 20),
    _LEAVES: (1, 10),
    ASKS: (1, 10),
    RAISES: (0.5, 10),
    REFUSES_OTHERS: (0.2, 5),
}
_LATER_SHARE: Final = 0.15
_RAISED_SHARE: Final = 0.6  # of the fifth of the clusters with a version that can be raised
_COMPANIONS_SHARE: Final = 0.2
# Half of the seeds keep the one that is drawn most.
_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-512", "SCRAM-SHA-256", "SCRAM-SHA-256")
# By the share of the clusters with transactions v1: Kafka 3.9, 2.4, and 4.x with brokers that are
# not upgraded yet.
_OLD_CLUSTERS: Final = ("3.9", "2.4", "mixed", "4", "4")
# Of the seeds with logins, those that log in by a token instead.
_TOKENS_SHARE: Final = 0.3


def _with_later_draws(options: StackOptions) -> StackOptions:
    def source(name: str) -> random.Random:
        return random.Random(f"{name} {options.seed}")  # noqa: S311 - seeded on purpose

    options = replace(
        options,
        cluster=_with_version(source("versions"), options.cluster),
        mechanism=source("mechanism").choice(_MECHANISMS),
        has_companions=source("companions").random() < _COMPANIONS_SHARE,
    )
    is_calm = options.is_calm
    tokens = source("tokens")
    if options.users and tokens.random() < _TOKENS_SHARE:
        drawn = TokenOptions.draw(tokens)
        drawn = drawn.undisturbed() if is_calm else drawn
        options = replace(options, mechanism="OAUTHBEARER", tokens=drawn)
    # A tenth of the seeds has no fault.
    if is_calm:
        return options
    rates, intervals = dict(options.call_rates), dict(options.event_s)
    for name, most in LATER_CALL_FAULTS.items():
        rates |= _some(source(name), {name: most}, _LATER_SHARE)
    for name, bounds in LATER_EVENTS.items():
        rng = source(name)
        if rng.random() < (_RAISED_SHARE if name == RAISES else _LATER_SHARE):
            intervals[name] = rng.uniform(*bounds)
    # Brokers before 4.0 know no other version, and nothing goes back.
    if options.cluster.is_before_4 or options.cluster.transaction_version > 1:
        intervals.pop(RAISES, None)
    if options.tokens is not None:
        intervals |= options.tokens.event_s
    return replace(options, call_rates=rates, event_s=intervals)


def _with_version(rng: random.Random, cluster: ClusterOptions) -> ClusterOptions:
    """Return a cluster with transactions v1 as one of another version of the brokers, perhaps."""
    if cluster.transaction_version != 1:
        return cluster
    version = rng.choice(_OLD_CLUSTERS)
    if version == "3.9":
        return replace(cluster, is_before_4=True)
    if version == "2.4":
        # Before KIP-360 no producer can raise its epoch by itself.
        return replace(cluster, is_before_4=True, init_producer_id_version=2)
    if version == "mixed":
        return replace(cluster, old_node_count=rng.randint(1, cluster.node_count))
    return cluster


def _some(rng: random.Random, highest: Mapping[Any, float], share: float) -> dict[Any, float]:
    return {
        each: most * rng.random() ** 2 for each, most in highest.items() if rng.random() < share
    }


def _intervals(rng: random.Random) -> dict[str, float]:
    return {each: rng.uniform(*bounds) for each, bounds in EVENTS.items() if rng.random() < 0.25}


def _settings(rng: random.Random) -> dict[str, Any]:
    request_ms = rng.choice((500, 2_000, 5_000))
    linger_ms = rng.choice((0, 0, 5, 100))
    return {
        "batch_size": rng.choice((1, 300, 16_384)),
        "linger_ms": linger_ms,
        # 20,000 bytes hold one batch of the largest size: the next one has to wait for memory.
        "buffer_memory": rng.choice((20_000, 1_000_000)),
        "max_block_ms": rng.choice((1_000, 5_000, 30_000)),
        "request_timeout_ms": request_ms,
        # At least the sum of the other two, as the configuration demands.
        "delivery_timeout_ms": request_ms + linger_ms + rng.choice((0, 5_000, 60_000)),
        "transaction_timeout_ms": rng.choice((5_000, 20_000, 60_000)),
        "retry_backoff_ms": rng.choice((5, 100)),
        "retry_backoff_max_ms": 1_000,
        "reconnect_backoff_ms": rng.choice((5, 50)),
        "reconnect_backoff_max_ms": 1_000,
        "socket_connection_setup_timeout_ms": rng.choice((500, 5_000)),
        "socket_connection_setup_timeout_max_ms": 5_000,
        # The longer ones are Kafka's defaults, and the shorter ones are over within a run.
        "connections_max_idle_ms": rng.choice((1_000, _DEFAULT_IDLE_MS)),
        "metadata_max_age_ms": rng.choice((1_000, 300_000)),
        "compression_type": rng.choice(("none", *CODECS)),
        # Five at most: a broker remembers the last five batches of a producer.
        "max_in_flight_requests_per_connection": rng.choice((1, 5)),
    }


def group_of(transactional_id: str) -> str:
    """Return the group for which the services of an id add offsets."""
    return f"group-{transactional_id}"
