"""A pool whose id is taken by a newer producer: its settings, and the refusal."""

from __future__ import annotations

from typing import Any

ID = "svc-0-0"
# The retries take so long that a newer producer can come between two of them.
SETTINGS: dict[str, Any] = {
    "linger_ms": 0,
    "max_block_ms": 5_000,
    "retry_backoff_ms": 300,
    "reconnect_backoff_ms": 300,
}
REFUSAL = "another producer has taken this id, or may have.* Give each process a worker of its own"
