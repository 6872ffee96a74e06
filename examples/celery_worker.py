"""A Celery worker. Each task writes to Kafka once, also if Celery runs it twice.

With `acks_late` a task is acknowledged after its end, so none is lost when a worker is killed.
But the commit and the acknowledgement are two steps. A worker that is killed between them has
written, and the task is delivered again. So the task's id is the key of its record, and each task
first looks for its id in the topic, from the time on at which it was sent. (RabbitMQ and Redis
mark a task that they deliver again, in `request.delivery_info`. There the look may be left out for
tasks that are neither marked nor retried.)

That look is right although the transaction of the killed worker may still be open: it reads with
`read_committed` up to the end of the log, and so waits until that transaction has ended. The
worker that replaces the killed one ends it at its start, or the coordinator does after
`transaction_timeout_ms`. The look is not enough if two workers have the task at the same time. So
the visibility time-out of the broker (Redis, SQS) must be longer than any task takes.

Each process of the pool of Celery has producers of its own: the pool of producers is made before
the fork, and takes a number for each process that writes.

It needs: pip install '.[testing]' celery
Run it: python examples/celery_worker.py [bootstrap servers]
Start a worker: celery -A celery_worker worker (with KAFKA, TOPIC, FOLDER in the environment)
"""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
import time
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

from _cluster import cluster, create_topic, new_name, values_in
from _server import has_ended_well, server_program
from celery import Celery, Task
from celery.signals import worker_process_init, worker_process_shutdown
from kafka import KafkaConsumer, TopicPartition

from txnproducer import Transaction
from txnproducer.errors import KafkaError
from txnproducer.pool import ProducerPool

KAFKA = os.environ.get("KAFKA", "localhost:9092")
TOPIC = os.environ.get("TOPIC", "orders")
LONGEST_LOOK_S = 60
# The clocks of the machines differ by less.
LONGEST_SKEW_MS = 60_000

app = Celery("orders", broker="filesystem://")  # in the place of RabbitMQ or Redis
app.conf.update(
    task_acks_late=True,
    task_reject_on_worker_lost=True,  # deliver again the task of a process that was killed
    worker_prefetch_multiplier=1,
    worker_lost_wait=1.0,  # for the result of a process that was killed
    worker_proc_alive_timeout=60,  # for `take_number`, if the brokers are slow
    broker_connection_retry_on_startup=True,
)


def use_folder(folder: str) -> None:
    """Keep the tasks, and their results, in a folder."""
    app.conf.result_backend = f"file://{folder}"
    app.conf.broker_transport_options = {
        "data_folder_in": folder,
        "data_folder_out": folder,
        "control_folder": f"{folder}/control",
        "polling_interval": 0.1,
    }


use_folder(os.environ.get("FOLDER", tempfile.gettempdir()))
pool = ProducerPool(
    KAFKA,
    os.environ.get("SERVICE", "orders"),
    linger_ms=0,
    max_block_ms=20_000,
    transaction_timeout_ms=15_000,
)


@worker_process_init.connect  # type: ignore[untyped-decorator, unused-ignore]
def take_number(**_: Any) -> None:
    """End at once the transaction that the process before this one has left open."""
    with contextlib.suppress(KafkaError), pool.producer():
        pass  # the first task tries it again


@worker_process_shutdown.connect  # type: ignore[untyped-decorator, unused-ignore]
def close_pool(**_: Any) -> None:
    """Close the producers of a process that ends, after its last task."""
    pool.close(timeout=10)


@app.task(  # type: ignore[untyped-decorator, unused-ignore]
    bind=True,
    name="orders.book",
    autoretry_for=(KafkaError, TimeoutError),  # a retry has the same id, and looks for it first
    retry_backoff=True,
    max_retries=10,
)
def book(self: Task, order: str, sent_ms: int, dies: str = "") -> str:
    """Write an order. In the task's first run its process dies where the client wants it."""
    key = self.request.id.encode()

    def write(transaction: Transaction) -> None:
        future = transaction.send(TOPIC, order.encode(), key=key)
        if dies == "before the commit":
            future.result(10)  # the record is in the log, its transaction open
            die_once(self.request.id)

    result = write_once(write, partial(is_written, key, sent_ms))
    if dies == "after the commit":
        die_once(self.request.id)
    return result


