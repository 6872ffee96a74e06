"""Events of the sink, told to a hook of the user's: what the demo and fault tests strike at.

Owns: the hook's type, and how it is called. Must not know: who listens, what an event means.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

OnEvent: TypeAlias = Callable[[str, dict[str, Any]], None]


def tell(
    on_event: OnEvent | None, name: str, batch_id: int, rows: int, partition: int | None = None
) -> None:
    """Tell the hook, if there is one, of an event; those of the driver have no partition."""
    if on_event is None:
        return
    info = {"batch_id": batch_id, "rows": rows}
    on_event(name, info if partition is None else {**info, "partition": partition})
