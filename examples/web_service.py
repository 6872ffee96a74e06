"""A web service that answers a request when its record is committed, and stops without loss.

Requests arrive on many threads, and a producer has one transaction at a time. So the threads put
their records into a queue, and one thread writes all that wait in one transaction. At SIGTERM the
service takes no new requests, answers those it has, and ends.

It needs: pip install '.[testing]'
Run it: python examples/web_service.py [bootstrap servers]
"""

from __future__ import annotations

import os
import queue
import signal
import threading
import urllib.request
from concurrent.futures import Future, ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from _cluster import cluster, create_topic, new_name, values_in

from txnproducer import TransactionalProducer
from txnproducer.errors import KafkaError

REQUESTS = 200


class GroupWriter:
    """Write the records that wait, all of them in one transaction.

    Args:
        producer: an initialized producer that nothing else uses.
        topic: where to.
        most: records of one transaction at most.

    Attributes:
        failure: the error that this producer does not survive. A health check that reports it has
            the process replaced; a new producer of the same transactional id clears up.
    """

    def __init__(self, producer: TransactionalProducer, topic: str, most: int = 500) -> None:
        self._producer = producer
        self._topic = topic
        self._most = most
        self._waiting: queue.Queue[tuple[bytes, Future[None]] | None] = queue.Queue()
        self.transactions = 0
        self.failure: KafkaError | None = None

    def submit(self, value: bytes) -> Future[None]:
        """Return a future that ends when the value is committed, or with its transaction's error.

        A value whose future is cancelled before its transaction begins is not written.
        """
        done: Future[None] = Future()
        self._waiting.put((value, done))
        return done

    def stop(self) -> None:
        """End `run` after the values that were handed in before."""
        self._waiting.put(None)

    def run(self) -> None:
        """Write until `stop` is called; after a failure, refuse."""
        stopping = False
        while not stopping:
            taken = [self._waiting.get()]
            while len(taken) < self._most and not self._waiting.empty():
                taken.append(self._waiting.get())
            stopping = None in taken
            self._write_together([each for each in taken if each is not None])

    def _write_together(self, group: list[tuple[bytes, Future[None]]]) -> None:
        group = [each for each in group if each[1].set_running_or_notify_cancel()]
        error = self.failure or self._error_of_writing([value for value, _ in group])
        if error is not None and error.recovery != "abort":
            self.failure = error
        for _, done in group:
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)

    def _error_of_writing(self, values: list[bytes]) -> KafkaError | None:
        if not values:
            return None
        try:
            with self._producer.transaction():
                for value in values:
                    self._producer.send(self._topic, value)
        except KafkaError as error:
            return error
        self.transactions += 1
        return None


class Service(ThreadingHTTPServer):
    """Answer each POST when its body is committed."""

    daemon_threads = False  # closing the server waits for the requests that are being answered
    request_queue_size = 64

    def __init__(self, writer: GroupWriter) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.writer = writer


class Handler(BaseHTTPRequestHandler):
    """Hand the body to the writer; 201 promises that it is committed, 503 promises nothing."""

    server: Service

    def do_POST(self) -> None:
        """Write the body."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        try:
            self.server.writer.submit(body).result()
        except KafkaError as error:
            self.send_error(503, explain=f"{error} (what to do: {error.recovery})")
        else:
            self.send_response(201)
            self.end_headers()

    def do_GET(self) -> None:
        """Answer a health check."""
        self.send_response(200 if self.server.writer.failure is None else 503)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name there
        """Keep quiet."""


def serve(writer: GroupWriter, started: threading.Event, addresses: list[str]) -> None:
    """Serve until SIGTERM. The end is graceful because of the order of its steps."""
    with Service(writer) as service:
        signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=service.shutdown).start())
        writing = threading.Thread(target=writer.run)
        writing.start()
        addresses.append(f"http://127.0.0.1:{service.server_port}/")
        started.set()
        service.serve_forever(poll_interval=0.05)  # 1. take no new requests
    # 2. the requests that were taken are answered: the end of the block has waited for them
    writer.stop()
    writing.join()  # 3. the last transaction is committed
    # 4. the caller closes the producer


def post(address: str, body: bytes) -> int:
    with urllib.request.urlopen(urllib.request.Request(address, body), timeout=30) as answer:
        return int(answer.status)


def be_the_clients(started: threading.Event, addresses: list[str], answers: list[int]) -> None:
    started.wait()
    bodies = [f"request {number}".encode() for number in range(REQUESTS)]
    with ThreadPoolExecutor(16) as clients:
        answers += clients.map(lambda body: post(addresses[0], body), bodies)
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    with cluster() as bootstrap_servers:
        topic = create_topic(bootstrap_servers, "web")
        started = threading.Event()
        addresses: list[str] = []
        answers: list[int] = []
        clients = threading.Thread(target=be_the_clients, args=(started, addresses, answers))
        with TransactionalProducer(bootstrap_servers, new_name("web-0"), linger_ms=0) as producer:
            producer.init_transactions()
            writer = GroupWriter(producer, topic)
            clients.start()
            serve(writer, started, addresses)
        clients.join()

        print(f"{answers.count(201)} requests answered with 201")
        print(f"more than one in a transaction: {writer.transactions < REQUESTS}")
        print(f"read_committed sees {len(values_in(bootstrap_servers, topic))} records")


if __name__ == "__main__":
    main()
