"""The kinds of faults, their rates in one run, and how often each took effect.

Owns: `FaultKind`, `Faults`. A fault counts only when it changed something, because a drawn rate
proves nothing.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType


class FaultKind(StrEnum):
    """The kinds of faults. The value is the name in reports."""

    REQUEST_LOST = "request lost with its connection"
    ANSWER_LOST = "answer lost with its connection"
    REQUEST_LATE = "request of a dead connection delivered late"
    REQUEST_SLOW = "request slow"
    ANSWER_SLOW = "answer slow"
    STALLED = "no answer until the request timed out"
    UNREACHABLE = "broker unreachable for a client"
    THROTTLED = "client throttled"
    LEFT_OUT = "partition left out of an answer"
    LEADER_MOVED = "leader moved"
    COORDINATOR_MOVED = "transaction coordinator moved"
    GROUP_MOVED = "group coordinator moved"
    BROKER_CRASHED = "broker crashed"
    METADATA_STALE = "metadata stale"
    LOG_WRITE_LOST = "transaction log write refused"
    LOG_WRITE_LATE = "transaction log write refused, and kept"
    LOG_WRITE_BROKEN = "transaction coordinator broke while it wrote"
    APPEND_REFUSED = "append refused"
    APPEND_KEPT = "append refused, and kept"
    CLIENT_CRASHED = "client crashed"
    CLIENT_PAUSED = "client paused (its clock jumps)"
    ZOMBIE = "second producer under the same id"
    TRANSACTION_TIMED_OUT = "transaction timed out"
    MEMORY_EXHAUSTED = "buffer memory exhausted"
    ACCESS_REFUSED = "access refused"
    UPGRADED = "transaction version raised"
    ID_EXPIRED = "idle transactional id forgotten"
    PRODUCER_FORGOTTEN = "idle producer forgotten by a partition"
    EPOCHS_EXHAUSTED = "epochs exhausted"
    MEMBER_FENCED = "consumer group moved on"
    LOGIN_REFUSED = "login refused"
    ACCESS_BLINKED = "access to a topic refused for a moment"
    LIMIT_LOWERED = "size limit of batches lowered for a while"
    BATCH_TOO_LARGE = "batch refused as too large"
    RECORD_INVALID = "record refused as invalid"
    NOT_SENT = "request refused by the client's own network"
    CALLED_ABORTABLE = "transaction called abortable by a coordinator"
    LOGIN_REFUSED_BY_ONE = "login refused by one of several brokers"
    TOPIC_RECREATED = "topic deleted and made again"
    PARTITIONS_ADDED = "partitions added to a topic"
    INTERRUPTED = "call interrupted by an exception"
    COORDINATOR_RESIGNED = "transaction coordinator resigned before it completed a transaction"


# Per request, in a run with the kind on.
NETWORK_RATES: Mapping[FaultKind, float] = MappingProxyType(
    {
        FaultKind.REQUEST_LOST: 0.02,
        FaultKind.ANSWER_LOST: 0.02,
        FaultKind.STALLED: 0.01,
        FaultKind.REQUEST_SLOW: 0.03,
        FaultKind.ANSWER_SLOW: 0.03,
        FaultKind.THROTTLED: 0.02,
        FaultKind.LEFT_OUT: 0.01,
    }
)
# Likewise, but drawn by an rng of its own, as are those below.
LATER_RATES: Mapping[FaultKind, float] = MappingProxyType(
    {
        FaultKind.NOT_SENT: 0.01,
        FaultKind.COORDINATOR_RESIGNED: 0.05,
    }
)
# Per request or call, in a run of the kind `changing`.
CHANGING_RATES: Mapping[FaultKind, float] = MappingProxyType(
    {
        FaultKind.CALLED_ABORTABLE: 0.03,
        FaultKind.INTERRUPTED: 0.02,
    }
)
# Per write, in a run with the kind on.
BROKER_RATES: Mapping[FaultKind, float] = MappingProxyType(
    {
        FaultKind.LOG_WRITE_LOST: 0.03,
        FaultKind.LOG_WRITE_LATE: 0.05,
        FaultKind.LOG_WRITE_BROKEN: 0.01,
        FaultKind.APPEND_REFUSED: 0.04,
        FaultKind.APPEND_KEPT: 0.04,
    }
)
# The mean time between two events, in a run with the kind on.
EVENT_INTERVALS_MS: Mapping[FaultKind, int] = MappingProxyType(
    {
        FaultKind.UNREACHABLE: 3000,
        FaultKind.LEADER_MOVED: 1500,
        FaultKind.COORDINATOR_MOVED: 2000,
        FaultKind.GROUP_MOVED: 2000,
        FaultKind.BROKER_CRASHED: 6000,
        FaultKind.CLIENT_CRASHED: 3000,
        FaultKind.CLIENT_PAUSED: 3000,
        FaultKind.ZOMBIE: 4000,
        FaultKind.ACCESS_REFUSED: 4000,
        FaultKind.UPGRADED: 4000,
        FaultKind.MEMBER_FENCED: 6000,
        FaultKind.LOGIN_REFUSED: 9000,
    }
)
# Likewise, but each is drawn by an rng of its own. So runs without the kind stay the same as
# before the kind was added, and the kept seeds with them.
LATER_INTERVALS_MS: Mapping[FaultKind, int] = MappingProxyType(
    {
        FaultKind.ACCESS_BLINKED: 150,
        FaultKind.LIMIT_LOWERED: 800,
    }
)
# Likewise, in a run of the kind `changing`.
CHANGING_INTERVALS_MS: Mapping[FaultKind, int] = MappingProxyType(
    {
        FaultKind.LOGIN_REFUSED_BY_ONE: 2500,
        FaultKind.TOPIC_RECREATED: 2500,
        FaultKind.PARTITIONS_ADDED: 3000,
    }
)
_BURST_REQUESTS = 5
# After the faults end: the rate per request, and the largest number.
_MILD_RATE = 0.02
_MOST_MILD = 6
_MILD = (FaultKind.REQUEST_LOST, FaultKind.ANSWER_LOST, FaultKind.LEFT_OUT)
# Short calls may also wait for a few stalled requests.
_LONGEST_MILD_STALL_MS = 1000


class Faults:
    """The faults of one run.

    Args:
        rates: the rates per request and per write, without the kinds that are off.
        rng: draws the faults.
        later_rng: draws the kinds that were added later.
        burst: the factor by which a network fault makes others likelier for the next few requests.
        request_timeout_ms: how long a request waits for its answer.

    Attributes:
        counts: how often each kind took effect.
        openings_kept: by id, how many refused writes to the transaction log may be kept that begin
            or continue a transaction.
        is_healed: set when the liveness phase begins. From then on only a few connections fail,
            and leaders and coordinators move. No producer may fail over that.
    """

    def __init__(
        self,
        rates: Mapping[FaultKind, float],
        rng: random.Random,
        later_rng: random.Random,
        burst: float = 1.0,
        request_timeout_ms: int = _LONGEST_MILD_STALL_MS,
    ) -> None:
        self.counts: Counter[FaultKind] = Counter()
        self.is_healed = False
        self._rng = rng
        self._later_rng = later_rng
        self._rates = dict(rates)
        thresholds: list[tuple[float, FaultKind]] = []
        total = 0.0
        # One draw decides between all kinds, so a request has at most one fault.
        for kind in NETWORK_RATES:
            if kind in rates:
                total += rates[kind]
                thresholds.append((total, kind))
        self.openings_kept: Counter[str] = Counter()
        self._thresholds = thresholds
        self._total = total
        self._mild_left = _MOST_MILD
        # A stalled request takes its whole time-out, which a longer one would cost several times.
        can_stall = request_timeout_ms <= _LONGEST_MILD_STALL_MS
        self._mild = (*_MILD, FaultKind.STALLED) if can_stall else _MILD
        self._burst = burst
        self._burst_left = 0

    def is_sent(self) -> bool:
        """Draw whether the client's network takes a request."""
        if self.is_healed or not self.happens_later(FaultKind.NOT_SENT):
            return True
        self.counts[FaultKind.NOT_SENT] += 1
        return False

    def happens_later(self, kind: FaultKind) -> bool:
        """Draw whether a fault of `LATER_RATES` happens. The caller counts those that do."""
        rate = self._rates.get(kind)
        return rate is not None and self._later_rng.random() < rate

    def network_fate(self) -> FaultKind | None:
        """Draw the fault of one request, or None."""
        if self.is_healed:
            return self._mild_fate()
        drawn = self._rng.random()
        is_burst = self._burst_left > 0
        if is_burst:
            self._burst_left -= 1
            # A smaller number falls below more thresholds: within a burst every kind is likelier.
            drawn /= self._burst
        if drawn >= self._total:
            return None
        if not is_burst:  # a burst must not prolong itself
            self._burst_left = _BURST_REQUESTS
        for threshold, kind in self._thresholds:
            if drawn < threshold:
                return kind
        return None

    def _mild_fate(self) -> FaultKind | None:
        if not self._mild_left or self._rng.random() >= _MILD_RATE:
            return None
        self._mild_left -= 1
        return self._rng.choice(self._mild)

    def happens(self, kind: FaultKind) -> bool:
        """Draw whether a fault occurs, and count it if it does."""
        rate = self._rates.get(kind)
        if rate is None or self.is_healed or self._rng.random() >= rate:
            return False
        self.counts[kind] += 1
        return True
