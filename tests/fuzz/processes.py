"""Let processes write through broken connections, end them in every way, and judge their words.

    python -m tests.fuzz.processes --rounds 20 [--seed S] [--only ROUND]

The simulator of the whole stack cannot reach the compiled parts, TLS, `fork` and the end of the
interpreter. Here they run as they ship: real sockets, processes and signals. The brokers are in
memory, and a proxy before each of them cuts connections at random bytes, or has the faults of the
simulator at answers, also within TLS. Logins may end soon, and be refused. Writers are
interrupted, killed, forked and left to exit with a transaction open; the next process takes the id
over. The judges are those of the clusters' campaign, for records and outcomes, and the writer's
own, for times and leftovers. A failure prints the seed and its round, which is repeated closely
and not exactly: processes are not in lockstep.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from integration.chaos.checks import FINAL, check
from integration.chaos.history import COMMITTED, add_up, load
from tests.fuzz.process_cluster import ProcessCluster
from tests.fuzz.process_writer import (
    BROKEN,
    CLOSED,
    ENDS,
    EXITED,
    LEFT_OPEN,
    PROOFS,
    RAISED,
    RAISES,
    THE_END,
    Orders,
)

ROOT: Final = Path(__file__).parents[2]
WORKERS: Final = 4
_PROCESSES: Final = 4
_LIFE_S: Final = (0.4, 2.0)
# With sound connections these leave no transaction open.
_IN_ORDER: Final = (CLOSED, LEFT_OPEN, EXITED, RAISES)
# The time of the last process for its commits.
_PROOF_S: Final = 30.0
# Far above what an exit may take: an abort, and a busy machine.
_MOST_EXIT_S: Final = 60.0
_UNEXPECTED: Final = ("unexpected error", "could not handle", "Exception ignored", "BROKEN")


class Round:
    """A cluster, and the processes that write to it one after the other.

    Args:
        seed: of the run.
        number: of the round.
        folder: for the histories.

    Attributes:
        wrong: the rules that were broken.
        ends: the number of processes by their end.
        outcomes: the number of transactions by the outcome that their process believes.
        faults: the number of faults at connections and logins.
    """

    def __init__(self, seed: int, number: int, folder: Path) -> None:
        self._rng = random.Random(f"{seed}:{number}")
        self._folder = folder
        self._cluster = ProcessCluster(self._rng)
        self._count = 0
        self._last_end = ""
        self.wrong: list[str] = []
        self.ends: Counter[str] = Counter()
        self.outcomes: Counter[str] = Counter()
        self.faults = self._cluster.faults

    def run(self) -> None:
        """Play the round."""
        with self._cluster as cluster:
            for _ in range(_PROCESSES):
                self._let_write(self._rng.choice(ENDS), self._rng.uniform(*_LIFE_S))
            cluster.heal()
            self._last_end = self._rng.choice(_IN_ORDER)
            self._let_write(self._last_end, _PROOF_S, is_calm=True)
            self._judge()
        self.wrong += cluster.wrong

    # --- a process ------------------------------------------------------------------------------

    def _let_write(self, end: str, life_s: float, *, is_calm: bool = False) -> None:
        self._count += 1
        name = f"w{self._count}"
        orders = Orders(
            settings=self._cluster.settings(),
            writer=name,
            life_s=life_s,
            is_calm=is_calm,
            end=end,
            seed=f"{self._rng.random()}",
            history=str(self._folder / f"{name}.jsonl"),
        )
        log = self._folder / f"{name}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.fuzz.process_writer", json.dumps(orders)],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        is_killed = False
        try:
            if not is_calm:
                is_killed = self._disturb(process, orders)
            process.wait(life_s + _MOST_EXIT_S)
        except subprocess.TimeoutExpired:
            self.wrong.append(f"{name} ({end}) does not end")
        finally:
            process.kill()
            process.wait(10)
        self._judge_end(name, "killed" if is_killed else end, process.returncode, log.read_text())

    def _disturb(self, process: subprocess.Popen[bytes], orders: Orders) -> bool:
        """Interrupt the process and trouble its cluster. Return whether it was killed."""
        kill_after_s = orders.life_s * self._rng.uniform(0, 1) if self._rng.random() < 0.2 else 1e9
        deadline = time.monotonic() + _MOST_EXIT_S
        began = None
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(self._rng.uniform(0.005, 0.06))  # the pace of the faults
            if not Path(orders.history).exists():
                continue  # its own handler of SIGINT is not there yet
            began = began or time.monotonic()
            self._cluster.trouble()
            if self._rng.random() < 0.5:
                process.send_signal(signal.SIGINT)
            if time.monotonic() > began + kill_after_s:
                process.kill()
                return True
        return False

    # --- the judges -----------------------------------------------------------------------------

    def _judge_end(self, name: str, end: str, code: int, log: str) -> None:
        self.ends[end] += 1
        # A producer that cannot go on is closed, whatever the orders were.
        allowed = {RAISES: (0, RAISED), "killed": (-signal.SIGKILL, 0, RAISED)}.get(end, (0,))
        is_ordered = code != RAISED or THE_END in log
        if code not in allowed or not is_ordered or any(words in log for words in _UNEXPECTED):
            said = "a rule is broken" if code == BROKEN else f"exit code {code}"
            self.wrong.append(f"{name} ({end}): {said}: {log[-1500:]}")

    def _judge(self) -> None:
        lines = load(sorted(self._folder.glob("*.jsonl"))) + list(self._read())
        history = add_up(lines)
        last = [txn for txn in history.txns.values() if txn.writer == f"w{self._count}"]
        if sum(txn.told == COMMITTED for txn in last) < PROOFS:
            self.wrong.append(f"the last process committed {last}")
        self.outcomes = Counter(txn.told or "not told" for txn in history.txns.values())
        self.wrong += [f"{finding.kind}: {finding.text}" for finding in check(history)]
        transactions = self._cluster.kafka.transactions()
        if open_ones := [key for key, each in transactions.items() if each.state == "Ongoing"]:
            said = (self._folder / f"w{self._count}.log").read_text()
            self.wrong.append(f"still open: {open_ones}, after {self._last_end!r}: {said[-4000:]}")

    def _read(self) -> Iterator[dict[str, Any]]:
        who = {"t": time.monotonic(), "reader": FINAL, "topic": "t"}
        for record in self._cluster.kafka.records("t"):
            value = (record.value or b"").decode()
            yield {**who, "partition": record.partition, "offset": record.offset, "value": value}
        for partition in range(3):
            yield {**who, "partition": partition, "end": True}


def play(seed: int, number: int) -> Round:
    """Play a round, and print its findings."""
    with tempfile.TemporaryDirectory() as folder:
        played = Round(seed, number, Path(folder))
        played.run()
    for text in played.wrong:
        print(f"round {number}: {text}", file=sys.stderr)
    if played.wrong:
        again = f"python -m tests.fuzz.processes --seed {seed} --only {number}"
        print(f"again: {again}", file=sys.stderr, flush=True)
    return played


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.processes", description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**9))
    parser.add_argument("--only", type=int)
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", flush=True)
    numbers = range(arguments.rounds) if arguments.only is None else (arguments.only,)
    with concurrent.futures.ThreadPoolExecutor(WORKERS) as pool:
        rounds = list(pool.map(lambda number: play(arguments.seed, number), numbers))
    ends, outcomes, faults = Counter[str](), Counter[str](), Counter[str]()
    for each in rounds:
        ends.update(each.ends)
        faults.update(each.faults)
        outcomes.update(each.outcomes)
    wrong = sum(bool(each.wrong) for each in rounds)
    print(f"{len(rounds)} rounds, processes {dict(ends)}, transactions {dict(outcomes)}")
    print(f"faults {dict(faults.most_common())}")
    print("nothing wrong" if not wrong else f"{wrong} rounds with something wrong")
    return 1 if wrong or not outcomes[COMMITTED] else 0


if __name__ == "__main__":
    sys.exit(main())
