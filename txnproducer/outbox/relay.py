"""The relay: it sends the rows of an outbox, each in exactly one committed transaction.

Owns: the order of the steps, the rule by which database and ledger fit, the rows that cannot be
sent. Must not know: SQL (`changes`), where the ledger's entry is, how a transaction works.

A start fences the database first, then Kafka, and reads the ledger last. So a relay that was
replaced assigns no rows any more when its producer is fenced, and commits none any more when the
ledger is read. After that each pass is: assign rows to the batch that follows the ledger's, send
them and advance the ledger in one transaction, delete the rows.

Rules:
* After any failure the producer is closed, and the next pass begins with a start. It finds out
  about a commit in doubt from the ledger, as about any other.
* The ledger is at the batch that was assigned last, or at the one before. Otherwise one of the two
  was set back, and rows would be sent twice or left out.
* A row that no broker would take moves to the table of dead rows before its batch is sent again.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Final, Literal, NamedTuple, Self

from txnproducer._core.transactions.transaction_loss import is_taken_over
from txnproducer._protocol.backoff import doubled
from txnproducer.config import ProducerConfig
from txnproducer.errors import (
    InvalidRecordError,
    InvalidTimestampError,
    InvalidTopicError,
    KafkaError,
    RecordTooLargeError,
)
from txnproducer.ledger import Ledger
from txnproducer.outbox._sqlalchemy import sa
from txnproducer.outbox.changes import Changes, Claim, OutboxRow
from txnproducer.outbox.errors import OutboxError, SupersededError
from txnproducer.outbox.tables import SHARDS, Outbox
from txnproducer.producer import TransactionalProducer

__all__ = ["OutboxRelay", "RelayReport"]

_LOG = logging.getLogger(__name__)
_OWN_FAULTS: Final = (
    RecordTooLargeError,
    InvalidRecordError,
    InvalidTimestampError,
    InvalidTopicError,
)
# A database that does not answer; a statement that is wrong is no passing failure.
# Two relays that make the same row at once get an IntegrityError.
_PASSING: Final = (
    sa.exc.OperationalError,
    sa.exc.InterfaceError,
    sa.exc.IntegrityError,
    sa.exc.TimeoutError,
)
_FIRST_PAUSE_MS: Final = 100
_LONGEST_PAUSE_MS: Final = 30_000
_CLOSE_S: Final = 5.0
_RELAY_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,190}")


class RelayReport(NamedTuple):
    """The result of one pass.

    Attributes:
        rows: how many were sent.
        dead: how many were moved to the table of dead rows.
    """

    rows: int = 0
    dead: int = 0


@dataclass
class _Start:
    """A start of the relay, until its first failure.

    Attributes:
        producer: initialized.
        ledger: taken over by the producer.
        generation: of the relay in the database.
        batch: the number of the last batch that is committed.
    """

    producer: TransactionalProducer = field(repr=False)
    ledger: Ledger
    generation: int
    batch: int


class OutboxRelay:
    """Sends the rows of an outbox, each exactly once, and deletes them.

    For example, until a signal::

        config = ProducerConfig.build(bootstrap_servers="localhost:9092")
        OutboxRelay(Outbox(engine), config, relay_id="orders-0").run(stop)

    A relay that is killed at any point, or replaced while it sleeps, loses no row and sends none
    twice. Two processes with one `relay_id` replace each other: the older one ends with a
    `SupersededError`.

    Args:
        outbox: with an engine, and its tables.
        config: of the producer, without a `transactional_id`: that is "outbox.<relay_id>".
        relay_id: of this relay, in the whole Kafka cluster; the same after a restart.
        shards: the part of the keys that this relay sends: some of the numbers 0 to 63. Relays of
            one outbox share these out. If another relay has some, that one is replaced, and its
            rows are brought in line first.
        batch_rows: rows in a transaction, at most.
        batch_bytes: of keys and values in a transaction, at most; one row may be larger.
        idle_s: seconds between two looks at an empty outbox.
        ledger_topic: the compacted topic of the ledgers of all relays; made if it is not there.
        on_set_back: the step if database and ledger do not fit, since one was restored or lost
            entries: "stop" with an `OutboxError`, or "send" all rows that are there, for one
            start.

    Raises:
        ValueError: an argument does not fit; the error names it.
        OutboxError: the outbox has no engine.
    """

    def __init__(
        self,
        outbox: Outbox,
        config: ProducerConfig,
        *,
        relay_id: str,
        shards: Iterable[int] = range(SHARDS),
        batch_rows: int = 500,
        batch_bytes: int = 16 * 1024 * 1024,
        idle_s: float = 0.5,
        ledger_topic: str = "outbox.ledger",
        on_set_back: Literal["stop", "send"] = "stop",
    ) -> None:
        if config.transactional_id is not None:
            raise ValueError(
                f"transactional_id={config.transactional_id!r}: leave it out, relay_id gives it"
            )
        if (config.value_serializer, config.key_serializer) != (None, None):
            raise ValueError("value_serializer, key_serializer: leave them out, rows are bytes")
        self._shards = _checked_shards(shards)
        for name, number in (("batch_rows", batch_rows), ("batch_bytes", batch_bytes)):
            if number < 1:
                raise ValueError(f"{name}={number!r}: must be 1 or more")
        if not 0 < idle_s <= threading.TIMEOUT_MAX:
            raise ValueError(f"idle_s={idle_s!r}: give seconds above 0")
        if on_set_back not in ("stop", "send"):
            raise ValueError(f"on_set_back={on_set_back!r}: must be 'stop' or 'send'")
        self._ledger_topic = ledger_topic
        if not _RELAY_ID.fullmatch(relay_id):
            raise ValueError(
                f"relay_id={relay_id!r}: give 1 to 190 letters, digits, dots, dashes or"
                " underscores"
            )
        self._outbox = outbox
        self._changes = Changes(outbox)
        self._config = config
        self._relay = relay_id
        self._bounds = {"most_rows": batch_rows, "most_bytes": batch_bytes}
        self._idle_s = idle_s
        self._on_set_back = on_set_back
        self._start: _Start | None = None
        # Of the last start of this process: it must not replace a relay that has replaced it.
        self._generation: int | None = None

    def __repr__(self) -> str:
        return f"<OutboxRelay {self._relay!r} of {self._outbox!r}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End. An open transaction is aborted, and the next start sends its rows."""
        start, self._start = self._start, None
        if start is not None:
            start.producer.close(_CLOSE_S)

    # --- the passes ----------------------------------------------------------------------------

    def run(self, stop: threading.Event | None = None) -> None:
        """Send rows until told to stop. Begin again after failures that pass.

        It ends after the batch under way; while no broker answers that takes up to `max_block_ms`.

        Args:
            stop: None to run until an error, or an interrupt.

        Raises:
            SupersededError: another relay has taken over. Do not begin again in a loop: two
                processes would replace each other for ever.
            OutboxError, LedgerError: see `run_once`.
            KafkaError: a failure that needs a change first (`recovery` is "fix").
        """
        stop = stop or threading.Event()
        failures = 0
        with self:
            while not stop.is_set():
                try:
                    report = self.run_once()
                except SupersededError:
                    raise
                except (KafkaError, *_PASSING) as error:
                    if isinstance(error, KafkaError) and error.recovery == "fix":
                        raise
                    wait_s = doubled(_FIRST_PAUSE_MS, _LONGEST_PAUSE_MS, failures) / 1000
                    failures += 1
                    _LOG.warning("%r begins again in %g s: %s", self, wait_s, error)
                    stop.wait(wait_s)
                else:
                    failures = 0
                    if not (report.rows or report.dead):
                        stop.wait(self._idle_s)

    def run_once(self) -> RelayReport:
        """Send one batch, if there are rows. The first call, and one after a failure, starts.

        Returns:
            How many rows were sent, and how many moved to the table of dead rows.

        Raises:
            SupersededError: another relay has taken over.
            OutboxError: tables are missing, or the database and the ledger do not fit.
            LedgerError: the ledger cannot be read.
            KafkaError, sqlalchemy.exc.SQLAlchemyError: a failure; call it again if that may pass.
        """
        try:
            if self._start is None:
                self._start = self._begin()
            return self._pass(self._start)
        except BaseException as error:
            # Also an interrupt: the next start finds out about everything.
            self.close()
            if isinstance(error, KafkaError) and is_taken_over(error):
                raise SupersededError(
                    f"another process has the relay_id {self._relay!r}, or has taken some of its"
                    f" shards: {error}"
                ) from error
            raise

    def _pass(self, start: _Start) -> RelayReport:
        dead = 0
        while True:
            batch = start.batch + 1
            rows = self._changes.next_batch(self._relay, start.generation, batch, **self._bounds)
            if not rows:
                return RelayReport(0, dead)
            faults = self._send(start, rows, batch)
            if not faults:
                break
            _LOG.warning("%r moves rows to the table of dead rows: %s", self, faults)
            self._changes.bury(self._relay, start.generation, faults)
            dead += len(faults)
        start.batch = batch
        self._changes.settle(self._relay, start.generation, batch, forgets=False)
        return RelayReport(len(rows), dead)

    def _send(self, start: _Start, rows: Sequence[OutboxRow], batch: int) -> dict[int, str]:
        """Commit rows and ledger in one transaction, or return the rows that cannot be sent."""
        producer, futures = start.producer, {}
        try:
            with producer.transaction():
                for row in rows:
                    futures[row.id] = producer.send(
                        row.topic, row.value, row.key, row.headers or None, None, row.created_ms
                    )
                start.ledger.advance(batch, after=start.ledger.position)
        except KafkaError:
            failures = {number: _failure(future) for number, future in futures.items()}
            faults = {
                number: f"{type(error).__name__}: {error}"
                for number, error in failures.items()
                if isinstance(error, _OWN_FAULTS)
            }
            # Only after an abort is it certain that the batch is not committed.
            if not faults or producer.transaction_state != "READY":
                raise
            return faults
        return {}

    # --- the start -----------------------------------------------------------------------------

    def _begin(self) -> _Start:
        self._outbox.check_tables()
        claim, others = self._changes.take_over(self._relay, self._shards, after=self._generation)
        self._generation = claim.generation
        producer, ledger, batch = self._fence(self._relay)
        try:
            forgets = self._is_set_back(self._relay, claim, batch)
            self._changes.settle(self._relay, claim.generation, batch, forgets=forgets)
            for other, its_claim in others.items():
                self._replace(other, its_claim)
            self._changes.adopt(self._relay, claim.generation, self._shards, others)
        except BaseException:
            producer.close(_CLOSE_S)
            raise
        _LOG.info("%r has begun generation %d, at batch %d", self, claim.generation, batch)
        return _Start(producer, ledger, claim.generation, batch)

    def _replace(self, other: str, claim: Claim) -> None:
        """Fence another relay, and free the rows that it has not committed."""
        producer, _, batch = self._fence(other)
        producer.close(_CLOSE_S)
        self._is_set_back(other, claim, batch)
        self._changes.settle(other, claim.generation, batch, forgets=True)

    def _fence(self, relay: str) -> tuple[TransactionalProducer, Ledger, int]:
        """Fence the producer of a relay. Return another one, the ledger, and its batch."""
        config = replace(self._config, transactional_id=f"outbox.{relay}")
        producer, ledger = TransactionalProducer.from_config(config), self._ledger(relay)
        try:
            return producer, ledger, int(ledger.take_over(producer))
        except BaseException:
            producer.close(_CLOSE_S)
            raise

    def _ledger(self, relay: str) -> Ledger:
        return Ledger(f"outbox.{relay}", self._ledger_topic, start=0)

    def _is_set_back(self, relay: str, claim: Claim, batch: int) -> bool:
        """Return whether database and ledger do not fit, if that is accepted.

        Raises:
            OutboxError: they do not fit.
        """
        if claim.batch - 1 <= batch <= claim.batch:
            return False
        found = (
            f"the ledger of the relay {relay!r} is at batch {batch}, and the database has"
            f" assigned batch {claim.batch}"
        )
        if self._on_set_back == "send":
            _LOG.warning("%s: all rows that are there are sent", found)
            return True
        cause = (
            "the database was restored, so that rows that were sent may be there again"
            if batch > claim.batch
            else "the ledger's topic was deleted or restored, or another outbox has this relay_id"
        )
        raise OutboxError(
            f"{found}: {cause}. Nothing was sent. Ways out: delete the rows that were sent, or let"
            ' all be sent, some perhaps once more, by on_set_back="send" for one start'
        )


def _checked_shards(shards: Iterable[int]) -> list[int]:
    found = sorted(set(shards))
    if not found or not all(isinstance(one, int) and 0 <= one < SHARDS for one in found):
        raise ValueError(f"shards={shards!r}: give numbers from 0 to {SHARDS - 1}, at least one")
    return found


def _failure(future: Any) -> BaseException | None:
    error: BaseException | None = future.exception() if future.done() else None
    return error
