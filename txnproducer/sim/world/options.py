"""The options that a seed draws: the cluster, the producers, their settings, the faults of a run.

Why it exists: the method is swarm testing (Groce et al., "Swarm Testing", ISSTA 2012). A run with
a few kinds of faults at high rates finds errors that are hidden in a run with all kinds.
Owns: `SimOptions` and how it is drawn. The producer promises to work in the range of every number
here.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

from txnproducer._broker.options import ClusterOptions
from txnproducer.errors import ErrorCode
from txnproducer.sim.world.faults import (
    BROKER_RATES,
    CHANGING_INTERVALS_MS,
    CHANGING_RATES,
    EVENT_INTERVALS_MS,
    LATER_INTERVALS_MS,
    LATER_RATES,
    NETWORK_RATES,
    FaultKind,
)

TOPIC = "topic"
COMPACTED_TOPIC = "compacted"
MIN_TRANSACTIONS = 20
MIN_REQUESTS = 300
_OF_A_MISSING_TOPIC = (
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.INVALID_REPLICATION_FACTOR,
)
# The share of all seeds, the share of these, and the share of the others.
_MANY_BATCHES_RATE = 1 / 8
_STALLED_LEADERS_RATE = 1 / 4
_LATE_DELIVERY_RATE = 1 / 8
# The share of the seeds of no other shape.
_SHARED_RATE = 1 / 12
# The share of all seeds, and the probability of each change in them.
_CHANGING_RATE = 1 / 5
_CHANGE_RATE = 0.4
# The share of calls in a run that is interrupted at inner calls.
_INTERRUPTED_RATE = 0.1
# Names of rngs. A new name would draw other runs, and the kept seeds would find nothing.
_MANY_BATCHES_RNG = "crowd"
_STALLED_LEADERS_RNG = "deaf"
_LATE_DELIVERY_RNG = "haunt"
# Likewise; chosen so that the seeds that catch mutants run as before there were changes.
_CHANGE = "change 14853"
# The share of all seeds with calls that send many records, and the share of such calls.
_ROWS_RATE = 1 / 4
_ROW_RATES = (0.1, 0.5)
# The longest delay of a late request after the end of its connection.
LATEST_MS = 30_000
# The delivery time-out of producers after the faults end.
LONGEST_DELIVERY_MS = 30_000


class RunKind(StrEnum):
    """The kinds of runs. Few seeds draw one, but any seed's run can be made one of a kind."""

    MANY_BATCHES = "many-batches"
    STALLED_LEADERS = "stalled-leaders"
    LATE_DELIVERY = "late-delivery"
    SHARED = "shared"
    CHANGING = "changing"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class SimOptions:
    """The options of one run, printed with a failing seed.

    Attributes:
        seed: draws the rest.
        cluster: the settings of the brokers.
        transactional_producers: the number of transactional ids.
        idempotent_producers: the number of producers without an id.
        plain_producers: the number of producers without idempotence.
        partition_count: the number of partitions of each topic.
        requests: the run continues until this many requests were sent and `MIN_TRANSACTIONS` made.
        rates: the rates of faults per request and per write.
        intervals_ms: the mean time between two events of a kind.
        settings: the settings of every producer.
        abort_rate: the share of transactions that the application aborts.
        offsets_rate: the share of transactions with a group's offsets.
        burst: the factor by which a network fault makes others likelier.
        impatience: the share of calls that applications interrupt.
        is_late_delivery_on: whether requests of dead connections may arrive.
        initial_epoch: the first epoch of transactional ids (near the last one in some runs), or
            -1.
        network_ms: the longest usual delay of a request or an answer.
        has_many_batches: whether applications send much at once, in the smallest batches.
        has_stalled_leaders: whether leaders move, too, and the previous leaders do not answer.
        is_late_delivery_frequent: whether many connections die, and each of their requests arrives
            soon after.
        row_rate: the share of sending calls that send many records.
        is_shared: whether transactions are leased and written by several processes.
        is_interrupted_inside: whether exceptions are raised at the core's inner calls. No seed
            draws it; see `interrupts.py`.
    """

    seed: int
    cluster: ClusterOptions
    transactional_producers: int
    idempotent_producers: int
    plain_producers: int
    partition_count: int
    requests: int
    rates: Mapping[FaultKind, float]
    intervals_ms: Mapping[FaultKind, int]
    settings: Mapping[str, Any]
    abort_rate: float
    offsets_rate: float
    burst: float
    impatience: float
    is_late_delivery_on: bool
    initial_epoch: int
    network_ms: int
    has_many_batches: bool = False
    has_stalled_leaders: bool = False
    is_late_delivery_frequent: bool = False
    row_rate: float = 0.0
    is_shared: bool = False
    is_interrupted_inside: bool = False

    def __str__(self) -> str:
        def show(value: object) -> str:
            if isinstance(value, Mapping):
                pairs = (
                    f"{getattr(key, 'name', key)}={number:.3g}"
                    if isinstance(number, float)
                    else f"{getattr(key, 'name', key)}={number}"
                    for key, number in value.items()
                )
                return "{" + ", ".join(pairs) + "}"
            return str(value)

        return "\n".join(f"  {f.name}: {show(getattr(self, f.name))}" for f in fields(self))

    @staticmethod
    def draw(seed: int, kind: RunKind | None = None) -> SimOptions:
        """Draw the options of a run.

        Args:
            seed: draws them.
            kind: the kind of the run; None lets the seed draw it.
        """
        rng = random.Random(f"options {seed}")  # noqa: S311 - seeded on purpose
        is_v2 = rng.random() < 0.5
        can_bump = is_v2 or rng.random() < 0.85  # clusters before 2.5 are rare
        settings = _draw_settings(rng)
        # A partition must not forget a producer while its retries, or late copies of them, are in
        # flight: it could not recognize a duplicate. So `producer.id.expiration.ms` has to be
        # longer.
        forgets = rng.random() < (0.2 if can_bump else 0.6)  # only before 2.5 is the client told
        delivery_ms = max(settings["delivery_timeout_ms"], LONGEST_DELIVERY_MS)
        longest_ms = 1000 + delivery_ms + settings["request_timeout_ms"] + LATEST_MS
        cluster = _draw_cluster(rng, is_v2=is_v2, can_bump=can_bump)
        if forgets:
            cluster = replace(cluster, producer_id_expiration_ms=longest_ms)
        options = SimOptions(
            seed=seed,
            cluster=cluster,
            transactional_producers=rng.choice((1, 2, 2, 3)),
            idempotent_producers=rng.choice((1, 1, 1, 2)),
            plain_producers=rng.choice((0, 0, 0, 1)),
            partition_count=rng.choice((1, 2, 3, 5)),
            requests=rng.choice((MIN_REQUESTS, 500, 800, 1200)),
            rates=_draw_rates(rng) | _draw_later_rates(seed),
            intervals_ms=_draw_intervals(rng, cluster) | _draw_later_intervals(seed),
            settings=settings,
            abort_rate=rng.choice((0.0, 0.1, 0.4)),
            offsets_rate=rng.choice((0.0, 0.3, 0.8)),
            burst=rng.choice((1.0, 1.0, 8.0)),
            impatience=rng.choice((0.03, 0.03, 0.03, 0.2)),
            is_late_delivery_on=rng.random() < 0.6,
            # Close enough to 32766 that a run uses the last epochs up.
            initial_epoch=rng.choice((-1, -1, -1, 32750, 32764)) if can_bump else -1,
            network_ms=rng.choice((1, 5, 50)),
            row_rate=_draw_row_rate(seed),
        )
        return _draw_kind(options) if kind is None else _MAKERS[kind](options)


