"""What a seed draws: the cluster, the producers, their settings, the faults of this run.

Why it exists: the swarm (Groce et al., "Swarm Testing", ISSTA 2012): a run with a few kinds of
faults, at high rates, finds what a run with all of them at once drowns.
Owns: `SimOptions` and how it is drawn. Every number here is a range that the producer promises to
work in.
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
# Of all seeds; of those that are crowded; of those that are not.
_CROWDED_RATE = 1 / 8
_DEAF_RATE = 1 / 4
_HAUNTED_RATE = 1 / 8
# Of those that are neither.
_SHARED_RATE = 1 / 12
# Of all seeds, whatever else they are; and each kind of change in them.
_CHANGING_RATE = 1 / 5
_CHANGE_RATE = 0.4
# Of the calls of a run that is interrupted at inner calls.
_INTERRUPTED_RATE = 0.1
# Chosen so that the seeds that catch mutants run as they did before there were changes.
_CHANGE = "change 14853"
# Of all seeds, those whose applications send many records by one call, and how often.
_ROWS_RATE = 1 / 4
_ROW_RATES = (0.1, 0.5)
# A request of a dead connection arrives no later than this after its end.
LATEST_MS = 30_000
# What a producer is set to once all is well.
LONGEST_DELIVERY_MS = 30_000


class RunKind(StrEnum):
    """What some of the runs are, and any seed's run can be made; the value is its name."""

    CROWDED = "crowded"
    DEAF = "deaf"
    HAUNTED = "haunted"
    SHARED = "shared"
    CHANGING = "changing"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class SimOptions:
    """One run's options; printed with a failing seed.

    Attributes:
        seed: draws the rest.
        cluster: what the brokers are like.
        transactional_producers: how many transactional ids.
        idempotent_producers: how many producers without one.
        plain_producers: how many without idempotence.
        partition_count: of each topic.
        requests: the run's producers go on until so many were sent, and `MIN_TRANSACTIONS` made.
        rates: per request and per write.
        intervals_ms: between events of a kind, on average.
        settings: of every producer.
        abort_rate: how many transactions the application aborts.
        offsets_rate: how many carry a group's offsets.
        burst: by how much likelier trouble on the network is right after some.
        impatience: how many of their calls applications interrupt.
        is_late_delivery_on: whether requests of dead connections may arrive.
        initial_epoch: of transactional ids (near their end, in some runs).
        network_ms: the longest usual way to a broker, and back.
        is_crowded: whether applications send much at once, in batches as small as can be.
        is_deaf: crowded, and whether leaders move while those before them do not answer.
        is_haunted: whether many connections die, and each of their requests arrives soon after.
        row_rate: how many of the calls that send take many records.
        is_shared: whether transactions are leased, and written by several processes.
        is_interrupted_inside: whether exceptions come at the core's inner calls. No seed draws it;
            see `interrupts.py`.
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
    is_crowded: bool = False
    is_deaf: bool = False
    is_haunted: bool = False
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
        """Draw a run.

        Args:
            seed: draws it.
            kind: make it of this kind; the seed draws that, too, if it is None.
        """
        rng = random.Random(f"options {seed}")  # noqa: S311 - seeded on purpose
        is_v2 = rng.random() < 0.5
        can_bump = is_v2 or rng.random() < 0.85
        settings = _draw_settings(rng)
        # A partition that forgets producers while their retries, or late copies of these, are on
        # their way can't tell a duplicate: `producer.id.expiration.ms` has to be longer than that.
        forgets = rng.random() < (0.2 if can_bump else 0.6)
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
            initial_epoch=rng.choice((-1, -1, -1, 32750, 32764)) if can_bump else -1,
            network_ms=rng.choice((1, 5, 50)),
            row_rate=_draw_row_rate(seed),
        )
        return _draw_kind(options) if kind is None else _MAKERS[kind](options)


def _draw_kind(options: SimOptions) -> SimOptions:
    options = _draw_shape(options)
    return _change(options) if _is_drawn(options, _CHANGE, _CHANGING_RATE) else options


def _draw_shape(options: SimOptions) -> SimOptions:
    if _is_drawn(options, "crowd", _CROWDED_RATE):
        is_deaf = _is_drawn(options, "deaf", _DEAF_RATE)
        return _deafen(options) if is_deaf else _crowd(options)
    if _is_drawn(options, "haunt", _HAUNTED_RATE):
        return _haunt(options)
    return _share(options) if _is_drawn(options, "share", _SHARED_RATE) else options


def _is_drawn(options: SimOptions, kind: str, rate: float) -> bool:
    return _rng_for(options, kind).random() < rate


def _rng_for(options: SimOptions, kind: str) -> random.Random:
    return random.Random(f"options {options.seed} {kind}")  # noqa: S311 - seeded on purpose


def _crowd(options: SimOptions) -> SimOptions:
    """Crowd a run: many batches of one partition on their way, and trouble with some.

    What goes wrong around a batch in the middle of others is rare otherwise: one is refused, or
    split, or out of time, while those behind it are on the wire or wait with a number.
    """
    rng = _rng_for(options, "crowd")
    rng.random()  # whether the seed crowds by itself
    settings = {
        "batch_size": 150,
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
        partition_count=1,
        abort_rate=rng.choice((0.0, 0.5)),
        network_ms=rng.choice((5, 50)),
        intervals_ms={**options.intervals_ms, **drawn},
        is_crowded=True,
    )


def _deafen(options: SimOptions) -> SimOptions:
    """Crowd a run in which leaders move, and those before them have written and do not answer.

    More batches of a partition than one connection takes can then be on their way.
    """
    options = _crowd(options)
    return replace(
        options,
        cluster=replace(options.cluster, node_count=3, max_metadata_delay_ms=0),
        settings={**options.settings, "request_timeout_ms": 1000, "metadata_max_age_ms": 100}
        | {"delivery_timeout_ms": 21_000, "transaction_timeout_ms": 60_000},
        rates={FaultKind.STALLED: 0.03},
        intervals_ms={FaultKind.LEADER_MOVED: 300},
        is_deaf=True,
    )


def _haunt(options: SimOptions) -> SimOptions:
    """Haunt a run: requests of dead connections, while the next transaction is made.

    The harm that they would do, if nothing guarded against it, is rare otherwise: a request of one
    kind has to fall between two certain ones of a later transaction. With transactions v2 it does
    none.
    """
    rng = _rng_for(options, "haunt")
    rng.random()  # whether the seed haunts by itself
    rates = {FaultKind.REQUEST_LOST: 0.1, FaultKind.ANSWER_LOST: 0.02}
    return replace(
        options,
        cluster=replace(options.cluster, transaction_version=1),
        rates={**options.rates, **rates},
        offsets_rate=rng.choice((0.3, 0.8)),
        is_late_delivery_on=True,
        is_haunted=True,
    )


def _share(options: SimOptions) -> SimOptions:
    """Share the transactions of a run: a producer leases them, and others write."""
    rng = _rng_for(options, "share")
    rng.random()  # whether the seed shares by itself
    return replace(
        options,
        transactional_producers=rng.choice((1, 1, 2)),
        idempotent_producers=rng.choice((0, 1)),
        partition_count=rng.choice((1, 2, 3, 5)),
        is_shared=True,
    )


def _change(options: SimOptions) -> SimOptions:
    """Let topics, brokers' refusals and calls change in a run: what else it draws stays."""
    rng = _rng_for(options, _CHANGE)
    rng.random()  # whether the seed changes by itself
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
        # A broker with stale metadata would say for good that a topic that exists can't be made.
        cluster = replace(cluster, missing_topic=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return replace(options, cluster=cluster, rates=rates, intervals_ms=intervals_ms)


def _interrupt(options: SimOptions) -> SimOptions:
    """Let exceptions come at inner calls in a run: what else it draws stays."""
    options = _draw_shape(options)
    rates = {**options.rates, FaultKind.INTERRUPTED: _INTERRUPTED_RATE}
    return replace(options, rates=rates, is_interrupted_inside=True)


_MAKERS = {
    RunKind.CROWDED: _crowd,
    RunKind.DEAF: _deafen,
    RunKind.HAUNTED: _haunt,
    RunKind.SHARED: _share,
    RunKind.CHANGING: _change,
    RunKind.INTERRUPTED: _interrupt,
}


def _draw_cluster(rng: random.Random, *, is_v2: bool, can_bump: bool) -> ClusterOptions:
    node_count = rng.choice((1, 2, 3))
    is_before_4 = not is_v2 and rng.random() < 0.4
    may_be_upgraded = not is_v2 and not is_before_4
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
        if rng.random() < 0.35:
            rates[kind] = usual * rng.choice((0.3, 1.0, 3.0))
    return rates


def _draw_intervals(rng: random.Random, cluster: ClusterOptions) -> dict[FaultKind, int]:
    intervals_ms = {}
    for kind, usual_ms in EVENT_INTERVALS_MS.items():
        if rng.random() < 0.3:
            intervals_ms[kind] = int(usual_ms * rng.choice((0.5, 1.0, 3.0)))
    is_v2 = cluster.transaction_version > 1
    if is_v2 or cluster.is_before_2_5 or cluster.is_before_4:
        intervals_ms.pop(FaultKind.UPGRADED, None)
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
        "buffer_memory": rng.choice((4 * batch_size, 20 * batch_size, 1 << 22)),
        "max_in_flight_requests_per_connection": rng.choice((1, 2, 5, 5)),
        "partitioner_ignore_keys": rng.random() < 0.1,
        "partitioner_adaptive_partitioning_enable": rng.random() < 0.7,
        "partitioner_availability_timeout_ms": rng.choice((0, 0, 200)),
        "metadata_max_age_ms": rng.choice((300_000, 1000)),
        "max_request_size": rng.choice((1_048_576, 2000)),
        "compression_type": rng.choice(("none", "none", "none", "gzip")),
        "retries": rng.choice((2**31 - 1, 2**31 - 1, 2**31 - 1, 3)),
    }


# What a calm producer is set to: all that goes wrong is over long before.
TIME_ENOUGH: Final = MappingProxyType(
    {
        "delivery_timeout_ms": LONGEST_DELIVERY_MS,
        "max_block_ms": 20_000,
        "transaction_timeout_ms": 60_000,
        "retries": 2**31 - 1,
    }
)
