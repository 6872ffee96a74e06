"""Let whole producers talk to a broker whose answers are damaged.

    python -m tests.fuzz.producers --count 1000 [--seed S] [--only ROUND]

Each round is one broker and the producers that survive or replace each other at it. Every call
ends within its time, with a `KafkaError` or without; the log holds no unexpected error;
memory stays within its limit; and once the broker answers well again, a new producer commits. A
failure prints the seed and its round; what a round draws does not depend on the others, but its
threads are not in lockstep, so that a round is repeated closely and not exactly.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import logging
import random
import socket
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from tests.fuzz.hostile_broker import HostileBroker
from tests.fuzz.limits import limit_memory, limit_time
from tests.fuzz.samples import samples
from txnproducer import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from txnproducer.errors import KafkaError
from txnproducer.producer import TransactionalProducer

HEADROOM_BYTES = 1024 * 1024 * 1024
PER_ROUND = 25
WORKERS = 12
# Far above what any call may take (`max_block_ms` and one request); a busy machine is no failure.
MOST_CALL_S = 30.0
_DAMAGE_RATE = 0.3
_SETTINGS: dict[str, Any] = {
    "max_block_ms": 500,
    "request_timeout_ms": 200,
    "delivery_timeout_ms": 600,
    "linger_ms": 0,
    "retry_backoff_ms": 2,
    "retry_backoff_max_ms": 20,
    "reconnect_backoff_ms": 2,
    "reconnect_backoff_max_ms": 20,
    "socket_connection_setup_timeout_ms": 300,
    "socket_connection_setup_timeout_max_ms": 300,
}
_LOGIN = {
    "security_protocol": "SASL_PLAINTEXT",
    "sasl_mechanism": "PLAIN",
    "sasl_plain_username": "u",
    "sasl_plain_password": "p",
}
_UNEXPECTED = ("an unexpected error", "could not handle", "could not end", "could not close")


class Round:
    """One broker, damaging answers until it has done so many.

    Args:
        seed: of the run.
        number: of the round.
        count: how many answers to damage.
        others: answers of all APIs, for splicing.
    """

    def __init__(self, seed: int, number: int, count: int, others: list[bytes]) -> None:
        self._rng = random.Random(f"{seed}:{number}")
        self._count = count
        is_v2, has_login = self._rng.random() < 0.6, self._rng.random() < 0.3
        self.broker = HostileBroker(self._rng, others, is_v2=is_v2)
        self._settings = _SETTINGS | (_LOGIN if has_login else {})
        self._address = f"127.0.0.1:{self.broker.port}"
        self._choices = random.Random(f"{seed}:{number}:calls")
        self.commits = self.producers = 0

    def run(self) -> None:
        """Play the run. Raise an error if a rule is broken."""
        with self.broker:
            while len(self.broker.damaged) < self._count:
                self.broker.damage_rate = _DAMAGE_RATE
                self._use_producer()
            self.broker.damage_rate = 0.0
            self._check_health()

    def _use_producer(self) -> None:
        self.producers += 1
        producer = TransactionalProducer(self._address, "x", **self._settings)
        try:
            self._call(producer.init_transactions)
            # Not for ever: a broker may have throttled its client for 24 days.
            for _ in range(self._choices.randint(2, 6)):
                self._transact(producer)
        except KafkaError:
            pass  # not to be gone on with: a new one
        finally:
            self._call(lambda: producer.close(0.3))

    def _transact(self, producer: TransactionalProducer) -> None:
        try:
            self._call(producer.begin_transaction)
            for number in range(self._choices.randint(1, 4)):
                topic, key = self._choices.choice("tu"), bytes((number,))
                self._call(partial(producer.send, topic, b"value", key=key))
            if self._choices.random() < 0.3:
                offsets = {TopicPartition("t", 0): OffsetAndMetadata(5)}
                group = ConsumerGroupMetadata("g")
                self._call(lambda: producer.send_offsets_to_transaction(offsets, group))
            self._call(producer.commit_transaction)
            self.commits += 1
        except KafkaError as error:
            if error.recovery != "abort":
                raise
            self._call(producer.abort_transaction)

    def _call(self, call: Callable[[], object]) -> None:
        started = time.monotonic()
        try:
            call()
        finally:
            took = time.monotonic() - started
            if took > MOST_CALL_S:
                raise AssertionError(f"{call} took {took:.0f} s")

    def _check_health(self) -> None:
        producer = TransactionalProducer(
            self._address, "x", **self._settings | {"max_block_ms": 20_000}
        )
        with contextlib.closing(producer):
            producer.init_transactions()
            producer.begin_transaction()
            producer.send("t", b"value")
            producer.commit_transaction()


class _Unexpected(logging.Handler):
    """Keeps the log's lines about unexpected errors."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = self.format(record)
        if any(words in text for words in _UNEXPECTED):
            self.found.append(text)


def main() -> None:
    arguments = _arguments()
    seed: int = arguments.seed
    print(f"seed {seed}", flush=True)
    others = [sample.payload for sample in samples()]
    _look_up_nothing()
    unexpected = _Unexpected()
    logging.getLogger("txnproducer").addHandler(unexpected)
    threading.stack_size(512 * 1024)
    limit_memory(HEADROOM_BYTES)
    limit_time(60 + arguments.count / 10)

    def play(number: int) -> Round:
        played = Round(seed, number, PER_ROUND, others)
        try:
            played.run()
        except BaseException as error:
            print(
                f"round {number}: {type(error).__name__}: {error}; last damage "
                f"{played.broker.damaged[-5:]}\nagain: python -m tests.fuzz.producers "
                f"--seed {seed} --only {number}",
                file=sys.stderr,
            )
            raise
        return played

    numbers = range(-(-arguments.count // PER_ROUND))
    if arguments.only is not None:
        numbers = range(arguments.only, arguments.only + 1)
    with concurrent.futures.ThreadPoolExecutor(WORKERS) as pool:
        rounds = list(pool.map(play, numbers))
    if unexpected.found:
        print("\n".join(unexpected.found), file=sys.stderr)
        raise SystemExit(f"{len(unexpected.found)} unexpected errors in the log")
    damaged = sum(len(each.broker.damaged) for each in rounds)
    commits, producers = (
        sum(getattr(r, name) for r in rounds) for name in ("commits", "producers")
    )
    print(f"{damaged} damaged answers, {producers} producers, {commits} commits between them")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**9))
    parser.add_argument("--only", type=int)
    return parser.parse_args()


def _look_up_nothing() -> None:
    """A damaged address must lead nowhere: no name is looked up, no other machine is met."""
    look_up = socket.getaddrinfo

    def look_up_here(host: Any, *args: Any, **more: Any) -> Any:
        if host != "127.0.0.1":
            raise socket.gaierror(socket.EAI_NONAME, "a damaged name")
        return look_up(host, *args, **more)

    socket.getaddrinfo = look_up_here


if __name__ == "__main__":
    main()
