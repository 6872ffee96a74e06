"""Four processes write one transaction: readers see all that they wrote, or nothing.

The parent holds the transaction and leases it; each worker takes a claim, writes a partition of
its own, and returns a receipt. When one of them fails, the parent aborts, and lets all of them do
their work again.

It needs: pip install '.[testing]'
python examples/shared_transaction.py [bootstrap servers]
"""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor, wait
from multiprocessing import get_context

from _cluster import cluster, create_topic, new_name, values_in

from txnproducer import (
    TransactionalProducer,
    TransactionLease,
    TransactionParticipant,
    TransactionReceipt,
)

WORKERS = 4
RECORDS_OF_EACH = 250


class WorkFailedError(Exception):
    """Stands for any failure of a worker."""


def work(
    bootstrap_servers: str, lease: TransactionLease, claim: int, topic: str, *, fails: bool
) -> TransactionReceipt:
    """Write one worker's part of the transaction; runs in a process of its own."""
    with TransactionParticipant(lease, claim, bootstrap_servers) as participant:
        for number in range(RECORDS_OF_EACH):
            participant.send(topic, f"{claim}:{number}".encode(), partition=claim)
        if fails:
            raise WorkFailedError(f"worker {claim} has failed")
        return participant.receipt()


def run(
    producer: TransactionalProducer, pool: ProcessPoolExecutor, servers: str, topic: str, bad: int
) -> None:
    """Have all workers write, and commit their records; worker number `bad` fails."""
    producer.begin_transaction()
    try:
        lease = producer.lease(claims=WORKERS)
        parts = [
            pool.submit(work, servers, lease, claim, topic, fails=claim == bad)
            for claim in range(WORKERS)
        ]
        wait(parts)  # also for those beside one that has failed: an abort comes when all is quiet
        receipts = [part.result() for part in parts]
    except BaseException:  # also Ctrl-C: participants' records must not wait for a time-out
        producer.abort_transaction()
        raise
    producer.adopt(receipts)
    producer.commit_transaction()
    print(f"committed {sum(receipt.record_count for receipt in receipts)} records at once")


def main() -> None:
    with cluster() as bootstrap_servers:
        topic = create_topic(bootstrap_servers, "shared", partitions=WORKERS)
        with (
            # A fork would take the parent's connections along.
            ProcessPoolExecutor(WORKERS, mp_context=get_context("spawn")) as pool,
            TransactionalProducer(bootstrap_servers, new_name("shared")) as producer,
        ):
            producer.init_transactions()
            try:
                run(producer, pool, bootstrap_servers, topic, bad=2)
            except WorkFailedError as error:
                print(f"first time: {error}: aborted")
            print("read_committed sees", len(values_in(bootstrap_servers, topic)), "records")
            run(producer, pool, bootstrap_servers, topic, bad=-1)
        seen = values_in(bootstrap_servers, topic)
        print(f"read_committed sees {len(seen)} records, {len(set(seen))} of them different")


if __name__ == "__main__":
    main()
