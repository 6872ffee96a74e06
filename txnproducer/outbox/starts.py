"""The changes of a start: generations are raised, rows brought in line with Kafka, shards taken.

Owns: the statements. Must not know: Kafka, the order of the changes (`relay`).

A start is known by the token of its object, and not by the generation that it had before: the
answer to the COMMIT that raised that can be lost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from txnproducer.outbox._sqlalchemy import sa
from txnproducer.outbox.errors import OutboxError
from txnproducer.outbox.relay_row import Claim, Committed, RelayRow, again
from txnproducer.outbox.tables import new_name

__all__ = ["Starts"]


class Starts(RelayRow):
    """The changes of one relay's starts."""

    def check_engine(self) -> None:
        """Check that a change can be taken back, by one that is.

        Raises:
            OutboxError: the engine commits each statement by itself.
        """
        table, name = self._outbox.relays, f"probe {new_name()}"
        row = {"relay": name, "generation": 0, "batch": 0}
        texts = {"origin": "", "token": "", "ledger_topic": ""}
        with self._engine.connect() as connection:
            connection.execute(sa.insert(table).values(**row, **texts))
            connection.rollback()
            is_there = sa.delete(table).where(table.c.relay == name)
            if connection.execute(is_there).rowcount:
                raise OutboxError(
                    "the engine commits each statement by itself (isolation_level='AUTOCOMMIT'),"
                    " so that no change is one transaction: make another engine for the relay"
                )

    def take_over(self, token: str, ledger_topic: str, *, is_first: bool) -> Claim:
        """Begin a generation. The relay of the generation before changes nothing any more.

        Args:
            token: of this relay's object, in this process.
            ledger_topic: the topic of its ledger.
            is_first: whether it has never begun before. Otherwise it must not replace a relay that
                has replaced it.

        Raises:
            SupersededError: another process has begun a generation since.
            KafkaError: another process begins at the same moment.
        """
        table = self._outbox.relays
        values = {"token": token, "ledger_topic": ledger_topic}
        with self._begin() as connection:
            raised = sa.update(table).values(generation=table.c.generation + 1, **values)
            whose = self._is_this if is_first else sa.and_(self._is_this, table.c.token == token)
            if not connection.execute(raised.where(whose)).rowcount:
                if not is_first:
                    raise self._superseded()
                first = {"relay": self._relay, "generation": 1, "batch": 0, "origin": new_name()}
                _insert(connection, table, [{**first, **values}])
            return self._claim(connection, self._relay)

    def take_others(self, generation: int, shards: Sequence[int]) -> dict[str, Claim]:
        """Raise the generation of each relay that has some of the shards, so that it stops.

        Their shards stay theirs until `adopt`.

        Args:
            generation: of this relay.
            shards: that it wants.

        Returns:
            The other relays, by their ids.
        """
        shard, table = self._outbox.shards.c, self._outbox.relays
        wanted = sa.select(shard.relay).where(shard.shard.in_(shards)).distinct()
        with self._begin() as connection:
            others = set(connection.scalars(wanted)) - {self._relay}
            claims = {}
            # All in one order, or two relays could wait for each other.
            for name in sorted({self._relay, *others}):
                if name == self._relay:
                    self._lock(connection, generation)
                    continue
                # Without its token it cannot begin again in its process.
                raised = sa.update(table).values(generation=table.c.generation + 1, token="")
                connection.execute(raised.where(table.c.relay == name))
                claims[name] = self._claim(connection, name)
            return claims

    def check(self, claim: Claim, relay: str) -> None:
        """Check that another relay has not begun again since `take_others`.

        Raises:
            KafkaError: it has.
        """
        with self._begin() as connection:
            self._lock_other(connection, relay, claim.generation)

    def settle(
        self, generation: int, committed: Committed, *, accepts_set_back: bool, is_foreign: bool
    ) -> None:
        """Delete the rows that Kafka has, and keep those of the batch that it has not.

        Args:
            generation: of this relay.
            committed: the last batch that Kafka has.
            accepts_set_back: whether all rows are sent if database and ledger do not fit.
            is_foreign: whether that batch is another outbox's, so that they do not fit.

        Raises:
            SupersededError: another generation has begun.
            OutboxError: database and ledger do not fit.
        """
        with self._changing(generation) as connection:
            if is_foreign or not self._settle(
                connection, self._relay, committed, accepts_set_back=accepts_set_back
            ):
                self._free(connection, self._is_ours)
                self._set_batch(connection, self._relay, committed.number)

    def settle_other(self, relay: str, claim: Claim, committed: Committed) -> None:
        """Delete the rows of another relay that Kafka has, and free those that it has not.

        Raises:
            KafkaError: it has begun again.
            OutboxError: database and ledger do not fit.
        """
        with self._begin() as connection:
            self._lock_other(connection, relay, claim.generation)
            self._settle(connection, relay, committed)
            self._free(connection, self._outbox.rows.c.relay == relay)
            self._set_batch(connection, relay, committed.number)

    def adopt(self, generation: int, shards: Sequence[int], others: Mapping[str, Claim]) -> None:
        """Make shards the relay's own, and give up all others.

        Args:
            generation: of this relay.
            shards: their numbers.
            others: the relays that had some of them, all fenced and settled.

        Raises:
            SupersededError: another generation has begun.
            KafkaError: another relay has got some of the shards meanwhile, or one of the others
                has begun again, and may have assigned rows.
        """
        table = self._outbox.shards
        is_wanted = table.c.shard.in_(shards)
        with self._begin() as connection:
            # In the order of `take_others`.
            for name in sorted({self._relay, *others}):
                if name == self._relay:
                    self._lock(connection, generation)
                else:
                    self._lock_other(connection, name, others[name].generation)
            there = set(connection.scalars(sa.select(table.c.shard).where(is_wanted)))
            # Only from relays that were fenced: another one may be about to send.
            given = table.c.relay.in_([self._relay, *others])
            taken = sa.update(table).where(is_wanted, given).values(relay=self._relay)
            if connection.execute(taken).rowcount != len(there):
                raise again("another relay has taken some of the shards at the same time")
            missing = [one for one in shards if one not in there]
            if missing:
                rows = [{"shard": one, "relay": self._relay} for one in missing]
                _insert(connection, table, rows)
            is_own = table.c.relay == self._relay
            connection.execute(sa.delete(table).where(is_own, ~is_wanted))
            # The next owner of a shard looks for rows that no relay has. Kafka has not got these,
            # and the producer before, which could still have sent them, is fenced.
            self._take_out(connection, self._outbox.rows.c.shard.not_in(shards))


def _insert(connection: sa.Connection, table: sa.Table, rows: list[dict[str, object]]) -> None:
    try:
        connection.execute(sa.insert(table), rows)
    except sa.exc.IntegrityError as error:
        raise again(f"another process begins at the same moment ({error.orig})") from error
