"""The checks of the arguments that a Kafka in memory and a real one share.

Why it exists: a test that is moved from one to the other meets the same refusals.
Owns: one function for each kind of argument. Must not know: clusters.
"""

from __future__ import annotations

from typing import Final

_ISOLATIONS: Final = ("read_committed", "read_uncommitted")


def text(name: str, value: object) -> str:
    """Return an argument that is a str."""
    if not isinstance(value, str):
        raise TypeError(f"{name} is {value!r}: it must be a str")
    return value


def is_committed(isolation: object) -> bool:
    """Return whether an isolation leaves out records that are not committed."""
    if isolation not in _ISOLATIONS:
        raise ValueError(f"isolation is {isolation!r}: it must be {' or '.join(_ISOLATIONS)}")
    return isolation == "read_committed"


def unused_id(transactional_id: str) -> ValueError:
    """Return the refusal of a transactional id that no producer has used."""
    return ValueError(
        f"no producer has used the transactional id {transactional_id!r}: correct the id, or call"
        " init_transactions() of its producer first"
    )