def write_once(write: Callable[[Transaction], None], is_here: Callable[[], bool]) -> str:
    """Write in a transaction, unless an earlier run of the task has written."""
    if is_here():
        return "was written before"
    # It decides as well if the answer to the commit is lost.
    pool.run(write, timeout=60, is_written=is_here)
    return "written"


def is_written(key: bytes, sent_ms: int) -> bool:
    """Return whether a committed record of the topic has a key.

    Args:
        key: of the record.
        sent_ms: the record is not older than this time, in milliseconds since the epoch.

    Raises:
        TimeoutError: a transaction in the topic has not ended in time.
    """
    log, reader = readers()
    places = [TopicPartition(TOPIC, number) for number in log.partitions_for_topic(TOPIC)]
    ends = log.end_offsets(places)
    firsts = log.offsets_for_times(dict.fromkeys(places, sent_ms - LONGEST_SKEW_MS))
    reader.assign(places)
    for place in places:
        reader.seek(place, firsts[place].offset if firsts[place] else ends[place])
    deadline = time.monotonic() + LONGEST_LOOK_S
    while any(reader.position(place) < ends[place] for place in places):
        for records in reader.poll(timeout_ms=200).values():
            if any(record.key == key for record in records):
                return True
        if time.monotonic() > deadline:
            raise TimeoutError(f"a transaction in {TOPIC} is open for {LONGEST_LOOK_S} s")
    return False


@cache
def readers() -> tuple[KafkaConsumer, KafkaConsumer]:
    """Return the consumers of this process, which are made by its first task, after the fork.

    The first one sees open transactions, and so the end of the log. The second one reads up to it.
    """
    settings = {
        "bootstrap_servers": KAFKA,
        "enable_auto_commit": False,
        "auto_offset_reset": "earliest",  # not beyond the end, if the log was cut at its beginning
    }
    return KafkaConsumer(**settings), KafkaConsumer(**settings, isolation_level="read_committed")


# --- the client ----------------------------------------------------------------------------------

TASKS = 12


def die_once(task_id: str) -> None:
    """Kill this process, as the system does when memory is short, but only once for a task."""
    mark = Path(os.environ["FOLDER"], f"{task_id} has died")
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def send_tasks() -> list[str]:
    """Send the tasks, of which two kill their process, and return the results."""
    dies = {3: "before the commit", 6: "after the commit"}
    now_ms = int(1_000 * time.time())
    sent = [book.delay(f"order {n}", now_ms, dies.get(n, "")) for n in range(TASKS)]
    return [task.get(timeout=60) for task in sent]


def main() -> None:
    with cluster() as bootstrap_servers, tempfile.TemporaryDirectory() as folder:
        topic = create_topic(bootstrap_servers, "orders")
        use_folder(folder)
        with server_program(
            "celery",
            *("-A", "celery_worker", "worker", "--concurrency", "2", "--loglevel", "error"),
            *("--without-gossip", "--without-mingle"),
            KAFKA=bootstrap_servers,
            TOPIC=topic,
            SERVICE=new_name("orders"),
            FOLDER=folder,
        ) as worker:
            results = send_tasks()
        found = values_in(bootstrap_servers, topic)
        print(f"the worker has ended in order: {has_ended_well(worker)}")
        print(f"{len(results)} tasks, in two of which the process was killed")
        print(f"found written when they were run again: {results.count('was written before')}")
        print(f"read_committed sees {len(found)} orders, {len(set(found))} of them different")


if __name__ == "__main__":
    main()