def _draw_kind(options: SimOptions) -> SimOptions:
    options = _draw_shape(options)
    return _change(options) if _is_drawn(options, _CHANGE, _CHANGING_RATE) else options


def _draw_shape(options: SimOptions) -> SimOptions:
    if _is_drawn(options, _MANY_BATCHES_RNG, _MANY_BATCHES_RATE):
        is_stalled = _is_drawn(options, _STALLED_LEADERS_RNG, _STALLED_LEADERS_RATE)
        return _stall_leaders(options) if is_stalled else _send_many_batches(options)
    if _is_drawn(options, _LATE_DELIVERY_RNG, _LATE_DELIVERY_RATE):
        return _deliver_late(options)
    return _share(options) if _is_drawn(options, "share", _SHARED_RATE) else options


def _is_drawn(options: SimOptions, kind: str, rate: float) -> bool:
    return _rng_for(options, kind).random() < rate


def _rng_for(options: SimOptions, kind: str) -> random.Random:
    return random.Random(f"options {options.seed} {kind}")  # noqa: S311 - seeded on purpose


def _send_many_batches(options: SimOptions) -> SimOptions:
    """Put many batches of one partition in flight, with faults for some of them.

    Otherwise faults rarely hit a batch between others: one is refused, split or expired while
    later ones are in flight or wait with a sequence.
    """
    rng = _rng_for(options, _MANY_BATCHES_RNG)
    rng.random()  # the number that decides whether the seed draws this kind
    settings = {
        "batch_size": 150,  # many are in flight at once
        "linger_ms": 0,
        "max_in_flight_requests_per_connection": 5,
        "buffer_memory": 1 << 22,
        "retries": 2**31 - 1,
    }
    intervals_ms = {kind: ms // 3 for kind, ms in LATER_INTERVALS_MS.items()}
    drawn = {kind: ms for kind, ms in intervals_ms.items() if rng.random() < 0.5}
    return replace(
        options,
        settings={**options.settings, **settings},
        partition_count=1,  # all batches of a producer follow each other there
        abort_rate=rng.choice((0.0, 0.5)),
        network_ms=rng.choice((5, 50)),
        intervals_ms={**options.intervals_ms, **drawn},
        has_many_batches=True,
    )


def _stall_leaders(options: SimOptions) -> SimOptions:
    """Put many batches in flight, and move leaders. The previous ones write without an answer.

    This can put more batches of a partition in flight than one connection takes.
    """
    options = _send_many_batches(options)
    return replace(
        options,
        cluster=replace(options.cluster, node_count=3, max_metadata_delay_ms=0),
        # The client has to learn of the new leader while the former one still owes its answers.
        settings={**options.settings, "request_timeout_ms": 1000, "metadata_max_age_ms": 100}
        | {"delivery_timeout_ms": 21_000, "transaction_timeout_ms": 60_000},
        rates={FaultKind.STALLED: 0.03},  # other faults would end the connection first
        intervals_ms={FaultKind.LEADER_MOVED: 300},
        has_stalled_leaders=True,
    )


def _deliver_late(options: SimOptions) -> SimOptions:
    """Deliver requests of dead connections during the next transaction.

    Otherwise they rarely do harm, even to a producer without any guard: a request of one kind has
    to arrive between two certain requests of a later transaction. With transactions v2 they do no
    harm.
    """
    rng = _rng_for(options, _LATE_DELIVERY_RNG)
    rng.random()  # the number that decides whether the seed draws this kind
    rates = {FaultKind.REQUEST_LOST: 0.1, FaultKind.ANSWER_LOST: 0.02}
    return replace(
        options,
        cluster=replace(options.cluster, transaction_version=1),  # v2 refuses what is late
        rates={**options.rates, **rates},
        offsets_rate=rng.choice((0.3, 0.8)),
        is_late_delivery_on=True,
        is_late_delivery_frequent=True,
    )


def _share(options: SimOptions) -> SimOptions:
    """Share the transactions of a run: a producer leases them, and others write."""
    rng = _rng_for(options, "share")
    rng.random()  # the number that decides whether the seed draws this kind
    return replace(
        options,
        transactional_producers=rng.choice((1, 1, 2)),
        idempotent_producers=rng.choice((0, 1)),
        partition_count=rng.choice((1, 2, 3, 5)),
        is_shared=True,
    )


def _change(options: SimOptions) -> SimOptions:
    """Add changes of topics, of access and of calls to a run. Its other options stay the same."""
    rng = _rng_for(options, _CHANGE)
    rng.random()  # the number that decides whether the seed draws this kind
    factors = (0.3, 1.0, 3.0)
    rates, intervals_ms = dict(options.rates), dict(options.intervals_ms)
    for kind, usual in CHANGING_RATES.items():
        if rng.random() < _CHANGE_RATE:
            rates[kind] = usual * rng.choice(factors)
    for kind, usual_ms in CHANGING_INTERVALS_MS.items():
        if rng.random() < _CHANGE_RATE:
            intervals_ms[kind] = int(usual_ms * rng.choice(factors))
    cluster = options.cluster
    if FaultKind.TOPIC_RECREATED in intervals_ms:
        # A broker with stale metadata would report forever that an existing topic cannot be
        # created.
        cluster = replace(cluster, missing_topic=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return replace(options, cluster=cluster, rates=rates, intervals_ms=intervals_ms)


def _interrupt(options: SimOptions) -> SimOptions:
    """Raise exceptions at inner calls in a run. Its other options stay the same."""
    options = _draw_shape(options)
    rates = {**options.rates, FaultKind.INTERRUPTED: _INTERRUPTED_RATE}
    return replace(options, rates=rates, is_interrupted_inside=True)


_MAKERS = {
    RunKind.MANY_BATCHES: _send_many_batches,
    RunKind.STALLED_LEADERS: _stall_leaders,
    RunKind.LATE_DELIVERY: _deliver_late,
    RunKind.SHARED: _share,
    RunKind.CHANGING: _change,
    RunKind.INTERRUPTED: _interrupt,
}


def _draw_cluster(rng: random.Random, *, is_v2: bool, can_bump: bool) -> ClusterOptions:
    node_count = rng.choice((1, 2, 3))
    is_before_4 = not is_v2 and rng.random() < 0.4
    may_be_upgraded = not is_v2 and not is_before_4  # Kafka 3.9 has no transactions v2
    return ClusterOptions(
        node_count=node_count,
        is_before_4=is_before_4,
        old_node_count=rng.choice((0, 0, 1, node_count)) if may_be_upgraded else 0,
        transaction_version=2 if is_v2 else 1,
        coordinator_count=rng.choice((1, 3)),
        abort_check_interval_ms=rng.choice((100, 1000)),
        transactional_id_expiration_ms=rng.choice((None, None, None, 5000)),
        max_marker_delay_ms=rng.choice((0, 3, 30, 300)),
        max_metadata_delay_ms=rng.choice((0, 20, 500)),
        loading_ms=rng.choice((0, 50, 500)),
        max_message_bytes=rng.choice((1_048_588, 1_048_588, 1_048_588, 700)),
        init_producer_id_version=5 if can_bump else 2,
        missing_topic=rng.choice(_OF_A_MISSING_TOPIC),
        log_append_time=frozenset(rng.choice(((), (), (COMPACTED_TOPIC,)))),
    )


def _draw_rates(rng: random.Random) -> dict[FaultKind, float]:
    rates = {}
    for kind, usual in {**NETWORK_RATES, **BROKER_RATES}.items():
        if rng.random() < 0.35:  # a third of the kinds: all would hide the rare ones
            rates[kind] = usual * rng.choice((0.3, 1.0, 3.0))
    return rates


def _draw_intervals(rng: random.Random, cluster: ClusterOptions) -> dict[FaultKind, int]:
    intervals_ms = {}
    for kind, usual_ms in EVENT_INTERVALS_MS.items():
        if rng.random() < 0.3:
            intervals_ms[kind] = int(usual_ms * rng.choice((0.5, 1.0, 3.0)))
    is_v2 = cluster.transaction_version > 1
    if is_v2 or cluster.is_before_2_5 or cluster.is_before_4:
        intervals_ms.pop(FaultKind.UPGRADED, None)  # drawn before, so that later draws stay
    return intervals_ms


def _draw_later_rates(seed: int) -> dict[FaultKind, float]:
    rates = {}
    for kind, usual in LATER_RATES.items():
        rng = random.Random(f"options {seed} {kind}")  # noqa: S311 - seeded on purpose
        if rng.random() < 0.1:
            rates[kind] = usual * rng.choice((0.3, 1.0, 3.0))
    return rates


def _draw_later_intervals(seed: int) -> dict[FaultKind, int]:
    intervals_ms = {}
    for kind, usual_ms in LATER_INTERVALS_MS.items():
        rng = random.Random(f"options {seed} {kind}")  # noqa: S311 - seeded on purpose
        if rng.random() < 0.15:
            intervals_ms[kind] = int(usual_ms * rng.choice((0.5, 1.0, 3.0)))
    return intervals_ms


def _draw_row_rate(seed: int) -> float:
    rng = random.Random(f"options {seed} rows")  # noqa: S311 - seeded on purpose
    return rng.choice(_ROW_RATES) if rng.random() < _ROWS_RATE else 0.0


def _draw_settings(rng: random.Random) -> dict[str, Any]:
    request_timeout_ms = rng.choice((300, 1000, 5000))
    linger_ms = rng.choice((0, 0, 5, 20))
    batch_size = rng.choice((150, 500, 16384))
    return {
        "request_timeout_ms": request_timeout_ms,
        "linger_ms": linger_ms,
        "delivery_timeout_ms": request_timeout_ms + linger_ms + rng.choice((0, 2000, 20_000)),
        "max_block_ms": rng.choice((500, 3000, 20_000)),
        "transaction_timeout_ms": rng.choice((1500, 10_000, 60_000)),
        "retry_backoff_ms": rng.choice((5, 20, 100)),
        "retry_backoff_max_ms": 400,
        "batch_size": batch_size,
        "metadata_max_idle_ms": rng.choice((5_000, 300_000)),
        "buffer_memory": rng.choice((4 * batch_size, 20 * batch_size, 1 << 22)),  # often a wait
        "max_in_flight_requests_per_connection": rng.choice((1, 2, 5, 5)),  # 5 is the default
        "partitioner_ignore_keys": rng.random() < 0.1,
        "partitioner_adaptive_partitioning_enable": rng.random() < 0.7,
        "partitioner_availability_timeout_ms": rng.choice((0, 0, 200)),
        "metadata_max_age_ms": rng.choice((300_000, 1000)),
        "max_request_size": rng.choice((1_048_576, 2000)),
        "compression_type": rng.choice(("none", "none", "none", "gzip")),
        "retries": rng.choice((2**31 - 1, 2**31 - 1, 2**31 - 1, 3)),
    }


# The settings of a calm producer: all remaining faults end long before.
TIME_ENOUGH: Final = MappingProxyType(
    {
        "delivery_timeout_ms": LONGEST_DELIVERY_MS,
        "max_block_ms": 20_000,
        "transaction_timeout_ms": 60_000,
        "retries": 2**31 - 1,
    }
)
