"""Two producers with one transactional id: the newer aborts the transaction of the older.

From then on the older one is fenced. This is what makes a restart safe: however long the old
process hangs, it can't commit any more.

It needs: pip install '.[testing]'
Run it: python examples/fencing.py [bootstrap servers]
"""

from __future__ import annotations

from _cluster import cluster, create_topic, new_name, values_in

from txnproducer import TransactionalProducer
from txnproducer.errors import ProducerFencedError


def main() -> None:
    with cluster() as bootstrap_servers:
        topic = create_topic(bootstrap_servers, "fencing")
        transactional_id = new_name("fencing")

        older = TransactionalProducer(
            bootstrap_servers=bootstrap_servers, transactional_id=transactional_id
        )
        newer = TransactionalProducer(
            bootstrap_servers=bootstrap_servers, transactional_id=transactional_id
        )
        with older, newer:
            older.init_transactions()
            older.begin_transaction()
            older.send(topic, b"written by the older producer")
            older.flush()
            print("older: one record written, its transaction is open")

            newer.init_transactions()
            print("newer: started under the same transactional id")
            with newer.transaction():
                newer.send(topic, b"written by the newer producer")
            print("newer: committed")

            try:
                older.commit_transaction()
            except ProducerFencedError as error:
                print(f"older: fenced, as it must be (what to do: {error.recovery})")

        print("read_committed sees:", values_in(bootstrap_servers, topic))


if __name__ == "__main__":
    main()
