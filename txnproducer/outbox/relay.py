"""The relay: it sends the rows of an outbox, each in exactly one committed transaction.

Owns: the order of the steps, the search for rows that cannot be sent. Must not know: SQL
(`starts`, `batches`), where the ledger's entry is, how a transaction works.

A start fences the database first, then Kafka, and reads the ledger last. So a relay that was
replaced assigns no rows any more when its producer is fenced, and commits none any more when the
ledger is read. After that each pass is: assign rows to the batch that follows the ledger's, send
them and advance the ledger in one transaction, delete the rows.

Rules:
* After any failure the producer is closed, and the next pass begins with a start. It finds out
  about a commit in doubt from the ledger, as about any other.
* The database alone says which process is the relay. A fence in Kafka may come from a process that
  was replaced before, and has just woken up: the start that follows finds out.
* A batch with a row that a broker refuses is cut in halves until that row is alone. The refusal of
  a batch does not name its row, and the other records fail with it.
* The ledger has the name of the relay in its database. Another outbox with the same relay_id is
  refused before anything is deleted.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, NamedTuple, Self

from txnproducer._core.metadata import is_valid_name
from txnproducer._protocol.backoff import doubled
from txnproducer._shell.arguments import check_claim
from txnproducer._shell.stops import pause
from txnproducer.config import ProducerConfig
from txnproducer.errors import (
    InvalidRecordError,
    InvalidTopicError,
    KafkaError,
    RecordTooLargeError,
)
from txnproducer.ledger import Ledger
from txnproducer.outbox._sqlalchemy import sa
from txnproducer.outbox.batches import Batch, Batches
from txnproducer.outbox.errors import OutboxError, SupersededError
from txnproducer.outbox.relay_row import Claim, Committed
from txnproducer.outbox.starts import Starts
from txnproducer.outbox.tables import SHARDS, Outbox, new_name
from txnproducer.producer import TransactionalProducer

__all__ = ["OutboxRelay", "RelayReport", "passes"]

_LOG = logging.getLogger(__name__)
_OWN_FAULTS: Final = (
    RecordTooLargeError,
    InvalidRecordError,
    InvalidTopicError,
    # Of the arguments of `send`.
    TypeError,
    ValueError,
)
# A database that does not answer, or has become a replica that only reads.
_PASSING: Final = (
    sa.exc.OperationalError,
    sa.exc.InterfaceError,
    sa.exc.InternalError,
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
        claim: of the relay in the database.
        committed: the last batch that Kafka has.
    """

    producer: TransactionalProducer = field(repr=False)
    ledger: Ledger
    claim: Claim
    committed: Committed


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
            if check_claim(name, number) < 1:
                raise ValueError(f"{name}={number!r}: must be 1 or more")
        if not isinstance(idle_s, int | float) or not 0 < idle_s <= threading.TIMEOUT_MAX:
            raise ValueError(f"idle_s={idle_s!r}: give seconds above 0")
        if on_set_back not in ("stop", "send"):
            raise ValueError(f"on_set_back={on_set_back!r}: must be 'stop' or 'send'")
        if not isinstance(ledger_topic, str) or not is_valid_name(ledger_topic):
            raise ValueError(f"ledger_topic={ledger_topic!r} is not the name of a topic")
        self._ledger_topic = ledger_topic
        if not isinstance(relay_id, str) or not _RELAY_ID.fullmatch(relay_id):
            raise ValueError(
                f"relay_id={relay_id!r}: give 1 to 190 letters, digits, dots, dashes or"
                " underscores"
            )
        self._outbox = outbox
        self._starts, self._batches = Starts(outbox, relay_id), Batches(outbox, relay_id)
        self._config = config
        self._relay = relay_id
        self._batch_rows, self._batch_bytes = batch_rows, batch_bytes
        # Fewer while a row is searched for that cannot be sent.
        self._most_rows = batch_rows
        self._idle_s = idle_s
        self._accepts_set_back = on_set_back == "send"
        self._token, self._has_begun = new_name(), False
        self._start: _Start | None = None
        self._rows_sent = 0

    def __repr__(self) -> str:
        return f"<OutboxRelay {self._relay!r} of {self._outbox!r}>"

    @property
    def has_started(self) -> bool:
        """Whether its start is over, so that a batch may be under way."""
        return self._start is not None

    @property
    def rows_sent(self) -> int:
        """How many rows all passes have sent."""
        return self._rows_sent

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
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
        The event may be set in a signal's handler.

        Args:
            stop: None to run until an error, or an interrupt.

        Raises:
            SupersededError: another relay has taken over. Do not begin again in a loop: two
                processes would replace each other for ever.
            OutboxError: see `run_once`.
            KafkaError: a failure that needs a change first (`recovery` is "fix"), such as a ledger
                that is missing.
        """
        stop = stop or threading.Event()
        failures = 0
        with self:
            while not stop.is_set():
                try:
                    report = self.run_once()
                except Exception as error:
                    if not passes(error):
                        raise
                    wait_s = doubled(_FIRST_PAUSE_MS, _LONGEST_PAUSE_MS, failures) / 1000
                    failures += 1
                    _LOG.warning("%r begins again in %g s: %s", self, wait_s, error)
                    pause(stop, wait_s)
                else:
                    failures = 0
                    if not (report.rows or report.dead):
                        pause(stop, self._idle_s)

    def run_once(self) -> RelayReport:
        """Send one batch, if there are rows. The first call, and one after a failure, starts.

        Returns:
            How many rows were sent, and how many moved to the table of dead rows.

        Raises:
            SupersededError: another relay has taken over.
            OutboxError: tables are missing, or the database and the ledger do not fit.
            KafkaError: a failure; call it again, unless its `recovery` is "fix", as with a ledger
                that is missing. SQLAlchemy's errors of the database come as they are.
        """
        try:
            if self._start is None:
                self._start = self._begin()
            return self._pass(self._start)
        except BaseException:
            # Also an interrupt: the next start finds out about everything.
            self.close()
            raise

    def _pass(self, start: _Start) -> RelayReport:
        generation, dead = start.claim.generation, 0
        while (
            batch := self._batches.next_batch(
                generation,
                start.committed,
                most_rows=self._most_rows,
                most_bytes=self._batch_bytes,
            )
        ).rows:
            rows, fault = batch.rows, self._send(start, batch)
            if fault is None:
                start.committed = Committed(start.committed.number + 1, batch.mark)
                self._rows_sent += len(rows)
                self._batches.delete_sent(generation, start.committed)
                self._most_rows = min(2 * self._most_rows, self._batch_rows)
                return RelayReport(len(rows), dead)
            if len(rows) > 1:
                half = rows[: len(rows) // 2]
                self._batches.cut(generation, half[-1].id)
                self._most_rows = len(half)
                continue
            _LOG.warning("%r moves row %d to the dead rows: %s", self, rows[0].id, fault)
            self._batches.bury(generation, rows[0].id, fault)
            dead += 1
        return RelayReport(0, dead)

    def _send(self, start: _Start, batch: Batch) -> str | None:
        """Commit rows and ledger in one transaction. Return the fault of one of the rows, if any.

        A row that has one is not known, unless it is alone.
        """
        producer, futures = start.producer, []
        try:
            with producer.transaction():
                for row in batch.rows:
                    future = producer.send(row.topic, row.value, row.key, row.headers or None)
                    futures.append(future)
                number, origin = start.committed.number + 1, start.claim.origin
                position = {"origin": origin, "batch": number, "mark": batch.mark}
                start.ledger.advance(position, after=start.ledger.position)
        except (KafkaError, TypeError, ValueError) as error:
            failures = [error, *(future.exception() for future in futures if future.done())]
            fault = next((one for one in failures if isinstance(one, _OWN_FAULTS)), None)
            # Only after an abort is it certain that the batch is not committed.
            if fault is None or producer.transaction_state != "READY":
                raise
            return f"{type(fault).__name__}: {fault}"
        return None

    # --- the start -----------------------------------------------------------------------------

    def _begin(self) -> _Start:
        if not self._has_begun:
            self._outbox.check_tables()
            self._starts.check_engine()
        claim = self._starts.take_over(
            self._token, self._ledger_topic, is_first=not self._has_begun
        )
        self._has_begun = True
        producer, ledger, found = self._fence(self._relay, claim)
        try:
            committed = Committed.from_entry(found)
            self._starts.settle(
                claim.generation,
                committed,
                accepts_set_back=self._accepts_set_back,
                is_foreign=found["origin"] != claim.origin,
            )
            others = self._starts.take_others(claim.generation, self._shards)
            for other, its_claim in others.items():
                self._replace(other, its_claim)
            self._starts.adopt(claim.generation, self._shards, others)
        except BaseException:
            producer.close(_CLOSE_S)
            raise
        self._accepts_set_back = False
        _LOG.info(
            "%r has begun generation %d, at batch %d", self, claim.generation, committed.number
        )
        return _Start(producer, ledger, claim, committed)

    def _replace(self, other: str, claim: Claim) -> None:
        """Fence another relay, and free the rows that it has not committed."""
        # Again, at the last moment: a relay that has begun again must not be fenced.
        self._starts.check(claim, other)
        producer, _, found = self._fence(other, claim)
        producer.close(_CLOSE_S)
        self._starts.settle_other(other, claim, Committed.from_entry(found))

    def _fence(
        self, relay: str, claim: Claim
    ) -> tuple[TransactionalProducer, Ledger, dict[str, Any]]:
        """Fence the producer of a relay. Return another one, the ledger, and its position.

        Raises:
            OutboxError: the ledger is another outbox's.
            LedgerError: the database has assigned a batch, and there is no ledger.
        """
        config = replace(self._config, transactional_id=f"outbox.{relay}")
        # A relay writes its ledger's first entry before it assigns its first batch.
        is_new = not claim.batch or (self._accepts_set_back and relay == self._relay)
        ledger = Ledger(
            f"outbox.{relay}", claim.ledger_topic, on_missing="begin" if is_new else "stop"
        )
        producer = TransactionalProducer.from_config(config)
        try:
            found = ledger.take_over(producer) or {"origin": claim.origin, "batch": 0}
            accepts = self._accepts_set_back and relay == self._relay
            if found["origin"] != claim.origin and not accepts:
                raise OutboxError(
                    f"the ledger of the relay {relay!r} belongs to another outbox. Its programs"
                    " and these would replace each other. Nothing was deleted or sent. Way out:"
                    " another relay_id. If the database was made again without its relays' table,"
                    ' on_set_back="send" for one start'
                )
            return producer, ledger, found
        except BaseException:
            producer.close(_CLOSE_S)
            raise


def passes(error: Exception) -> bool:
    """Return whether a failure may be over later without a change."""
    if isinstance(error, KafkaError):
        return error.recovery != "fix" and not isinstance(error, SupersededError)
    is_cut = isinstance(error, sa.exc.DBAPIError) and error.connection_invalidated
    return is_cut or isinstance(error, _PASSING)


def _checked_shards(shards: Iterable[int]) -> list[int]:
    found = set(shards) if isinstance(shards, Iterable) else set()
    if not found or not all(isinstance(one, int) and 0 <= one < SHARDS for one in found):
        raise ValueError(f"shards={shards!r}: give numbers from 0 to {SHARDS - 1}, at least one")
    return sorted(found)
