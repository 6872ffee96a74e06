"""The negotiated API versions and the finalized features of a broker, as plain values.

Owns: `ApiVersionRange`, `NodeApiVersions`, `FinalizedFeatures`. Must not know: how they are
requested, or what follows from them. The core decides that: a feature decides the transaction
version, never the API versions alone (KIP-890).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from txnproducer._protocol.messages import ApiKey

TRANSACTION_VERSION_FEATURE = "transaction.version"


class ApiVersionRange(NamedTuple):
    """The versions of one API that a broker offers, both ends included."""

    min_version: int
    max_version: int


@dataclass(frozen=True, slots=True)
class NodeApiVersions:
    """The API versions that one broker offered in its handshake."""

    ranges: Mapping[ApiKey, ApiVersionRange] = field(default_factory=lambda: MappingProxyType({}))

    def max_version(self, api_key: ApiKey) -> int | None:
        """Return the newest version of an API that the broker offers, or None."""
        offered = self.ranges.get(api_key)
        return None if offered is None else offered.max_version


@dataclass(frozen=True, slots=True)
class FinalizedFeatures:
    """The cluster's finalized features and the epoch that orders two readings (KIP-584).

    `epoch` is -1 if the broker sent none (before 3.x, or before it has heard from the controller).
    """

    epoch: int = -1
    # A factory, since before Python 3.12 a dataclass takes a mapping proxy for a mutable default.
    levels: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def transaction_version(self) -> int:
        """The finalized `transaction.version`: 2 turns transactions v2 on, absent counts as 0."""
        return self.levels.get(TRANSACTION_VERSION_FEATURE, 0)
