"""The entry of a ledger: a durable format that outlives this program.

Owns: `LedgerState` and its texts. Must not know: where an entry is stored, which one follows.

The number of an entry counts the advances. The rest is compact JSON, and `v` is its format. In
offsets the number is the offset, and the JSON its metadata.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import Any, Final

from txnproducer.ledger.errors import LedgerError

# Goes up with a change that an older version must not ignore: that version refuses the entry.
_FORMAT: Final = 1
MOST_POSITION_BYTES: Final = 3500
# The default of the broker's offset.metadata.max.bytes.
_MOST_BYTES: Final = 4096
# All that reading a text of another program, or a damaged one, may raise.
_UNREADABLE: Final = (ValueError, LookupError, TypeError, AttributeError, RecursionError)


@dataclass(frozen=True)
class LedgerState:
    """A ledger as one transaction has left it.

    Attributes:
        position: the last one that was committed; None if there is none yet.
        advances: how many were committed.
        transactional_id: of the producer that the ledger belongs to.
        at_ms: when the entry was written, in milliseconds since the epoch, by the writer's clock.
    """

    position: Any
    advances: int
    transactional_id: str
    # Not compared: it is shown to people.
    at_ms: int = field(default=0, compare=False)

    def moved_to(self, position: Any) -> LedgerState:
        """Return the state after an advance.

        Raises:
            ValueError: the position is no JSON, None, or too long.
        """
        return LedgerState(
            checked("position", position), self.advances + 1, self.transactional_id, now_ms()
        )

    def metadata(self) -> str:
        """Return all but the number, as a text.

        Raises:
            LedgerError: the transactional id is too long.
        """
        text = _json(self._fields())
        if len(text.encode()) > _MOST_BYTES:
            raise LedgerError(
                f"transactional_id={self.transactional_id!r:.60} is too long for a ledger: an"
                f" entry takes at most {_MOST_BYTES} bytes. Way out: a shorter transactional_id"
            )
        return text

    def value(self) -> bytes:
        """Return all of it, as the value of a record."""
        return _json({"number": self.advances, **self._fields()}).encode()

    def _fields(self) -> dict[str, Any]:
        return {
            "v": _FORMAT,
            "id": self.transactional_id,
            "at": self.at_ms,
            "position": self.position,
        }

    @classmethod
    def parse(cls, place: str, text: str | bytes, number: int | None = None) -> LedgerState:
        """Read an entry.

        Args:
            place: of the entry, for errors.
            text: of the entry.
            number: how many advances were committed; None if the text has it.

        Raises:
            LedgerError: it is something else, or a newer version of this package wrote it.
        """
        try:
            fields = json.loads(text)
            version = fields["v"]
            if version == _FORMAT:
                count = int(fields["number"]) if number is None else number
                return cls(fields["position"], count, str(fields["id"]), int(fields["at"]))
        except _UNREADABLE as error:
            raise LedgerError(
                f"{place} does not hold a ledger's entry ({type(error).__name__}: {error}). The "
                f"text is {text!r:.300}. Only its program writes a ledger. Way out: another "
                "name, or another topic, for this ledger"
            ) from error
        raise LedgerError(
            f"{place} has a ledger's entry of format {version!r:.50}; this version reads format "
            f"{_FORMAT}: use the version that wrote it, or a newer one"
        )


def checked(name: str, position: Any) -> Any:
    """Return a position as it will be read: JSON has no tuples, for example.

    Raises:
        ValueError: it is no JSON, None, or longer than 3,500 bytes as JSON in UTF-8.
    """
    if position is None:
        raise ValueError(f"{name}=None: None means that there is no position yet")
    text = text_of(name, position)
    if len(text.encode()) > MOST_POSITION_BYTES:
        raise ValueError(
            f"{name}={text!r:.60} has {len(text.encode())} bytes as JSON: a ledger takes at most"
            f" {MOST_POSITION_BYTES}. Way out: a key of it, or a digest, in its place"
        )
    return json.loads(text)


def text_of(name: str, position: Any) -> str:
    """Return a position as JSON, in one form for equal positions.

    Raises:
        ValueError: it is no JSON.
    """
    try:
        return _json(position)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(
            f"{name}={position!r:.60} is no JSON ({error}): use numbers, texts, lists and dicts"
        ) from error


def _json(value: Any) -> str:
    return json.dumps(
        value, separators=(",", ":"), sort_keys=True, allow_nan=False, ensure_ascii=False
    )


def now_ms() -> int:
    """Return the wall clock's time: another process, perhaps weeks later, shows an entry's age."""
    return int(time.time() * 1000)
