"""The code on the pages works, and their names and figures are those of the sources."""

from __future__ import annotations

import asyncio
import re
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import pytest

import txnproducer
from integration.conformance.cases import CASES
from tests.conformance_page import CATALOGUE
from tests.core.oracle import CODES, TABLES
from tests.oracle_differences_page import count_listed
from tests.sim.mutation import all_mutants
from txnproducer import TransactionalProducer, errors, spark, testing
from txnproducer._protocol.messages import ApiKey
from txnproducer._shell.base_producer import _TIMES
from txnproducer.aio import AsyncTransactionalProducer

DOCS = Path(__file__).parents[1] / "docs"


def names_of(page: str, containing: str) -> dict[str, Any]:
    """Run the one Python block of a page that has a text, and return its names."""
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text("utf-8"), re.DOTALL)
    [block] = [block for block in blocks if containing in block]
    names: dict[str, Any] = {}
    exec(block, names)
    return names


@pytest.fixture
def one(client):
    client.topics = {"orders": 2}
    producer = TransactionalProducer("boot:9092", "txn", linger_ms=0, max_block_ms=10_000)
    producer.init_transactions()
    yield producer
    producer.close(0)


def commits(client) -> int:
    return sum(request.is_commit for request in client.sent(ApiKey.END_TXN))


def test_the_pools_of_the_page_write(client, tmp_path, monkeypatch):
    client.topics.update({"orders": 1, "payments": 1})
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    page = names_of("services.md", "pool.run(write)\n")
    with page["pool"] as pool:
        page["handle"](b"order")
        assert names_of("services.md", "def transfer")["transfer"](pool, 10) == 10
    assert commits(client) == 2


def test_threads_with_the_lock_of_the_page_commit_one_after_the_other(one, client):
    handle = names_of("services.md", "one_at_a_time")["handle"]
    threads = [threading.Thread(target=handle, args=(one, b"order")) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert commits(client) == 8


def test_the_coroutines_of_the_page_write_and_pay(client):
    client.topics.update({"orders": 1, "payments": 1})

    async def main():
        async with AsyncTransactionalProducer("boot:9092", "txn", linger_ms=0) as producer:
            write = names_of("asyncio.md", "async def write")["write"]
            assert len(await write(producer, [b"order"] * 5)) == 5
            pay = names_of("asyncio.md", "async def pay")["pay"]
            paying = asyncio.create_task(pay(producer, b"alice 10"))
            while not client.sent(ApiKey.END_TXN)[1:]:
                await asyncio.sleep(0)  # another thread sends it
            paying.cancel()
            await asyncio.wait([paying])

    asyncio.run(main())
    assert commits(client) == 2


def test_the_page_has_the_names_of_all_metrics(one):
    page = (DOCS / "metrics-and-logs.md").read_text("utf-8")
    table = page[page.index("## Metrics") : page.index("## Logs")]
    told = {
        name
        for line in table.splitlines()
        if line.startswith("| `")
        for name in re.findall(r"`([a-z-]+)`", line.split("|")[1])
    }
    with one.transaction():
        one.send("orders", b"value")
        one.flush()
    timed = {f"{name}-time-ns-total" for name in _TIMES.values()}
    assert told == one.metrics().keys() | timed


def names_on_the_page_of_the_api() -> set[str]:
    """Return the last part of each name that has an entry."""
    page = (DOCS / "api.rst").read_text("utf-8")
    entry = re.compile(
        r"^ *\.\. (?:auto|py:)(?!module|currentmodule)\w+:: (?:\w+\.)*(\w+)", re.MULTILINE
    )
    return set(entry.findall(page))


@pytest.mark.parametrize("package", [txnproducer, spark, testing], ids=lambda one: one.__name__)
def test_each_public_name_has_an_entry_on_the_page_of_the_api(package: ModuleType):
    public = set(package.__all__) - {"__version__", "errors"}
    assert public - names_on_the_page_of_the_api() == set()


def test_the_page_of_the_api_has_the_parents_of_its_errors():
    told = names_on_the_page_of_the_api()
    missing = {
        parent.__name__
        for name in told
        if isinstance(cls := getattr(errors, name, None), type)
        for parent in cls.__mro__
        if issubclass(parent, errors.KafkaError) and parent.__name__ not in told
    }
    assert missing == set()


def test_the_page_of_the_api_has_each_recovery():
    page = (DOCS / "api.rst").read_text("utf-8")
    told = re.findall(r"^   \* ``(\w+)``: ", page, re.MULTILINE)
    assert told == list(get_args(errors.Recovery))


def outcomes_of_the_oracle() -> int:
    return len(TABLES) * len(CODES)


# The page, the text around the figure, and its source.
FIGURES = [
    ("proven.md", r"([\d,]+) numbered behaviours", lambda: len(CATALOGUE["behaviours"])),
    ("proven.md", r"([\d,]+) outcomes of the Java client", outcomes_of_the_oracle),
    ("proven.md", r"([\d,]+) differ, each explained", count_listed),
    ("proven.md", r"([\d,]+) cases that the model and real brokers", lambda: len(CASES)),
    ("evidence.md", r"line by line, in ([\d,]+) cases", lambda: len(CASES)),
    ("evidence.md", r"in ([\d,]+) numbered statements", lambda: len(CATALOGUE["behaviours"])),
    ("evidence.md", r"at ([\d,]+) points of the protocol", lambda: len(TABLES)),
    ("evidence.md", r"([\d,]+) outcomes of the Java client", outcomes_of_the_oracle),
    ("testing.md", r"in ([\d,]+) recorded cases", lambda: len(CASES)),
]


@pytest.mark.parametrize(
    ("page", "pattern", "source"), FIGURES, ids=[f"{page}-{text}" for page, text, _ in FIGURES]
)
def test_a_figure_on_a_page_is_that_of_its_source(
    page: str, pattern: str, source: Callable[[], int]
):
    found = re.findall(pattern, (DOCS / page).read_text("utf-8"))
    assert found == [f"{source():,}"]


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("proven.md", "more than a hundred deliberate bugs"),
        ("../README.md", "must catch over a hundred planted bugs"),
    ],
)
def test_the_pages_promise_no_more_deliberate_bugs_than_there_are(page: str, text: str):
    prose = " ".join((DOCS / page).read_text("utf-8").split())
    assert text in prose
    assert len(all_mutants()) > 100


def test_the_page_of_benchmarks_counts_the_targets_of_its_tables():
    tables = (DOCS / "benchmarks-tables.md").read_text("utf-8")
    met, missed = (tables.count(f"\n| {word} |") for word in ("met", "**not met**"))
    prose = " ".join((DOCS / "benchmarks.md").read_text("utf-8").split())
    assert f"{met} are met and {missed} are not" in prose
