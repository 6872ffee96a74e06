"""A process that pays: a row in a database, and a record in Kafka."""

from __future__ import annotations

import sqlalchemy as sa

from txnproducer.two_phase import SqlAlchemyDecisions


class Process:
    """A process with a producer of the id, and the decisions."""

    def __init__(self, kafka, engine, **options):
        self.decisions = SqlAlchemyDecisions(engine, "t", **options)
        self.decisions.create_table()
        self.producer = kafka.producer("t")

    def start(self):
        self.producer.init_transactions(recover=self.decisions.recover)
        return self

    def pay(self, amount):
        with self.decisions.transaction(self.producer) as connection:
            connection.execute(sa.text("INSERT INTO payments VALUES (:n)"), {"n": amount})
            self.producer.send("payments", b"%d" % amount, partition=0)

    def prepare(self, amount):
        self.producer.begin_transaction()
        self.producer.send("payments", b"%d" % amount, partition=0)
        return self.producer.prepare_transaction()

    def decide(self, engine, amount, prepared):
        with engine.begin() as connection:
            connection.execute(sa.text("INSERT INTO payments VALUES (:n)"), {"n": amount})
            self.decisions.record(connection, prepared)


def booked(engine):
    with engine.connect() as connection:
        rows = connection.execute(sa.text("SELECT amount FROM payments ORDER BY amount"))
        return [row.amount for row in rows]


def sent(kafka):
    return [int(record.value) for record in kafka.records("payments")]


def stored(engine):
    with engine.connect() as connection:
        return connection.execute(sa.text("SELECT prepared FROM kafka_decisions")).scalar_one()
