"""The reason why no address of a cluster can be reached.

Why it exists: kafka-python tries again after every failure to connect until its time is over, and
does not say which failure it was.
Owns: one short attempt to connect to each address. Must not know: Kafka's protocol.
"""

from __future__ import annotations

import socket
from typing import Final

from txnproducer.config._values import parse_address
from txnproducer.errors import InvalidConfigurationError

__all__ = ["why_unreachable"]

_ATTEMPT_S: Final = 1.0
_MOST_TRIED: Final = 3  # of the addresses, since each may take the whole attempt


def why_unreachable(bootstrap_servers: str) -> str:
    """Return the reason for each address, or nothing if one of them accepts connections."""
    reasons = []
    for address in bootstrap_servers.split(",")[:_MOST_TRIED]:
        try:
            socket.create_connection(parse_address(address), _ATTEMPT_S).close()
        except (OSError, InvalidConfigurationError) as error:
            reasons.append(f"cannot connect to {address.strip()} ({error})")
        else:
            return ""
    return "; ".join(reasons)
