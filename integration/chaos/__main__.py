"""`python -m integration.chaos`: runs under faults, noted one by one, resumed where it stopped."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from integration.chaos.faults import KINDS
from integration.chaos.run import Plan, run
from txnproducer.testing import EmbeddedKafka

RESULTS = Path("results") / "chaos.jsonl"


def _commit() -> str:
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "unknown"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m integration.chaos", description=__doc__)
    parser.add_argument("--transactions", type=int, default=200)
    parser.add_argument("--records", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1, help="of the first run")
    parser.add_argument("--runs", type=int, default=2, help="per transaction version")
    parser.add_argument("--transaction-version", type=int, choices=(1, 2), help="default: both")
    parser.add_argument("--faults", nargs="+", choices=KINDS, default=list(KINDS))
    return parser.parse_args()


def _done(commit: str) -> set[str]:
    if not RESULTS.exists():
        return set()
    lines = (json.loads(line) for line in RESULTS.read_text("utf-8").splitlines())
    return {line["name"] for line in lines if line["commit"] == commit}


def main() -> int:
    arguments, commit = _arguments(), _commit()
    done, failed = _done(commit), 0
    versions = (arguments.transaction_version,) if arguments.transaction_version else (2, 1)
    for version in versions:
        for seed in range(arguments.seed, arguments.seed + arguments.runs):
            kinds = tuple(arguments.faults)
            plan = Plan(arguments.transactions, arguments.records, seed, version, kinds)
            short = "-".join(kind.replace(" ", "_") for kind in kinds)
            name = f"v{version}-{plan.transactions}x{plan.records}-{seed}-{short}"
            if name in done:
                print(f"{name}: done before at {commit}")
                continue
            failed += _run(plan, name, commit)
    return 1 if failed else 0


def _run(plan: Plan, name: str, commit: str) -> bool:
    print(f"{name}: 3 brokers, {plan.transactions} transactions of {plan.records} records ...")
    features = {"transaction.version": plan.transaction_version}
    with EmbeddedKafka(nodes=3, features=features) as kafka:
        result = run(kafka, plan, name)
    wrong = result["wrong"]
    RESULTS.parent.mkdir(exist_ok=True)
    with RESULTS.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"name": name, "commit": commit, **result}) + "\n")
    for key in ("outcomes", "faults", "aborts", "new_producers", "longest_transaction_s"):
        print(f"  {key}: {result[key]}")
    print("  " + ("nothing lost, doubled, torn or out of order" if not wrong else f"{wrong}"))
    if wrong:
        faults = " ".join(f"'{kind}'" for kind in plan.kinds)
        print(
            f"  again: python -m integration.chaos --transactions {plan.transactions} --records"
            f" {plan.records} --seed {plan.seed} --runs 1 --transaction-version"
            f" {plan.transaction_version} --faults {faults}"
        )
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
