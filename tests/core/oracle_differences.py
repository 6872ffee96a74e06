"""Where this producer answers an error code otherwise than the Java client, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class SameAs:
    """The value that Java's outcome has in another field."""

    field: str


@dataclass(frozen=True)
class Difference:
    """One difference."""

    points: tuple[str, ...]
    ours: Mapping[str, Any]
    reason: str
    when: Mapping[str, Any] = field(default_factory=dict)
    codes: frozenset[str] | None = None
    modes: tuple[str, ...] = ("TV1", "TV1nb", "TV2", "-", "idem")

    def covers(self, table: str, code: str, java: Mapping[str, Any]) -> bool:
        """Tell whether an outcome is concerned."""
        point, mode = table.split("/")
        return (
            point in self.points
            and mode in self.modes
            and (self.codes is None or code in self.codes)
            and all(java.get(name) == value for name, value in self.when.items())
        )

    def own(self, java: Mapping[str, Any]) -> dict[str, Any]:
        return {
            name: java[value.field] if isinstance(value, SameAs) else value
            for name, value in self.ours.items()
        }


DIFFERENCES: tuple[Difference, ...] = ()
