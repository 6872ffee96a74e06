"""What a cluster has names for: kinds of resources that access can be refused to, ids of topics.

Owns: `Resource`, `topic_id_of`.
"""

from __future__ import annotations

from enum import Enum, auto
from zlib import crc32


class Resource(Enum):
    """A kind of resource.

    The cluster's refusal is that of idempotent producers: of its IDEMPOTENT_WRITE, and of writing
    to any topic, either of which would be enough (KIP-679).
    """

    TOPIC = auto()
    GROUP = auto()
    TRANSACTIONAL_ID = auto()
    CLUSTER = auto()


def topic_id_of(name: str, generation: int = 0) -> bytes:
    """Return a topic's id: 16 bytes made of its name, and of how often it was deleted before."""
    return crc32(name.encode(), generation).to_bytes(16, "big")
