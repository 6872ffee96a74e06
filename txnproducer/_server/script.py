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


class Script:
    """The faults to come, by API."""

    def __init__(self) -> None:
        self._faults: defaultdict[ApiKey, deque[Fault]] = defaultdict(deque)

    def add(self, api: ApiKey, fault: Fault, times: int = 1) -> None:
        """Let the next requests of an API meet a fault.

        Args:
            api: of the requests.
            fault: one that each of them meets.
            times: how many requests.
        """
        self._faults[api].extend([fault] * times)

    def next_fault(self, api: ApiKey) -> Fault | None:
        """Return the fault that the present request of an API meets."""
        # Not taken away yet: whether the fault can affect the request shows when it is answered.
        faults = self._faults.get(api)
        return faults[0] if faults else None

    def use_up(self, api: ApiKey) -> None:
        """Take the fault away that `next_fault` returned: the request has met it."""
        self._faults[api].popleft()

    def remaining(self) -> dict[ApiKey, int]:
        """Return how many faults have met no request so far, by API."""
        return {api: len(faults) for api, faults in self._faults.items() if faults}

    def clear(self) -> None:
        """Forget all faults to come."""
        self._faults.clear()
