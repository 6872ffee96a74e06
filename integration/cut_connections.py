"""`python -m integration.cut_connections`: transactions while a proxy cuts their connections.

Each run writes transactions through `CuttingProxy`, with each transaction's time from its first
call to its end, retries included. None may take longer than twice `request_timeout_ms`. What was
written is read again: nothing may be lost, doubled or torn.

With the fault "cut", connections are cut, a fifth of them in the handshake, and the time-outs of
connecting are the defaults (10 and 30 s). With "silent", one in twenty is accepted and never
answered; such a connection is held for as long as connecting may take, so these time-outs keep the
proportions of the defaults to `request_timeout_ms`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from unittest import mock

from integration.brokers import MODES
from integration.chaos.run import PARTITIONS, Account, Plan, check, write_transactions
from integration.cutting_proxy import CuttingProxy
from integration.readers import read_with_confluent
from txnproducer._shell import base_producer
from txnproducer._wire.network_client import NetworkClient
from txnproducer.testing import EmbeddedKafka
from txnproducer.testing._config import HOST

REQUEST_TIMEOUT_MS = 5_000
LIMIT_S = 2 * REQUEST_TIMEOUT_MS / 1000
FAULTS: dict[str, tuple[float, dict[str, int]]] = {  # the share of silent ones, the settings
    "cut": (0.0, {"request_timeout_ms": REQUEST_TIMEOUT_MS}),
    "silent": (
        0.05,
        {
            "request_timeout_ms": REQUEST_TIMEOUT_MS,
            "socket_connection_setup_timeout_ms": REQUEST_TIMEOUT_MS // 3,
            "socket_connection_setup_timeout_max_ms": REQUEST_TIMEOUT_MS,
        },
    ),
}
RESULTS = Path("results") / "cut-connections.jsonl"
_READ_S = 60.0


@dataclass
class Outcome:
    """The result of one run."""

    transaction_version: int
    fault: str
    seed: int
    took_s: list[float]
    outcomes: dict[str, int]
    fates: dict[str, int]
    new_producers: dict[str, int]
    wrong: list[str] = field(default_factory=list)

    @property
    def longest_s(self) -> float:
        return max(self.took_s)


@contextmanager
def through(port: int) -> Iterator[None]:
    """Let every connection of the producers made here go through a proxy."""

    class ThroughProxy(NetworkClient):
        def update_nodes(self, nodes) -> None:
            super().update_nodes(replace(node, host=HOST, port=port) for node in nodes)

    with mock.patch.object(base_producer, "NetworkClient", ThroughProxy):
        yield


def run(kafka: EmbeddedKafka, version: int, fault: str, seed: int, transactions: int) -> Outcome:
    """Do one run on a broker. Its topic and transactional id are new."""
    name = f"{fault}-v{version}-{seed}-{time.time_ns()}"
    plan = Plan(transactions, PARTITIONS, seed, version, (fault,))
    kafka.create_topic(name, partitions=PARTITIONS)
    host, _, port = kafka.bootstrap_servers.partition(":")
    account = Account()
    silent, settings = FAULTS[fault]
    with CuttingProxy((host, int(port)), seed, silent=silent) as proxy, through(proxy.port):
        write_transactions(f"{HOST}:{proxy.port}", name, plan, name, account, **settings)
        fates = dict(proxy.counts)
    wrong = check(read_with_confluent(kafka.bootstrap_servers, name, timeout=_READ_S), account, 6)
    if max(account.took_s) > LIMIT_S:
        wrong.append(f"a transaction took {max(account.took_s):.1f} s")
    outcomes = dict(Counter(account.outcomes.values()))
    new = dict(account.new_producers)
    return Outcome(version, fault, seed, account.took_s, outcomes, fates, new, wrong)


def percentile(values: list[float], share: float) -> float:
    """Return the value that this share of the values does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def summary(name: str, outcomes: list[Outcome]) -> str:
    """Return one line about all runs of a version."""
    took_s = [each for outcome in outcomes for each in outcome.took_s]
    fates: Counter[str] = sum((Counter(o.fates) for o in outcomes), Counter())
    ends: Counter[str] = sum((Counter(o.outcomes) for o in outcomes), Counter())
    return (
        f"{name}: {len(outcomes)} runs, {sum(fates.values())} connections {dict(fates)},"
        f" {len(took_s)} transactions {dict(ends)}: p50 {percentile(took_s, 0.5):.3f} s,"
        f" p99 {percentile(took_s, 0.99):.2f} s, longest {max(took_s):.2f} s;"
        f" {sum(o.longest_s > LIMIT_S for o in outcomes)} runs beyond {LIMIT_S:g} s"
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m integration.cut_connections")
    parser.add_argument("--runs", type=int, default=50, help="per transaction version")
    parser.add_argument("--seed", type=int, default=1, help="of the first run")
    parser.add_argument("--transactions", type=int, default=200, help="committed in each run")
    parser.add_argument("--fault", choices=FAULTS, default="cut")
    parser.add_argument("--transaction-version", type=int, choices=(1, 2), help="default: both")
    return parser.parse_args()


def main() -> int:
    arguments = _arguments()
    RESULTS.parent.mkdir(exist_ok=True)
    failed = 0
    for mode in MODES[:2]:
        version = mode.transaction_version
        if arguments.transaction_version not in (None, version):
            continue
        outcomes = []
        with mode.start() as kafka, RESULTS.open("a", encoding="utf-8") as file:
            for seed in range(arguments.seed, arguments.seed + arguments.runs):
                outcome = run(kafka, version, arguments.fault, seed, arguments.transactions)
                outcomes.append(outcome)
                file.write(json.dumps(vars(outcome)) + "\n")
                print(
                    f"v{version} seed {seed}: longest {outcome.longest_s:.2f} s",
                    *outcome.wrong,
                    flush=True,
                )
                failed += bool(outcome.wrong)
        print(summary(f"{arguments.fault}, v{version}", outcomes), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
