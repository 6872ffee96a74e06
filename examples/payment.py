"""A payment in a database and its event in Kafka: both, or neither, whenever the program dies.

The event is prepared, the database commits the payment together with the event's token, and then
the event is committed. A program that starts again first completes what the last one has left.

It needs: pip install '.[testing,sqlalchemy]'
python examples/payment.py [bootstrap servers] [database URL, such as postgresql+psycopg://...]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from _cluster import cluster, create_topic, new_name, values_in
from sqlalchemy import Engine, create_engine, text

from txnproducer import TransactionalProducer
from txnproducer.two_phase import SqlAlchemyDecisions


class DeclinedError(Exception):
    """Stands for any reason of the database, or of the program, against a payment."""


def create_tables(engine: Engine, decisions: SqlAlchemyDecisions) -> None:
    """Create the table of payments and the one of decisions, unless they exist."""
    decisions.create_table()
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE IF NOT EXISTS payments (amount INTEGER NOT NULL)"))


def start(servers: str, decisions: SqlAlchemyDecisions, name: str) -> TransactionalProducer:
    """Return a producer that has completed the event of a program that died, if there is one."""
    # As long as the brokers allow by default. With 2147483647, which needs the same number in
    # their transaction.max.timeout.ms, a prepared event waits for its database without a limit.
    producer = TransactionalProducer(servers, name, transaction_timeout_ms=900_000)
    producer.init_transactions(recover=decisions.recover)
    return producer


def pay(
    producer: TransactionalProducer, decisions: SqlAlchemyDecisions, topic: str, amount: int
) -> None:
    """Book a payment, and send its event."""
    with decisions.transaction(producer) as connection:
        connection.execute(text("INSERT INTO payments VALUES (:amount)"), {"amount": amount})
        producer.send(topic, str(amount).encode())
        if amount > 1_000:
            raise DeclinedError(f"{amount} is more than one may pay")


def main() -> None:
    with cluster() as servers, tempfile.TemporaryDirectory() as folder:
        url = sys.argv[2] if len(sys.argv) > 2 else f"sqlite:///{Path(folder, 'payments.db')}"
        engine = create_engine(url)
        topic, name = create_topic(servers, "payments"), new_name("payments")
        decisions = SqlAlchemyDecisions(engine, name)
        create_tables(engine, decisions)

        with start(servers, decisions, name) as producer:
            for amount in (10, 5_000, 20):
                try:
                    pay(producer, decisions, topic, amount)
                except DeclinedError as reason:
                    print(f"declined: {reason}")
            # The worst moment: the database has committed, and Kafka has not.
            producer.begin_transaction()
            producer.send(topic, b"30")
            prepared = producer.prepare_transaction()
            with engine.begin() as connection:
                connection.execute(text("INSERT INTO payments VALUES (30)"))
                decisions.record(connection, prepared)
        print(f"the program dies; read_committed sees: {values_in(servers, topic)}")

        with start(servers, decisions, name):
            print(f"and starts again; read_committed sees: {values_in(servers, topic)}")
        with engine.connect() as connection:
            booked = connection.execute(text("SELECT amount FROM payments ORDER BY amount"))
            print(f"booked: {[row.amount for row in booked]}")
        engine.dispose()


if __name__ == "__main__":
    main()
