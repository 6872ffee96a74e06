"""Named resources of a cluster: the kinds to which access can be refused, and ids of topics.

Owns: `Resource`, `topic_id_of`.
"""

from __future__ import annotations

from enum import Enum, auto
from zlib import crc32


class Resource(Enum):
    """A kind of resource.

    The refusal of the cluster stands for that of idempotent writes: neither IDEMPOTENT_WRITE nor
    writing to any topic is allowed, each of which would be enough (KIP-679).
    """

    TOPIC = auto()
    GROUP = auto()
    TRANSACTIONAL_ID = auto()
    CLUSTER = auto()


def topic_id_of(name: str, generation: int = 0) -> bytes:
    """Return a topic's id: 16 bytes made of its name and of how often it was deleted before."""
    return crc32(name.encode(), generation).to_bytes(16, "big")
