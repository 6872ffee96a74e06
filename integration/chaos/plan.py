"""The rows of the campaign beside the peers: client, fault, target, workload, version.

Why it exists: every combination would take days. A greedy cover takes the fewest rows it can find
in which each fault meets each target, each workload and each version.
Owns: the names of the factors, and the possible rows. Must not know: brokers, processes, results.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from itertools import product

OURS = "txnproducer"
NEUTRAL = "confluent-kafka"
"""The client of the second probe, beside ours."""
CLIENTS = (OURS, "kafka-python", "aiokafka", NEUTRAL, "java")

NONE, KILL, STOP, PAUSE = "none", "kill -9", "clean stop", "SIGSTOP"
PARTITION, ONE_SIDED, SLOW = "partition", "one-sided partition", "slow link"
FULL_DISK, ROLLING, UPGRADE = "full disk", "rolling restart", "version raised"
FAULTS = (
    NONE,
    KILL,
    STOP,
    PAUSE,
    PARTITION,
    ONE_SIDED,
    SLOW,
    FULL_DISK,
    ROLLING,
    UPGRADE,
)

LEADER, TXN_COORDINATOR, GROUP_COORDINATOR, CONTROLLER, CLIENT, ALL = (
    "leader",
    "transaction coordinator",
    "group coordinator",
    "controller",
    "client",
    "all",
)
BROKERS = (LEADER, TXN_COORDINATOR, GROUP_COORDINATOR, CONTROLLER)
TARGETS = (*BROKERS, CLIENT, ALL)

PLAIN, BANK, TAKEOVER, COPY = "plain", "bank", "takeover", "copy"
WORKLOADS = (PLAIN, BANK, TAKEOVER, COPY)
VERSIONS = (2, 1)

# Played as well, though the pairs do not ask for it: a copier is killed.
WANTED = ((KILL, CLIENT, COPY, 1),)
NEED_PROXIES = frozenset({PARTITION, ONE_SIDED, SLOW})
MOST_ROWS = 60


@dataclass(frozen=True)
class Row:
    """One run of the campaign.

    Attributes:
        client: the client that writes.
        fault: the fault, made once under load.
        target: the broker or process that it strikes.
        workload: the transactions that are written.
        version: `transaction.version` of the cluster at the start.
    """

    client: str
    fault: str
    target: str
    workload: str
    version: int

    @property
    def name(self) -> str:
        """The name of the row, which is unique in the campaign."""
        parts = (self.client, self.fault, self.target, self.workload)
        return "/".join(part.replace(" ", "-") for part in parts) + f"/v{self.version}"

    @property
    def pairs(self) -> frozenset[tuple[str, str]]:
        """The pairs that the plan must contain, as far as this row has them."""
        others = (self.target, self.workload, f"v{self.version}")
        return frozenset((self.fault, other) for other in others)

    @property
    def more_pairs(self) -> frozenset[tuple[str, str]]:
        """Further pairs, which decide between rows that are equally good."""
        version = f"v{self.version}"
        pairs = ((self.target, self.workload), (self.target, version), (self.workload, version))
        return frozenset(pairs)


def parts(name: str) -> tuple[str, str, str, str, str]:
    """Return client, fault, target, workload and version by the name of a row."""
    client, fault, target, workload, version = name.split("/")
    named = {name.replace(" ", "-"): name for name in FAULTS}
    return client, named[fault], target.replace("-", " "), workload, version


def targets_of(fault: str) -> tuple[str, ...]:
    """Return the targets that a fault can strike."""
    if fault in (NONE, ROLLING, UPGRADE):
        return (ALL,)
    # A client writes no files.
    return BROKERS if fault == FULL_DISK else (*BROKERS, CLIENT)


def possible(row: Row) -> bool:
    """Return whether a row can be played.

    Only consumers use a group's coordinator, and a cluster can be raised from version 1 alone.
    """
    if row.target not in targets_of(row.fault):
        return False
    if row.target == GROUP_COORDINATOR and row.workload != COPY:
        return False
    return row.fault != UPGRADE or row.version == 1


def possible_rows(client: str) -> Iterator[Row]:
    """Return every row of a client that can be played."""
    for fault, target, workload, version in product(FAULTS, TARGETS, WORKLOADS, VERSIONS):
        row = Row(client, fault, target, workload, version)
        if possible(row):
            yield row


def cover(client: str) -> list[Row]:
    """Return the rows of a client, those that show most first.

    Greedy: each time the row with the most pairs that no row before it has. Between equals the
    fault that has had the fewest rows goes first, so that a campaign that is stopped early has
    seen many faults.
    """
    left = list(possible_rows(client))
    missing = frozenset().union(*(row.pairs for row in left))
    more_missing = frozenset().union(*(row.more_pairs for row in left))
    rows: list[Row] = []
    chosen: Counter[str] = Counter()
    while missing:
        best = max(
            left,
            key=lambda row: (
                len(row.pairs & missing),
                -chosen[row.fault],
                len(row.more_pairs & more_missing),
                -left.index(row),
            ),
        )
        rows.append(best)
        left.remove(best)
        chosen[best.fault] += 1
        missing -= best.pairs
        more_missing -= best.more_pairs
    return rows + [row for row in left if astuple(row)[1:] in WANTED]
