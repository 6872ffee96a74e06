"""The trace of a run: one aligned line per event, with the same lines for the same seed.

Owns: `Trace`. Formatting costs more than the event itself, so callers check `is_on` first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from enum import Enum

from txnproducer._protocol.messages import ProducePartition
from txnproducer._record import read_header
from txnproducer.errors import ErrorCode
from txnproducer.records import TopicPartition


class Trace:
    """The lines of one run.

    Args:
        emit: takes each line; None for no trace.

    Attributes:
        is_on: whether lines are wanted.
    """

    __slots__ = ("_emit", "is_on")

    def __init__(self, emit: Callable[[str], None] | None) -> None:
        self._emit = emit
        self.is_on = emit is not None

    def add(self, now_ms: int, source: str, event: str) -> None:
        """Add a line."""
        if self._emit is not None:
            self._emit(f"{now_ms:>9}  {source:<12} {event}")


def show_message(body: object) -> str:
    """Return a short form of a message, without default values and with the headers of batches."""
    if isinstance(body, ProducePartition):
        # The header has the numbers by which a broker judges a batch. The records would fill the
        # line.
        header = read_header(body.records)
        return (
            f"{show_message(body.topic_partition)} {header.record_count} from"
            f" {header.base_sequence} by {header.producer_id}/{header.producer_epoch}"
        )
    if isinstance(body, TopicPartition):
        return f"{body.topic}-{body.partition}"
    if isinstance(body, tuple) and not hasattr(body, "_fields"):
        return "[" + ", ".join(show_message(part) for part in body) + "]"
    if isinstance(body, Enum):
        return body.name
    defaults = _defaults(body)
    if defaults is None:
        return repr(body)
    shown = [
        f"{name}={_show_field(name, getattr(body, name))}"
        for name, default in defaults
        if getattr(body, name) not in (default, None, ())
    ]
    return f"{type(body).__name__}({', '.join(shown)})"


def _defaults(body: object) -> list[tuple[str, object]] | None:
    """Return the names of a message's fields, with their defaults, or None for anything else."""
    names: tuple[str, ...] | None = getattr(body, "_fields", None)
    if names is not None:
        defaults: dict[str, object] = getattr(body, "_field_defaults", {})
        return [(name, defaults.get(name)) for name in names]
    return [(field.name, field.default) for field in fields(body)] if is_dataclass(body) else None


def _show_field(name: str, value: object) -> str:
    if name == "error_code" and isinstance(value, int):
        return ErrorCode(value).name
    return show_message(value)
