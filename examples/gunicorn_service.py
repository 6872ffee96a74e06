"""A WSGI service under gunicorn: each worker process writes with producers of its own.

The pool is made when this module is loaded: in each worker, or once before the fork with
`--preload`. Both are right, since it has neither a thread nor a connection before a request
writes. Then the worker takes the first number that no other process has, by locking a file, and
its transactional ids are `<service>-<host>-<number>-<n>`. A worker that is killed frees its
number. The one that replaces it takes the number, and its first request ends the transaction that
the killed worker has left open.

At SIGTERM gunicorn's workers answer the requests that they have. Then `worker_exit`, in
_gunicorn_config.py, closes the pool.

A client whose worker is killed gets no answer, and cannot know. It repeats the request with the
same `Idempotency-Key`, the key of the record, and readers leave out the second record of a key.

It needs: pip install '.[testing]' gunicorn
Run it: python examples/gunicorn_service.py [bootstrap servers]
Serve with it: gunicorn --config _gunicorn_config.py gunicorn_service:app
"""

from __future__ import annotations

import http.client
import os
import signal
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from _cluster import cluster, create_topic, new_name, values_in
from _server import has_ended_well, listening, server_program

from txnproducer import Transaction
from txnproducer.admin import transactional_ids
from txnproducer.errors import KafkaError
from txnproducer.pool import ProducerPool

TOPIC = os.environ.get("TOPIC", "orders")
pool = ProducerPool(
    os.environ.get("KAFKA", "localhost:9092"), os.environ.get("SERVICE", "shop"), linger_ms=0
)


def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
    """Answer a POST when its body is committed, and tell the process that has written it."""
    order, key = environ["wsgi.input"].read(), environ.get("HTTP_IDEMPOTENCY_KEY", "")

    def write(transaction: Transaction) -> None:
        transaction.send(TOPIC, order, key=key.encode())

    headers = [("Content-Type", "text/plain")]
    try:
        pool.run(write, timeout=10)
    except KafkaError as error:
        start_response(status_of(error), headers)
        return [f"{error}\n".encode()]
    start_response("201 Created", headers)
    return [b"%d" % os.getpid()]


def status_of(error: KafkaError) -> str:
    """Return the status after an error of `pool.run`: all but one say that nothing was written."""
    if error.recovery == "unknown":
        return "504 In Doubt"
    if error.recovery == "fix":
        return "500 The Same Request Would Fail Again"
    return "503 Aborted"


# --- the clients ---------------------------------------------------------------------------------

REQUESTS = 200
WORKERS = 4


class Clients:
    """Clients that repeat a request without an answer. One of them kills a worker.

    Attributes:
        processes: of the workers that have answered with 201, by the order.
        repeated: the orders without an answer at first.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._one_kills = threading.Lock()
        self._killed: int | None = None
        self.processes: dict[str, int] = {}
        self.repeated: set[str] = set()

    def order(self, number: int) -> None:
        """Send an order, once more if there is no answer."""
        order = f"order {number}"
        try:
            self.processes[order] = self._post(order)
        except (http.client.HTTPException, ConnectionError, urllib.error.URLError):
            self.repeated.add(order)
            self.processes[order] = self._post(order)
        with self._one_kills:
            if self._killed is None and len(self.processes) >= REQUESTS // 4:
                self._killed = self.processes[order]
                os.kill(self._killed, signal.SIGKILL)

    def have_heard(self, workers: int) -> bool:
        """Return whether so many workers have answered."""
        return len(set(self.processes.values())) >= workers

    def _post(self, order: str) -> int:
        key = {"Idempotency-Key": order}
        request = urllib.request.Request(self._address, order.encode(), key)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return int(answer.read())


def main() -> None:
    with cluster() as bootstrap_servers:
        topic, service = create_topic(bootstrap_servers, "orders"), new_name("shop")
        preload = ["--preload"] if os.environ.get("PRELOAD") else []
        with (
            listening() as (address, number),
            server_program(
                "gunicorn",
                *("--config", "_gunicorn_config.py", "--bind", f"fd://{number}"),
                *("--log-level", "error", *preload, "gunicorn_service:app"),
                KAFKA=bootstrap_servers,
                TOPIC=topic,
                SERVICE=service,
            ) as server,
        ):
            clients = Clients(address)
            with ThreadPoolExecutor(16) as threads:
                list(threads.map(clients.order, range(REQUESTS)))
            for order in range(REQUESTS, 50 * REQUESTS):
                if clients.have_heard(WORKERS + 1):
                    break  # of the worker that has replaced the killed one
                clients.order(order)
        found = values_in(bootstrap_servers, topic)
        doubled = {order for order in found if found.count(order) > 1}
        ids = [one for one in transactional_ids(bootstrap_servers) if one.startswith(service)]
        print(f"gunicorn has ended in order: {has_ended_well(server)}")
        print(f"each order answered can be read: {set(found) == clients.processes.keys()}")
        print(f"only repeated requests can be there twice: {doubled <= clients.repeated}")
        print(f"{len(set(clients.processes.values()))} processes wrote with {len(ids)} ids")


if __name__ == "__main__":
    main()
