"""A position in any source, kept in the transactions of the records that are made from it.

Owns: the order of fence, read and advance; the rules against a ledger that is missing, another
id's, or older than it was. Must not know: where an entry is stored (`places`), how a transaction
works, what a position means.

Rules:
* The fence comes before the read. A producer that was replaced may commit up to the fence, and
  nothing after it. So what is read then can change by this producer alone.
* An advance names the position that it follows. A program that has lost count is stopped, and
  writes nothing.
* An advance counts once its transaction is committed. After an abort the position is the one
  before, without a call.
* A ledger belongs to one transactional id, since the fence holds for that alone. A start writes
  the id, also before the first advance.
* An absent entry in offsets may have expired, so that only the program knows whether it begins.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from txnproducer.config import ProducerConfig
from txnproducer.errors import CommitOutcomeUnknownError, IllegalStateError
from txnproducer.ledger.errors import LedgerError
from txnproducer.ledger.outcomes import watch_outcome
from txnproducer.ledger.places import InOffsets, InTopic, Place
from txnproducer.ledger.state import LedgerState, checked, now_ms, text_of
from txnproducer.producer import TransactionalProducer
from txnproducer.transaction import Outcome

__all__ = ["Ledger"]

_LOG = logging.getLogger(__name__)
# Much less than the time for which brokers keep offsets: seven days by default.
_RENEW_AFTER_MS: Final = 6 * 3600 * 1000
_TIMEOUT_S: Final = 60.0
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,200}")


@dataclass
class _Advance:
    """An advance in a transaction that has not ended, as far as it is known.

    Attributes:
        outcome: asks for the transaction's outcome.
        state: the ledger once it is committed.
        is_added: whether the entry is in the transaction for certain.
    """

    outcome: Callable[[], Outcome]
    state: LedgerState
    is_added: bool = False


class Ledger:
    """A position in a source, committed together with the records that are made from it.

    For example, the lines of a file::

        ledger = Ledger("import", start=0)
        with TransactionalProducer("localhost:9092", "import-0") as producer:
            done = ledger.take_over(producer)
            for number, line in lines_after(done):
                with producer.transaction():
                    producer.send("lines", line)
                    ledger.advance(number, after=done)
                done = number

    After a crash at any line the next start goes on with the first line that is not committed. The
    source must be able to give again what follows a position.

    A ledger belongs to one transactional id, and is used by one thread at a time, which also ends
    the transactions.

    Args:
        name: of the ledger: letters, digits, ".", "_" and "-".
        topic: the topic that holds the entry. With `ledger="topic"` it is a compacted topic, by
            default "<name>.ledger"; it is created if it is not there, and several ledgers may
            share it. With `ledger="offsets"` it is any topic that is there, such as that of the
            records: the entry is a committed offset of its partition 0.
        ledger: "topic", whose entries stay; or "offsets", whose entries brokers delete after
            `offsets.retention.minutes` (seven days by default) without an advance.
        on_missing: the step if there is no entry: "begin", or "stop" with a `LedgerError`. The
            default is "begin" in a topic and "stop" in offsets, where it may have expired. Pass
            "begin" there for the first start.
        on_foreign: the step if the ledger belongs to another transactional id: "stop" with a
            `LedgerError`, or "take_over", which fences that id first.
        start: the position before the first advance, such as 0.

    Raises:
        ValueError: an argument does not fit; the error names it.
    """

    def __init__(
        self,
        name: str,
        topic: str | None = None,
        *,
        ledger: Literal["topic", "offsets"] = "topic",
        on_missing: Literal["begin", "stop"] | None = None,
        on_foreign: Literal["stop", "take_over"] = "stop",
        start: Any = None,
    ) -> None:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ValueError(
                f"name={name!r}: give 1 to 200 letters, digits, dots, underscores or dashes"
            )
        if on_missing not in (None, "begin", "stop"):
            raise ValueError(f"on_missing={on_missing!r}: must be 'begin' or 'stop'")
        if on_foreign not in ("stop", "take_over"):
            raise ValueError(f"on_foreign={on_foreign!r}: must be 'stop' or 'take_over'")
        self._name = name
        self._place = _place_of(name, topic, ledger)
        self._on_missing = on_missing or ("stop" if self._place.expires else "begin")
        self._on_foreign = on_foreign
        self._first = None if start is None else checked("start", start)
        self._producer: TransactionalProducer | None = None
        # The one whose initialization was begun last, and may go on after a time-out.
        self._pending: TransactionalProducer | None = None
        self._is_taken = False
        # As this program knows it, also of an earlier take-over.
        self._state: LedgerState | None = None
        self._last: _Advance | None = None

    def __repr__(self) -> str:
        return f"<Ledger {self._name!r} in {self._place!r}>"

    # --- the start -----------------------------------------------------------------------------

    def take_over(self, producer: TransactionalProducer) -> Any:
        """Fence the producer before, and return the position that it has left.

        It calls `init_transactions()`, and then reads. After an error whose `recovery` is "resume"
        call it again with the same producer.

        Args:
            producer: with a transactional id, and not initialized.

        Returns:
            The last committed position; `start` if there is none. It is as JSON gives it: a tuple
            comes back as a list.

        Raises:
            IllegalStateError: the producer is initialized, or has no transactional id, or is an
                asyncio producer.
            LedgerError: the ledger is missing, another id's, or cannot be read.
            KafkaError: as for `init_transactions`, or the cluster did not answer.
        """
        config = self._check_producer(producer)
        servers, security = ",".join(config.bootstrap_servers), _security(config)
        if producer is not self._producer or producer.transaction_state != "READY":
            self._place.prepare(servers, security)
            self._pending = producer
            producer.init_transactions()
        # Until the end of this call the position is that of another time.
        self._producer, self._last, self._is_taken = producer, None, False
        found = self._judge(self._read(servers, security), config)
        own = str(config.transactional_id)
        if found is None or found.transactional_id != own or self._is_old(found):
            # So that another id is refused from now on, and the entry stays.
            entry = LedgerState(None, 0, own) if found is None else found
            found = replace(entry, transactional_id=own, at_ms=now_ms())
            with producer.transaction():
                self._place.write(producer, found)
        self._state, self._is_taken = found, True
        return self._position_of(found)

    def _check_producer(self, producer: TransactionalProducer) -> ProducerConfig:
        if not isinstance(producer, TransactionalProducer):
            raise IllegalStateError(
                f"take_over() takes a TransactionalProducer, and got {producer!r}. A ledger waits"
                " for brokers, and would block an event loop"
            )
        config = producer._config  # noqa: SLF001 - our own class
        if config.transactional_id is None:
            raise IllegalStateError(
                "take_over() takes a producer with a transactional_id, since that fences the one"
                " before"
            )
        state = producer.transaction_state
        is_own = producer is self._producer or producer is self._pending
        if not is_own and state not in ("UNINITIALIZED", "INITIALIZING"):
            raise IllegalStateError(
                f"take_over() initializes the producer itself, and this one is {state}: make"
                " another one, and do not call its init_transactions(), nor enter a pool's block"
            )
        return config

    def _read(self, servers: str, security: Mapping[str, Any]) -> LedgerState | None:
        return self._place.read(servers, security, _TIMEOUT_S)

    def _judge(self, found: LedgerState | None, config: ProducerConfig) -> LedgerState | None:
        """Return the entry that counts, or raise.

        Raises:
            LedgerError: the ledger is missing, another id's, or older than it was.
        """
        found = self._own(found, config)
        known = self._state
        if known is not None and (found is None or found.advances < known.advances):
            raise LedgerError(
                f"{self!r} was set back: this program has committed advance {known.advances}"
                f" ({_short(known.position)}), and the cluster has"
                f" {'no entry' if found is None else f'advance {found.advances}'}. Its topic was"
                " deleted or restored, or an unclean leader election has lost records. Nothing was"
                " written. Way out: compare the records with the source, and start the program"
                " again"
            )
        if found is None and self._on_missing == "stop":
            raise LedgerError(
                f"{self!r} has no entry. Either it begins, or the entry has expired or was"
                " deleted, and the input would be written once more. Nothing was written. Way out:"
                ' on_missing="begin" for one start, if it begins or may write its input once more'
            )
        return found

    def _own(self, found: LedgerState | None, config: ProducerConfig) -> LedgerState | None:
        """Return an entry that this id may go on from.

        Raises:
            LedgerError: it is another id's, and may not be taken over.
        """
        own = config.transactional_id
        while found is not None and found.transactional_id != own:
            before = found.transactional_id
            if self._on_foreign == "stop":
                raise LedgerError(
                    f"{self!r} belongs to the transactional id {before!r}, and this producer is"
                    f" {own!r}: the two could not fence each other. Nothing was written. Ways out:"
                    ' that id; another name for this ledger; or on_foreign="take_over", if the id'
                    " has changed for good"
                )
            _LOG.warning("%r is taken over from the transactional id %r", self, before)
            self._hand_over(replace(config, transactional_id=before), str(own))
            found = self._read(",".join(config.bootstrap_servers), _security(config))
        return found

    def _hand_over(self, config: ProducerConfig, own: str) -> None:
        """Fence the id of a configuration, and write by it that the ledger is this one's."""
        # By that id, so that its program, if it starts meanwhile, fences this very entry.
        with TransactionalProducer.from_config(config) as producer:
            producer.init_transactions()
            # It may have advanced up to the fence, or have handed the ledger over itself.
            found = self._read(",".join(config.bootstrap_servers), _security(config))
            if found is not None and found.transactional_id == config.transactional_id:
                with producer.transaction():
                    self._place.write(producer, replace(found, transactional_id=own))

    def _is_old(self, found: LedgerState) -> bool:
        return self._place.expires and now_ms() - found.at_ms > _RENEW_AFTER_MS

    # --- the advance ---------------------------------------------------------------------------

    @property
    def position(self) -> Any:
        """The position that the last committed transaction has left; `start` before the first.

        Raises:
            IllegalStateError: the ledger was not taken over.
            CommitOutcomeUnknownError: the last advance is in a commit in doubt.
        """
        return self._position_of(self._settled())

    def _position_of(self, state: LedgerState) -> Any:
        return state.position if state.advances else self._first

    def advance(self, position: Any, *, after: Any) -> None:
        """Add a position to the open transaction. It counts once that is committed.

        To keep an entry in offsets alive while the source is idle, advance to the same position.

        Args:
            position: JSON, at most 3,500 bytes: numbers, texts, lists, dicts.
            after: the position that it follows: the one of `take_over`, or of the last advance
                that was committed.

        Raises:
            ValueError: the position is no JSON, None, or too long; nothing changed.
            LedgerError: `after` is not the ledger's position; nothing changed.
            IllegalStateError: no transaction is open, or it has an advance already, or the ledger
                was not taken over; nothing changed.
            CommitOutcomeUnknownError: the last advance is in a commit in doubt.
            KafkaError: as for `send`, or `send_offsets_to_transaction`. After a time-out call it
                again, with the same position, to go on.
        """
        state = self._settled()
        following = state.moved_to(position)
        present = text_of("position", self._position_of(state))
        if text_of("after", after) != present:
            raise LedgerError(
                f"advance({_short(position)}, after={_short(after)}) does not fit {self!r}, which"
                f" is at {present:.100}. The position is not in the transaction, and a commit"
                " would write the records without it."
                " Either the program has lost count, or it has gone on after an error without a"
                " look at the ledger. Way out: abort, and go on from ledger.position"
            )
        producer = self._taken()
        last = self._last
        if last is None:
            last = self._last = _Advance(watch_outcome(producer), following)
        elif last.is_added or last.state != following:
            raise IllegalStateError(
                f"{self!r} was advanced to {_short(last.state.position)} in this"
                " transaction: a transaction advances a ledger once. Commit or abort before the"
                " next"
            )
        self._place.write(producer, last.state)
        last.is_added = True

    def _settled(self) -> LedgerState:
        """Return the committed state, after a look at the outcome of the last advance."""
        self._taken()
        last = self._last
        outcome = "aborted" if last is None else last.outcome()
        if last is not None and outcome in ("committed", "unknown"):
            if outcome == "unknown" or not last.is_added:
                raise CommitOutcomeUnknownError(
                    f"whether {self!r} is at {_short(last.state.position)} is not known. The"
                    " transaction of that advance has an unknown outcome, or the advance itself"
                    " was interrupted. Way out: resolve_outcome() of the producer; or close it,"
                    " make a new one, and take over"
                )
            self._state = last.state
        if outcome != "open":
            self._last = None
        if self._state is None:
            raise IllegalStateError(f"{self!r} was not taken over")
        return self._state

    def _taken(self) -> TransactionalProducer:
        if self._producer is None or not self._is_taken:
            raise IllegalStateError(
                f"{self!r} is not taken over: call take_over(producer) before the first"
                " transaction, and again after it has failed"
            )
        return self._producer

    # --- a look --------------------------------------------------------------------------------

    def look(
        self, bootstrap_servers: str, timeout: float = _TIMEOUT_S, **security: Any
    ) -> LedgerState | None:
        """Return the last committed entry, without a producer, or None if there is none.

        It fences nobody, so another program may advance the ledger right after it. A transaction
        that is open, and has an entry, is waited for.

        Args:
            bootstrap_servers: "host:port", several separated by commas.
            timeout: seconds.
            security: kafka-python's settings, such as `security_protocol`.

        Raises:
            LedgerError: the entry cannot be read.
            KafkaError: the cluster refused, or did not answer.
        """
        return self._place.read(bootstrap_servers, security, timeout)


def _place_of(name: str, topic: str | None, ledger: str) -> Place:
    if ledger == "topic":
        return InTopic(name, topic or f"{name}.ledger")
    if ledger != "offsets":
        raise ValueError(f"ledger={ledger!r}: must be 'topic' or 'offsets'")
    if not topic:
        raise ValueError(
            "topic is needed with ledger='offsets': the entry is an offset of a topic that is"
            " there, such as that of the records"
        )
    return InOffsets(name, topic)


def _short(position: Any) -> str:
    return text_of("position", position)[:100]


def _security(config: ProducerConfig) -> dict[str, Any]:
    return {name: value for name, value in config.security.items() if value is not None}
