"""The faults that a test asks for: the names of APIs, and the warning about those that are left.

Why it exists: a fault that no request meets would pass in silence, and with it a test that has
tried nothing.
Owns: the names, the calls that have asked for faults, the text of the warning. Must not know: the
server that plays the faults.

Rule: a call is warned about if none of its faults has met a request. "The next 10,000 requests" is
how a test says "all of them", and some are always left.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Final

from txnproducer._protocol.messages import ApiKey

from ._arguments import text

_APIS: Final[Mapping[str, ApiKey]] = {
    "".join(word.capitalize() for word in api.name.split("_")): api
    for api in ApiKey
    if api is not ApiKey.API_VERSIONS
}
_NAMES: Final = {api: name for name, api in _APIS.items()}
# With transactions v2 (KIP-890) Produce and TxnOffsetCommit add what they write to.
_OF_V1: Final = frozenset({"AddPartitionsToTxn", "AddOffsetsToTxn"})


def api_of(name: object) -> ApiKey:
    """Return the API of a name in Kafka's protocol, as "EndTxn"."""
    # A misspelt name would meet no request, and the test would pass without its fault.
    if text("api", name) not in _APIS:
        raise ValueError(
            f"faults of {name!r} cannot be asked for: the API must be one of {', '.join(_APIS)}"
        )
    return _APIS[str(name)]


def by_name(remaining: Mapping[ApiKey, int]) -> dict[str, int]:
    """Return a number for each API by its name."""
    return {_NAMES[api]: count for api, count in remaining.items()}


class AskedFaults:
    """The calls that have asked for faults."""

    def __init__(self) -> None:
        # By API: for how many requests each call has asked.
        self._times: defaultdict[ApiKey, list[int]] = defaultdict(list)

    def add(self, api: ApiKey, times: int) -> None:
        """Note a call."""
        self._times[api].append(times)

    def clear(self) -> None:
        """Forget all calls."""
        self._times.clear()

    def unmet(self, remaining: Mapping[ApiKey, int]) -> dict[str, int]:
        """Return how many faults are left of calls of which no fault has met a request, by API.

        Args:
            remaining: how many faults have met no request, by API.
        """
        found = {}
        for api, left in remaining.items():
            count = 0
            # The faults of an API happen in their order, so those of the last calls are left.
            for times in reversed(self._times[api]):
                if count + times > left:
                    break
                count += times
            if count:
                found[_NAMES[api]] = count
        return found


def warning_text(unmet: Mapping[str, int], transaction_version: int) -> str:
    """Return the warning about faults that are left at the end of a cluster.

    Args:
        unmet: how many, by API.
        transaction_version: of the cluster.
    """
    left = ", ".join(f"{api}: {count}" for api, count in unmet.items())
    reason = "the code under test has sent no such request, or fewer of them"
    if transaction_version == 2 and not _OF_V1.isdisjoint(unmet):
        names = " or ".join(sorted(_OF_V1 & {*unmet}))
        reason = f"with transactions v2 no producer sends {names} (transaction_version=1 has it)"
    return (
        f"faults that met no request before this InMemoryKafka was closed ({left}): {reason}. If"
        " they are left on purpose, call clear_faults()"
    )
