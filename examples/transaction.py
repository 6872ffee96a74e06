"""One transaction that commits, and one that fails half-way.

Readers at read_committed see all of the first and nothing of the second.

It needs: pip install '.[testing]'
python examples/transaction.py [bootstrap servers]
"""

from __future__ import annotations

from _cluster import cluster, create_topic, new_name, values_in

from txnproducer import TransactionalProducer


class TransferRefusedError(Exception):
    """Stands for any failure of an application between two records."""


def transfer(producer: TransactionalProducer, topic: str, amount: int, limit: int) -> str:
    """Write the two halves of a transfer; return how its transaction ended."""
    transaction = producer.transaction()
    try:
        with transaction:
            first_half = producer.send(topic, f"alice -{amount}".encode(), key=b"alice")
            # Not needed: the commit waits for all records. Here it lets the broker have the first
            # half before the second fails, for the comparison at the end.
            first_half.result(timeout=10)
            if amount > limit:
                raise TransferRefusedError(f"{amount} is more than {limit}")
            producer.send(topic, f"bob +{amount}".encode(), key=b"bob")
    except TransferRefusedError as refusal:
        print(f"refused: {refusal}")
    return transaction.outcome


def main() -> None:
    with cluster() as bootstrap_servers:
        topic = create_topic(bootstrap_servers, "transfers")
        with TransactionalProducer(
            bootstrap_servers=bootstrap_servers, transactional_id=new_name("transfers")
        ) as producer:
            producer.init_transactions()
            print("transfer of 10:", transfer(producer, topic, amount=10, limit=100))
            print("transfer of 500:", transfer(producer, topic, amount=500, limit=100))

        print("read_committed sees: ", values_in(bootstrap_servers, topic))
        everything = values_in(bootstrap_servers, topic, "read_uncommitted")
        print("read_uncommitted sees:", everything)


if __name__ == "__main__":
    main()
