"""The faults that a test has asked for: which request is refused, lost or answered late.

Owns: `Script`, `Fault`. Must not know: requests' contents, connections.

Rules:
* Faults of one API happen in the order in which they were asked for, one a request.
* A fault is used up by the request that meets it, no matter which client sends it. A request that
  the fault cannot affect passes it by, such as one for the metadata of no topic.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass
from enum import Enum, auto

from txnproducer._protocol.messages import ApiKey


class ScriptedFault(Enum):
    """The event that a request meets."""

    REFUSED = auto()  # answered with an error, and nothing has changed
    REQUEST_LOST = auto()  # the connection ends before the request is read
    ANSWER_LOST = auto()  # the request takes effect, and the connection ends without an answer
    SLOW = auto()  # the request takes effect at once, and its answer comes late


@dataclass(frozen=True, slots=True)
class Fault:
    """One event.

    Attributes:
        kind: the event.
        code: the error of a refusal.
        delay_ms: how late the answer comes.
    """

    kind: ScriptedFault
    code: int = 0
    delay_ms: int = 0


@dataclass(slots=True)
class _Repeated:
    """A fault that several requests in a row meet.

    Attributes:
        fault: the event.
        left: how many requests are still to meet it.
    """

    fault: Fault
    left: int


class Script:
    """The faults to come, by API."""

    def __init__(self) -> None:
        # Counted: a test may ask for more faults than memory has room for, to say "all requests".
        self._faults: defaultdict[ApiKey, deque[_Repeated]] = defaultdict(deque)

    def add(self, api: ApiKey, fault: Fault, times: int = 1) -> None:
        """Let the next requests of an API meet a fault.

        Args:
            api: of the requests.
            fault: one that each of them meets.
            times: how many requests.
        """
        self._faults[api].append(_Repeated(fault, times))

    def next_fault(self, api: ApiKey) -> Fault | None:
        """Return the fault that the present request of an API meets."""
        # Not taken away yet: whether the fault can affect the request shows when it is answered.
        faults = self._faults.get(api)
        return faults[0].fault if faults else None

    def use_up(self, api: ApiKey) -> None:
        """Take the fault away that `next_fault` returned: the request has met it."""
        faults = self._faults[api]
        faults[0].left -= 1
        if not faults[0].left:
            faults.popleft()

    def remaining(self) -> dict[ApiKey, int]:
        """Return how many faults have met no request so far, by API."""
        return {
            api: sum(each.left for each in faults)
            for api, faults in self._faults.items()
            if faults
        }

    def clear(self) -> None:
        """Forget all faults to come."""
        self._faults.clear()
