"""One measurement, in a process of its own. Prints one line of JSON.

The lag is that of a task of the same loop that asks to be woken each millisecond: how much later
it was.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import time

from integration.benchmarks_async.peers import PEERS, Peer

_VALUE_BYTES = 100
_TICK_S = 0.001
_FEWEST = 3


async def _lags(found: list[float]) -> None:
    while True:
        began = time.perf_counter()
        await asyncio.sleep(_TICK_S)
        found.append(time.perf_counter() - began - _TICK_S)


async def _repeat(peer: Peer, values: list[bytes], seconds: float) -> list[float]:
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < _FEWEST or time.perf_counter() < end:
        began = time.perf_counter()
        await peer.write(values)
        times.append(time.perf_counter() - began)
    return times


async def _measure(arguments: argparse.Namespace) -> dict[str, object]:
    rng = random.Random(1)
    values = [rng.randbytes(_VALUE_BYTES // 2).hex().encode() for _ in range(arguments.records)]
    kind = PEERS[arguments.peer]
    peer = await kind.open(arguments.servers, arguments.topic, arguments.table)
    try:
        await _repeat(peer, values, arguments.seconds / 4)
        lags: list[float] = []
        ticking = asyncio.create_task(_lags(lags))
        began, used = time.perf_counter(), time.process_time()
        times = await _repeat(peer, values, arguments.seconds)
        took, cpu = time.perf_counter() - began, time.process_time() - used
        ticking.cancel()
    finally:
        await peer.close()
    records = len(times) * arguments.records
    return {
        "version": peer.version,
        "transactions_s": len(times) / took,
        "records_s": records / took,
        "cpu_us": cpu / records * 1e6,
        "p50_ms": _percentile(times, 0.5),
        "p99_ms": _percentile(times, 0.99),
        "lag_p99_ms": _percentile(lags, 0.99),
    }


def _percentile(seconds: list[float], share: float) -> float:
    return sorted(seconds)[min(len(seconds) - 1, int(len(seconds) * share))] * 1e3


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--peer", choices=PEERS, required=True)
    parser.add_argument("--records", type=int, required=True)
    parser.add_argument("--table", required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--servers", required=True)
    parser.add_argument("--topic", required=True)
    print(json.dumps(asyncio.run(_measure(parser.parse_args()))), flush=True)
    # A peer's threads must not keep the process: what they hold is not needed any more.
    os._exit(0)


if __name__ == "__main__":
    main()
