"""Run seeds of prepared parts: `python -m tests.spark.parts --seeds 100`."""

from __future__ import annotations

import argparse
import time
from collections import Counter

from tests.spark.parts.run import run_seed


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.spark.parts")
    parser.add_argument("--seed", type=int, help="one seed")
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--trace", action="store_true")
    arguments = parser.parse_args()
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    if arguments.seed is not None:
        seeds = range(arguments.seed, arguments.seed + 1)
    began, requests, counts = time.perf_counter(), 0, Counter[str]()
    for seed in seeds:
        result = run_seed(seed, print if arguments.trace else None)
        requests += result.requests
        counts += result.counts
        for check, text in result.violations:
            print(f"seed {seed}: {check}: {text}", flush=True)
    seconds = time.perf_counter() - began
    print(f"{len(seeds)} seeds, {requests} requests, {seconds:.1f} s")
    print(", ".join(f"{name} {count}" for name, count in counts.most_common()))


if __name__ == "__main__":
    main()
