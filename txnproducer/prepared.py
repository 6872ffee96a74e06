"""The values of two-phase commit: the token of a prepared transaction, and a stored decision.

Why it exists: another system, mostly a database, keeps the token, and a process that was not there
ends the transaction by it.
Owns: the token's fields and its text. Must not know: how a transaction is prepared or completed.
Rules:
* The text is stable: every later release reads the texts of earlier ones. It holds no secret.
* A text that was cut, as by a column that is too short, is refused: it ends with a checksum.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeAlias
from urllib.parse import quote, unquote

from txnproducer.records import ProducerIdAndEpoch, TopicPartition, TransactionLease

__all__ = ["Completion", "PreparedTransaction", "Recover", "StoredDecision"]

Completion: TypeAlias = Literal["committed", "aborted", "lost", "unknown"]

_FORMAT: Final = "v1"
# Between the fields. Names are quoted, so that none of them contains it.
_SEPARATOR: Final = ":"
_FIELDS: Final = 9
_GROUP: Final = "__txn.{}"


@dataclass(frozen=True, slots=True)
class PreparedTransaction:
    """The token of a prepared transaction: any process that has it can end the transaction.

    Store `str(token)` in the other system, in the transaction that decides. It has less than 400
    characters with names of usual lengths.

    Attributes:
        transactional_id: the id of the producer that has prepared it.
        producer: its producer id and epoch.
        transaction_version: of the transaction protocol: 1, or 2 (KIP-890).
        cluster_id: the id of its cluster.
        place: a partition of the transaction, under whose name its entry is kept.
        number: of the entry. It grows from one prepared transaction of the id to the next.
        deadline_ms: when the coordinator aborts the transaction, by this machine's clock, in
            milliseconds since the epoch; None if it never does.
    """

    transactional_id: str
    producer: ProducerIdAndEpoch
    transaction_version: int
    cluster_id: str
    place: TopicPartition
    number: int
    deadline_ms: int | None = None

    def __str__(self) -> str:
        deadline = "" if self.deadline_ms is None else self.deadline_ms
        fields = (
            _FORMAT,
            quote(self.transactional_id, safe=""),
            self.producer.producer_id,
            self.producer.producer_epoch,
            self.transaction_version,
            quote(self.cluster_id, safe=""),
            quote(self.place.topic, safe=""),
            self.place.partition,
            self.number,
            deadline,
        )
        text = _SEPARATOR.join(map(str, fields))
        return f"{text}{_SEPARATOR}{_checksum(text)}"

    @classmethod
    def parse(cls, text: str) -> PreparedTransaction:
        """Return the token of a text.

        Raises:
            ValueError: the text is none of a token, is cut or changed, or is of a later release.
        """
        if not isinstance(text, str):
            raise ValueError(
                f"a prepared transaction is stored as a text, not as a {type(text).__name__}"
            )
        version, _, _ = text.partition(_SEPARATOR)
        if version != _FORMAT:
            raise ValueError(
                f"{text[:40]!r} is no prepared transaction, or one of a later release: store"
                f" str(producer.prepare_transaction()), which begins with {_FORMAT}{_SEPARATOR}"
            )
        # A column of a fixed length adds spaces, and a token has none.
        body, _, checksum = text.rstrip(" ").rpartition(_SEPARATOR)
        if checksum != _checksum(body):
            raise ValueError(
                f"the prepared transaction {text!r} is cut or changed: its checksum does not fit."
                " Is the column that holds it too short?"
            )
        fields = body.split(_SEPARATOR)[1:]
        if len(fields) != _FIELDS:
            raise ValueError(f"the prepared transaction {text!r} has {len(fields)} fields")
        return cls._of_fields(iter(fields))

    @classmethod
    def _of_fields(cls, fields: Iterator[str]) -> PreparedTransaction:
        return cls(
            unquote(next(fields)),
            ProducerIdAndEpoch(int(next(fields)), int(next(fields))),
            int(next(fields)),
            unquote(next(fields)),
            TopicPartition(unquote(next(fields)), int(next(fields))),
            int(next(fields)),
            int(deadline) if (deadline := next(fields)) else None,
        )

    @classmethod
    def of(cls, value: PreparedTransaction | str) -> PreparedTransaction:
        """Return a token as it is, or the token of a text. See `parse`."""
        return value if isinstance(value, cls) else cls.parse(value)  # type: ignore[arg-type]

    @property
    def group(self) -> str:
        """The consumer group that holds the entry. No consumer may use it."""
        return _GROUP.format(self.transactional_id)

    @property
    def lease(self) -> TransactionLease:
        """A lease of the transaction, by which it can be ended."""
        return TransactionLease(
            self.transactional_id,
            self.producer,
            self.transaction_version == 2,
            is_started=True,
            cluster_id=self.cluster_id,
        )


class StoredDecision(NamedTuple):
    """A prepared transaction as another system has stored it. A plain tuple will do as well.

    Attributes:
        prepared: the token, or its text.
        commit: the decision: True to commit, False to abort.
        completed: called with the outcome; None if nothing has to be noted. If it returns True, it
            has dealt with an outcome that differs from the decision, and none is raised.
    """

    prepared: PreparedTransaction | str
    commit: bool
    completed: Callable[[Completion], object] | None = None


Stored: TypeAlias = StoredDecision | tuple[PreparedTransaction | str, bool] | None
# A context manager holds what keeps other processes from the id until the producer has it.
Recover: TypeAlias = Callable[[], Stored | AbstractContextManager[Stored]]


def _checksum(text: str) -> str:
    return f"{zlib.crc32(text.encode()):08x}"
