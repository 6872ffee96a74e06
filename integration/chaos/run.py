"""One run: transactions under faults, then the count.

The checks know nothing of the workload but its account: which transactions it calls committed,
aborted or unknown, and what was in them.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from dataclasses import asdict, dataclass, field

from integration.chaos.faults import Faults
from integration.readers import Read, read_with_confluent
from txnproducer import TransactionalProducer, errors
from txnproducer.testing import EmbeddedKafka

PARTITIONS = 6
_READ_S = 120.0
_GIVE_UP_S = 120.0


@dataclass(frozen=True)
class Plan:
    """The size of a run, its kinds of faults, and its seed."""

    transactions: int
    records: int
    seed: int
    transaction_version: int
    kinds: tuple[str, ...]


@dataclass
class Account:
    """The workload's account of its transactions. At the end no key of `outcomes` has `None`."""

    outcomes: dict[int, str] = field(default_factory=dict)
    aborts: Counter[str] = field(default_factory=Counter)
    new_producers: Counter[str] = field(default_factory=Counter)
    took_s: list[float] = field(default_factory=list)

    @property
    def longest_s(self) -> float:
        return max(self.took_s, default=0.0)


def write_transactions(
    servers: str,
    topic: str,
    plan: Plan,
    transactional_id: str,
    account: Account,
    **settings: int,
) -> None:
    """Write the transactions, each again (under a new number) until as many are committed."""
    producer = _producer(servers, transactional_id, settings)
    try:
        number = 0
        while sum(outcome == "committed" for outcome in account.outcomes.values()) < (
            plan.transactions
        ):
            began = time.monotonic()
            try:
                account.outcomes[number] = _one(producer, topic, plan, number, account)
            except errors.KafkaError as error:
                # Only where the protocol leaves no other way; each is counted with its cause.
                account.outcomes.setdefault(
                    number, "unknown" if error.recovery == "unknown" else "aborted"
                )
                account.new_producers[f"{type(error).__name__}: {error}"[:200]] += 1
                producer.close(timeout=5)
                producer = _producer(servers, transactional_id, settings)
            account.took_s.append(time.monotonic() - began)
            number += 1
    finally:
        producer.close(timeout=30)


def _producer(
    servers: str, transactional_id: str, settings: dict[str, int]
) -> TransactionalProducer:
    defaults = {
        "max_block_ms": 60_000,
        "request_timeout_ms": 5_000,
        "delivery_timeout_ms": 60_000,
    }
    producer = TransactionalProducer(servers, transactional_id, **defaults | settings)
    _again(producer.init_transactions)
    return producer


def _one(
    producer: TransactionalProducer, topic: str, plan: Plan, number: int, account: Account
) -> str:
    """Write one transaction, and return its outcome, or raise the error that ends the producer."""
    producer.begin_transaction()
    try:
        for index in range(plan.records):
            value = b"%06d:%04d" % (number, index)
            producer.send(topic, value, partition=index % PARTITIONS)
        _again(producer.commit_transaction)
    except errors.KafkaError as error:
        if error.recovery != "abort":
            raise
        account.aborts[type(error).__name__] += 1
        _again(producer.abort_transaction)
        return "aborted"
    return "committed"


def _again(call) -> None:
    """Call until the operation ends. A time-out is not a failure."""
    deadline = time.monotonic() + _GIVE_UP_S
    while True:
        try:
            call()
            return
        except errors.KafkaTimeoutError:
            if time.monotonic() > deadline:
                raise


def check(reads: list[Read], account: Account, records: int) -> list[str]:
    """Return every violation of the account: lost, doubled, torn, out of order, or not its own."""
    wrong: list[str] = []
    seen: dict[int, list[tuple[int, int]]] = defaultdict(list)
    last: dict[int, tuple[int, int]] = {}
    for read in reads:
        number, index = (int(part) for part in (read.value or b"").split(b":"))
        place = (number, index)
        if last.get(read.partition, (-1, -1)) >= place:
            wrong.append(f"partition {read.partition}: {place} after {last[read.partition]}")
        last[read.partition] = place
        seen[number].append((index, read.partition))
    for number, outcome in account.outcomes.items():
        found = sorted(seen.pop(number, []))
        whole = [(index, index % PARTITIONS) for index in range(records)]
        if found not in ([], whole):
            wrong.append(f"transaction {number} ({outcome}): {len(found)} of {records} records")
        elif outcome == "committed" and not found:
            wrong.append(f"transaction {number} was committed and is not there")
        elif outcome == "aborted" and found:
            wrong.append(f"transaction {number} was aborted and is there")
    wrong += [f"transaction {number} was never begun and is there" for number in seen]
    return wrong


def run(kafka: EmbeddedKafka, plan: Plan, name: str) -> dict[str, object]:
    """Do a run on a cluster, and return its results."""
    topic, transactional_id = f"chaos-{name}", f"chaos-{name}"
    kafka.create_topic(topic, partitions=PARTITIONS, config={"min.insync.replicas": "2"})
    account = Account()
    faults = Faults(kafka, topic, PARTITIONS, transactional_id, plan.kinds, plan.seed)
    began = time.monotonic()
    faults.start()
    try:
        write_transactions(kafka.bootstrap_servers, topic, plan, transactional_id, account)
    finally:
        faults.stop()
    took_s = time.monotonic() - began
    # An open transaction would stop this reader, and the check would miss the records after it.
    reads = read_with_confluent(kafka.bootstrap_servers, topic, timeout=_READ_S)
    wrong = check(reads, account, plan.records)
    wrong += [f"a fault could not be made: {error!r}" for error in faults.errors]
    return {
        **asdict(plan),
        "outcomes": dict(Counter(account.outcomes.values())),
        "aborts": dict(account.aborts),
        "new_producers": dict(account.new_producers),
        "faults": dict(faults.counts),
        "records_read": len(reads),
        "longest_transaction_s": round(account.longest_s, 2),
        "seconds": round(took_s, 1),
        "wrong": wrong,
    }
