"""Orders in a database, and their events in Kafka: both or neither, and each event once.

A shop writes an order and its event in one database transaction, some of which it rolls back. A
relay sends the events. It is killed and started again, and a second relay takes over from one that
sleeps.

It needs: pip install '.[testing,outbox]'
Run it: python examples/outbox.py [bootstrap servers]
"""

from __future__ import annotations

import json
import tempfile
import threading
from pathlib import Path

import sqlalchemy as sa
from _cluster import cluster, create_topic, new_name, values_in

from txnproducer.config import ProducerConfig
from txnproducer.outbox import Outbox, OutboxRelay, SupersededError

METADATA = sa.MetaData()
ORDERS = sa.Table(
    "orders",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("customer", sa.String),
)


def place_orders(outbox: Outbox, topic: str, first: int, count: int) -> None:
    for number in range(first, first + count):
        with outbox.engine.connect() as connection:
            customer = f"customer {number % 7}"
            connection.execute(sa.insert(ORDERS).values(id=number, customer=customer))
            event = json.dumps({"order": number, "customer": customer})
            outbox.enqueue(connection, topic, event, key=customer)
            if number % 10 == 9:
                connection.rollback()  # the order is not there, and its event must not be
            else:
                connection.commit()


def main() -> None:
    with cluster() as bootstrap_servers, tempfile.TemporaryDirectory() as folder:
        topic, relay_id = create_topic(bootstrap_servers, "orders", partitions=3), new_name("shop")
        outbox = Outbox(sa.create_engine(f"sqlite:///{Path(folder)}/shop.db"))
        METADATA.create_all(outbox.engine)
        outbox.create_tables()
        config = ProducerConfig.build(bootstrap_servers=bootstrap_servers)

        place_orders(outbox, topic, 0, 100)
        old = OutboxRelay(outbox, config, relay_id=relay_id, batch_rows=20)
        old.run_once()

        # The old one sleeps now, and another process takes its place.
        stop = threading.Event()
        new = OutboxRelay(outbox, config, relay_id=relay_id, batch_rows=20)
        thread = threading.Thread(target=new.run, args=(stop,))
        thread.start()
        place_orders(outbox, topic, 100, 100)
        while outbox.backlog()["waiting"]:
            stop.wait(0.1)
        try:
            old.run_once()
        except SupersededError:
            print("the old relay wakes up: replaced, it has sent nothing")
        stop.set()
        thread.join()

        with outbox.engine.connect() as connection:
            orders = sorted(connection.scalars(sa.select(ORDERS.c.id)))
        events = [json.loads(value)["order"] for value in values_in(bootstrap_servers, topic)]
        print(f"{len(orders)} orders are in the database, of 200 that were begun")
        print(f"each order has its event, once: {sorted(events) == orders}")
        outbox.engine.dispose()


if __name__ == "__main__":
    main()
