"""A hundred thousand records by three calls: a list, columns with keys, and an Arrow table.

One transaction holds all of them.

It needs: pip install '.[testing]' pyarrow
python examples/columns.py [bootstrap servers]
"""

from __future__ import annotations

import time

import pyarrow as pa
from _cluster import cluster, create_topic, new_name, values_in

from txnproducer import TransactionalProducer

COUNT = 100_000


def main() -> None:
    readings = [f"{number % 97} degrees".encode() for number in range(COUNT)]
    table = pa.table({"key": ["hall", "attic", None], "value": ["19", "20", "21"]})
    with cluster() as bootstrap_servers:
        topic = create_topic(bootstrap_servers, "readings")
        with TransactionalProducer(
            bootstrap_servers, new_name("readings"), batch_size=1 << 20, linger_ms=5
        ) as producer:
            producer.init_transactions()
            began = time.monotonic()
            with producer.transaction():
                all_of_them = producer.send_batch(topic, readings)
                keyed = producer.send_batch(topic, [b"20", b"22"], keys=[b"hall", b"attic"])
                producer.send_arrow(topic, table)
            rate = COUNT / (time.monotonic() - began)
            print(f"committed {len(all_of_them) + len(keyed) + table.num_rows} records,", end=" ")
            print(f"{rate:,.0f} a second")
            where = all_of_them.result(timeout=10)
            print("the last reading lies at", where.partitions[-1], where.offsets[-1])
        print("read_committed sees", len(values_in(bootstrap_servers, topic)), "records")


if __name__ == "__main__":
    main()
