"""Rows, relays and crashes for the tests of the outbox."""

from __future__ import annotations

import threading
from collections import defaultdict

import sqlalchemy as sa
from sqlalchemy.orm import Session

from txnproducer.config import ProducerConfig
from txnproducer.errors import KafkaError
from txnproducer.ledger import Ledger
from txnproducer.outbox import relay as module
from txnproducer.outbox.batches import Batches
from txnproducer.outbox.starts import Starts
from txnproducer.producer import TransactionalProducer

LEDGERS = "outbox.ledger"


def built(**settings):
    return ProducerConfig.build(bootstrap_servers="model:9092", **settings)


CONFIG = built()
KEYS = ("ann", "bob", "eve", "joe")


def enqueue(outbox, count, first=0):
    with Session(outbox.engine) as session, session.begin():
        for number in range(first, first + count):
            outbox.enqueue(session, "orders", str(number), key=KEYS[number % len(KEYS)])


def drain(relay):
    while any(relay.run_once()):
        pass


def soon():
    """Return an event that ends a relay which goes on where it must not."""
    stop = threading.Event()
    timer = threading.Timer(5, stop.set)
    timer.daemon = True
    timer.start()
    return stop


def drain_as_run_does(relay):
    """Send all rows. Begin again after failures that pass."""
    for _ in range(8):
        try:
            drain(relay)
        except (KafkaError, sa.exc.OperationalError) as error:
            if not module.passes(error):
                raise
        else:
            return
    raise AssertionError("the failure does not pass")


def sent(kafka):
    """Return the numbers of the records by key, in the order of their partition."""
    found = defaultdict(list)
    for record in kafka.records("orders"):
        found[(record.key or b"").decode()].append(int(record.value))
    return dict(found)


def numbers(kafka):
    """Return the numbers of all records."""
    return [int(record.value) for record in kafka.records("orders")]


def all_of(count):
    return {key: list(range(place, count, len(KEYS))) for place, key in enumerate(KEYS)}


class CrashError(BaseException):
    """Ends a process at a point."""


def crash():
    raise CrashError


class Steps:
    """Counts the steps of a relay, and calls a function before one of them, or after it."""

    def __init__(self, monkeypatch):
        self.number = 0
        self.at = None
        self.then = None
        self.names = []
        for name in ("take_over", "settle", "take_others", "check", "settle_other", "adopt"):
            self._wrap(monkeypatch, Starts, name)
        for name in ("next_batch", "delete_sent", "cut", "bury"):
            self._wrap(monkeypatch, Batches, name)
        for name in ("init_transactions", "send", "commit_transaction"):
            self._wrap(monkeypatch, TransactionalProducer, name)
        for name in ("take_over", "advance"):
            self._wrap(monkeypatch, Ledger, name)

    def _wrap(self, monkeypatch, kind, name):
        usual = getattr(kind, name)

        def step(*args, **kwargs):
            self._count(f"before {name}")
            result = usual(*args, **kwargs)
            self._count(f"after {name}")
            return result

        monkeypatch.setattr(kind, name, step)

    def _count(self, name):
        if self.then is None:
            return
        self.number += 1
        self.names.append(name)
        if self.at in (self.number, name):
            then, self.then = self.then, None
            then()
