"""Run seeds of prepared parts: `python -m tests.spark.parts --seeds 100`."""

from __future__ import annotations

import argparse
import json
import logging
import time
from collections import Counter
from pathlib import Path

from tests.spark.parts.run import run_seed


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.spark.parts")
    parser.add_argument("--seed", type=int, help="one seed")
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--names", action="store_true", help="named runs, a ledger in a topic")
    parser.add_argument("--trace", action="store_true")
    parser.add_argument("--results", type=Path, help="the file that takes the figures")
    arguments = parser.parse_args()
    # The faults are on purpose.
    logging.getLogger("txnproducer").addHandler(logging.NullHandler())
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    if arguments.seed is not None:
        seeds = range(arguments.seed, arguments.seed + 1)
    violations, virtual_s = 0, 0.0
    began, requests, counts = time.perf_counter(), 0, Counter[str]()
    for seed in seeds:
        emit = print if arguments.trace else None
        result = run_seed(seed, emit, has_names=arguments.names)
        requests += result.requests
        counts += result.counts
        violations += len(result.violations)
        virtual_s += result.virtual_s
        for check, text in result.violations:
            print(f"seed {seed}: {check}: {text}", flush=True)
    seconds = time.perf_counter() - began
    print(f"{len(seeds)} seeds, {requests} requests, {seconds:.1f} s")
    print(", ".join(f"{name} {count}" for name, count in counts.most_common()))
    if arguments.results is not None:
        found = {
            "first": seeds.start,
            "seeds": len(seeds),
            "requests": requests,
            "violations": violations,
            "virtual_s": round(virtual_s),
            "counts": counts.most_common(),
        }
        arguments.results.write_text(json.dumps(found, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
