"""How long a driver takes many transactional ids, claims and ends, with a network that is slow.

Run: `python -m integration.benchmarks_spark.many_ids [round trip in ms ...]`. It starts a broker,
and a process that delays each byte between the driver and the broker. The first column is a
producer for each id with eight threads, as a run took ids before.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from multiprocessing.connection import Connection

from integration.brokers import MODES
from txnproducer import TransactionalProducer
from txnproducer._protocol.messages import BrokerNode
from txnproducer._wire.network_client import NetworkClient
from txnproducer.config import ProducerConfig
from txnproducer.spark.ledger.coordinator_client import CoordinatorClient

HOST = "127.0.0.1"
IDS, CLAIMS = 1000, 600
_PART_BYTES = 65_536


async def _carry(source: asyncio.StreamReader, sink: asyncio.StreamWriter, delay_s: float) -> None:
    loop = asyncio.get_running_loop()
    # Timed by the loop and not by a sleep: what comes after must not wait for what was before.
    with contextlib.suppress(OSError):
        while part := await source.read(_PART_BYTES):
            loop.call_later(delay_s, sink.write, part)
    loop.call_later(delay_s, sink.close)


def _run_proxy(address: tuple[str, int], delay_s: float, port: Connection) -> None:
    async def serve() -> None:
        carrying = set()  # the loop itself would let them be collected

        async def accept(client: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
            broker, requests = await asyncio.open_connection(*address)
            for ways in ((client, requests), (broker, answers)):
                carrying.add(asyncio.create_task(_carry(*ways, delay_s)))

        server = await asyncio.start_server(accept, HOST, 0)
        port.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(serve())


def _timed(call: Callable[[], object]) -> float:
    begin_s = time.perf_counter()
    call()
    return time.perf_counter() - begin_s


def _config(port: int, name: str = "unused") -> ProducerConfig:
    return ProducerConfig.build(bootstrap_servers=f"{HOST}:{port}", transactional_id=name)


def _take_by_producer(port: int, names: Iterable[str]) -> None:
    def take(name: str) -> None:
        with TransactionalProducer.from_config(_config(port, name)) as producer:
            producer.init_transactions()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(take, names))


def _lease_one_by_one(port: int) -> float:
    with TransactionalProducer.from_config(_config(port, "one-by-one")) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        took_s = _timed(lambda: producer.lease(CLAIMS))
        producer.abort_transaction()
    return took_s


def _measure(port: int, round_trip_ms: float) -> None:
    names = [f"bench.p{number}" for number in range(IDS)]
    each_s = _timed(lambda: _take_by_producer(port, names))
    with CoordinatorClient(_config(port)) as client:
        first_s = _timed(lambda: client.take_ids(names, 60_000))
        taken = client.take_ids(names, 60_000)
        again_s = _timed(lambda: client.take_ids(names, 60_000))
        taken = client.take_ids(names, 60_000)
        leases = [one.lease() for one in taken.values()]
        end_s = _timed(lambda: client.end_ids(leases, is_commit=False, timeout_ms=60_000))
    one_by_one_s = _lease_one_by_one(port)
    claims = [("bench", number) for number in range(CLAIMS)]
    with CoordinatorClient(_config(port)) as client:
        claims_s = _timed(lambda: client.take_claims(claims, 60_000))
    print(
        f"| {round_trip_ms:g} ms | {each_s:.2f} | {first_s:.2f} | {again_s:.2f} | {end_s:.2f} |"
        f" {one_by_one_s:.2f} | {claims_s:.2f} |",
        flush=True,
    )


def main(round_trips_ms: list[float]) -> None:
    """Print a row for each delay."""
    print(
        f"| round trip | {IDS} ids, a producer each, s | at once, new client | again | ends |"
        f" {CLAIMS} claims one by one | at once, new client |\n|--|--:|--:|--:|--:|--:|--:|"
    )
    with MODES[0].start() as kafka:
        host, _, port = kafka.bootstrap_servers.partition(":")
        for round_trip_ms in round_trips_ms:
            ours, theirs = multiprocessing.Pipe()
            arguments = ((host, int(port)), round_trip_ms / 2000, theirs)
            proxy = multiprocessing.Process(target=_run_proxy, args=arguments, daemon=True)
            proxy.start()
            _through(proxy_port := ours.recv())
            _measure(proxy_port, round_trip_ms)
            proxy.terminate()
            proxy.join()


_update_nodes = NetworkClient.update_nodes


def _through(port: int) -> None:
    """Let every connection go to this port, for the broker names its own."""

    def update_nodes(self: NetworkClient, nodes: Iterable[BrokerNode]) -> None:
        _update_nodes(self, [replace(node, host=HOST, port=port) for node in nodes])

    NetworkClient.update_nodes = update_nodes  # type: ignore[method-assign]


if __name__ == "__main__":
    main([float(each) for each in sys.argv[1:]] or [0, 5, 10])
